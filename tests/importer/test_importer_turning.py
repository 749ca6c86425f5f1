"""Regions that are turned where a value and its transpose are both read: each reader keeps its own."""

from __future__ import annotations

import pytest
from planning import compare, drawn, modelled

GRAPHS = {
    "an edge is another edge transposed": "t = Transpose(x)  a = Sub(x, t)  y = Transpose(a)",
    "an edge is a value of the region transposed": "t = Transpose(x)  r = Relu(t)  z = Transpose(r)  y = Sub(t, z)",
    "both": "t = Transpose(x)  r = Relu(t)  z = Transpose(r)  a = Sub(t, z)  b = Sub(a, x)  y = Transpose(b)",
}


@pytest.mark.parametrize("nodes", GRAPHS.values(), ids=GRAPHS)
def test_a_value_and_its_transpose_are_not_the_same(nodes: str) -> None:
    """Square tensors: shapes tell nothing of their order."""
    model = modelled(f"(float[3,3] x) => (float[3,3] y) {{ {nodes} }}")
    compare(model, {"x": drawn(3, 3)})
