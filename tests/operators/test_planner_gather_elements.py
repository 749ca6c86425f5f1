"""GatherElements and GatherND against onnxruntime: by inputs, constants, computed indices and grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from planning import compare, drawn, modelled

from trnrt.errors import InputError, UnsupportedModelError

Array = NDArray[Any]


def picked(shape: tuple[int, ...], below: int, seed: int = 0, dtype: Any = np.int64) -> Array:
    return np.random.default_rng(seed).integers(-below, below, shape).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("given", ["input", "constant"])
def test_elements(axis: int, dtype: str, given: str) -> None:
    shape = (4, 5, 6)
    grid = tuple(3 if d == axis % 3 else n - 1 for d, n in enumerate(shape))
    dims = ", ".join(map(str, grid))
    indices = picked(grid, shape[axis])
    extra = f", int64[{dims}] i" if given == "input" else ""
    graph = f"(float[4, 5, 6] x{extra}) => (float[{dims}] y) {{ r = Neg(x)  y = GatherElements<axis={axis}>(r, i) }}"
    feeds = {"x": drawn(*shape)} | ({"i": indices} if given == "input" else {})
    plan = compare(modelled(graph, {} if given == "input" else {"i": indices}), feeds, dtype=dtype)
    assert [step.kernel for step in plan.steps][-1] == "gather_rows"


@pytest.mark.parametrize("given", ["input", "constant"])
@pytest.mark.parametrize(("depth", "together"), [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2)])
def test_parts(depth: int, together: int, given: str) -> None:
    shape = (4, 5, 6)
    grid = (*shape[:together], 3) if together else (7, 2)
    sizes = shape[together : together + depth]
    indices = np.stack([picked(grid, size, k) for k, size in enumerate(sizes)], -1)
    made = (*grid, *shape[together + depth :])
    of, to = (", ".join(map(str, s)) for s in (indices.shape, made))
    extra = f", int64[{of}] i" if given == "input" else ""
    graph = f"(float[4, 5, 6] x{extra}) => (float[{to}] y) {{ y = GatherND<batch_dims={together}>(x, i) }}"
    feeds = {"x": drawn(*shape)} | ({"i": indices} if given == "input" else {})
    compare(modelled(graph, {} if given == "input" else {"i": indices}), feeds)


def test_computed_indices() -> None:
    """Within bounds for certain, as positions that are counted, or limited."""
    graph = """(float[3, 8] x, int64[3, 8] i) => (float[3, 8] y, float[3, 8, 4] z, float[3, 4] w) {
        c = Clip(i, low, high)  y = GatherElements<axis=1>(x, c)  z = Gather(t, c)
        last = ArgMax<axis=1, keepdims=0>(x)  w = Gather(t, last) }"""
    constants = {"low": np.array(-8, np.int64), "high": np.array(7, np.int64), "t": drawn(9, 4)}
    feeds = {"x": drawn(3, 8), "i": np.random.default_rng(0).integers(-20, 20, (3, 8))}
    plan = compare(modelled(graph, constants), feeds)
    assert [step.kernel for step in plan.steps].count("gather_rows") == 3


def test_indices_that_may_be_out_of_bounds() -> None:
    graph = "(float[3, 8] x, int64[3, 8] i) => (float[3, 8] y) { c = Abs(i)  y = GatherElements<axis=1>(x, c) }"
    with pytest.raises(UnsupportedModelError, match=r"may be out of bounds: 0 to 16777216, of 8 elements"):
        compare(modelled(graph), {"x": drawn(3, 8), "i": picked((3, 8), 8)})


def test_an_index_out_of_bounds_is_named() -> None:
    graph = "(float[3, 8] x, int64[3, 2] i) => (float[3, 2] y) { y = GatherElements<axis=1>(x, i) }"
    with pytest.raises(InputError, match=r"input 'i' holds 8, and GatherElements .* one of 8 elements"):
        compare(modelled(graph), {"x": drawn(3, 8), "i": np.full((3, 2), 8)})


def grid(*axes: Array) -> Array:
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1)


GRIDS = {
    "all of it": grid(np.arange(4), np.arange(5)),
    "turned": grid(np.arange(5), np.arange(4))[..., ::-1],
    "a part": grid(np.arange(1, 3), np.arange(2, 5)),
    "spread": np.broadcast_to(grid(np.arange(4), np.arange(5))[:, None, None], (4, 3, 1, 5, 2)),
    "one row": grid(np.array([2]), np.arange(5)),
}


@pytest.mark.parametrize("name", GRIDS)
def test_grids_are_moves(name: str) -> None:
    indices = np.ascontiguousarray(GRIDS[name]).astype(np.int64)
    dims = ", ".join(map(str, (*indices.shape[:-1], 3)))
    graph = f"(float[4, 5, 3] x) => (float[{dims}] y) {{ r = Neg(x)  y = GatherND(r, i) }}"
    plan = compare(modelled(graph, {"i": indices}), {"x": drawn(4, 5, 3)})
    assert "gather_rows" not in [step.kernel for step in plan.steps]


@pytest.mark.parametrize("alike", [False, True])
def test_a_line_of_a_constant(alike: bool) -> None:
    """Token types of RoBERTa: a buffer of zeros, looked up by computed positions."""
    line = np.zeros(6, np.int64) if alike else np.arange(6)[::-1].copy()
    graph = """(int64[N, 5] i) => (float[N, 5, 4] y) {
        e = Equal(i, one)  n = Cast<to=7>(e)  p = CumSum(n, one)
        t = GatherElements<axis=1>(buffer, p)  y = Gather(table, t) }"""
    constants = {"one": np.array(1, np.int64), "buffer": np.broadcast_to(line, (3, 6)), "table": drawn(6, 4)}
    compare(modelled(graph, constants), {"i": np.random.default_rng(0).integers(0, 3, (3, 5))})
