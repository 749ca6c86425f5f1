"""CumSum and Trilu against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from planning import Array, compare, drawn, modelled


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_sums_along_any_axis(axis: int, exclusive: int, reverse: int) -> None:
    graph = f"""(float[3, 4, 50] x) => (float[3, 4, 50] y) {{
        r = Neg(x)  c = CumSum<exclusive={exclusive}, reverse={reverse}>(r, a)  y = Add(c, x) }}"""
    compare(modelled(graph, {"a": np.array(axis, np.int64)}), {"x": drawn(3, 4, 50)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_positions_of_a_mask(dtype: str) -> None:
    """As RoBERTa counts tokens that are not padding."""
    graph = """(int64[N, 12] i) => (int64[N, 12] y) {
        e = Equal(i, one)  n = Not(e)  m = Cast<to=6>(n)  c = CumSum(m, axis)  p = Mul(c, m)
        l = Cast<to=7>(p)  y = Add(l, one) }"""
    constants: dict[str, Array] = {"one": np.array(1, np.int64), "axis": np.array(1, np.int32)}
    numbers = np.random.default_rng(0).integers(0, 4, (5, 12))
    compare(modelled(graph, constants), {"i": numbers}, dtype=dtype)


@pytest.mark.parametrize("kind", ["float", "int64", "bool"])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -9, -1, 0, 2, 9])
def test_triangles(kind: str, upper: int, k: int | None) -> None:
    graph = f"({kind}[2, 4, 6] x) => ({kind}[2, 4, 6] y) {{ y = Trilu<upper={upper}>(x{'' if k is None else ', k'}) }}"
    x = np.round(4 * drawn(2, 4, 6))
    dtype = {"float": np.float32, "bool": bool}.get(kind, kind)
    compare(modelled(graph, {"k": np.array(k, np.int64)} if k is not None else None), {"x": x.astype(dtype)})
