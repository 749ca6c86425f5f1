"""Means of a text's tokens by its mask: computed once for all features, and summed by a product."""

from __future__ import annotations

import pytest
from rewritten import checked, ops, parsed

INPUTS = "float[N,5,8] x, float[N,5] m"
CONSTANTS = "int64[1] last = {-1}, int64[1] one = {1}, int64[3] sizes = {3,5,8}, float least = {0.1}"
WEIGHTED = "u = Unsqueeze(m, last)  e = Expand(u, sizes)  w = Cast<to=1>(e)  p = Mul(x, w)"


def pooled(nodes: str, made: str = "float[N,8]", inputs: str = INPUTS) -> list[str]:
    return ops(checked(parsed(f"g ({inputs}) => ({made} y) <{CONSTANTS}> {{ {nodes} }}")))


def test_the_mean_of_a_mask() -> None:
    """As sentence-transformers pools: what remains works on one number a token, and one a text."""
    sums = "s = ReduceSum<keepdims=0>(p, one)  c = ReduceSum<keepdims=0>(w, one)"
    nodes = f"{WEIGHTED} {sums}  l = Clip(c, least)  y = Div(s, l)"
    assert "Expand" not in pooled(nodes) and "Mul" not in pooled(nodes)
    assert pooled(nodes).count("MatMul") == 1


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("product", ["Mul(x, w)", "Mul(w, x)"])
@pytest.mark.parametrize("axis", ["one", "back"])
def test_a_weighted_sum_is_a_product(keepdims: int, product: str, axis: str) -> None:
    made = "float[N,1,8]" if keepdims else "float[N,8]"
    nodes = f"w = Unsqueeze(m, last)  p = {product}  y = ReduceSum<keepdims={keepdims}>(p, {axis})"
    text = f"g ({INPUTS}) => ({made} y) <{CONSTANTS}, int64[1] back = {{-2}}> {{ {nodes} }}"
    assert "MatMul" in ops(checked(parsed(text)))


@pytest.mark.parametrize(
    ("nodes", "made"),
    [
        ("w = Unsqueeze(m, last)  p = Mul(x, w)  y = ReduceSum<keepdims=0>(p, last)", "float[N,5]"),
        ("p = Mul(x, x)  y = ReduceSum<keepdims=0>(p, one)", "float[N,8]"),
        ("w = Unsqueeze(m, last)  p = Mul(x, w)  y = ReduceSum<keepdims=0>(p)", "float"),
        (
            "w = Unsqueeze(m, last)  p = Mul(x, w)  q = ReduceSum<keepdims=0>(p, one)  r = Exp(p)"
            " s = ReduceSum<keepdims=0>(r, one)  y = Add(q, s)",
            "float[N,8]",
        ),
    ],
)
def test_other_sums_stay(nodes: str, made: str) -> None:
    found = pooled(nodes, made)
    assert "ReduceSum" in found and "MatMul" not in found


def test_an_expand_with_other_readers_stays() -> None:
    nodes = "u = Unsqueeze(m, last)  e = Expand(u, sizes)  p = Mul(x, e)  r = Exp(e)  y = Add(p, r)"
    assert "Expand" in pooled(nodes, "float[N,5,8]")


def test_a_sum_over_what_is_repeated_stays() -> None:
    nodes = "u = Unsqueeze(m, last)  e = Expand(u, sizes)  y = ReduceSum<keepdims=0>(e, last)"
    assert "ReduceSum" in pooled(nodes, "float[N,5]")
