"""Einsum against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from planning import Array, compare, drawn

EQUATIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ij,jk->ik": ((3, 4), (4, 5)),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "bhqd,bhkd->bhqk": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bhqk,bkhd->bqhd": ((2, 3, 4, 6), (2, 6, 3, 5)),
    "...ij,...jk->...ik": ((2, 3, 4, 5), (2, 3, 5, 6)),
    "i,j->ij": ((3,), (4,)),
    "i,i": ((6,), (6,)),
    "ij->ji": ((3, 4),),
    "ij->": ((3, 4),),
    "ijk->j": ((3, 4, 5),),
    "bchw,oc->bohw": ((2, 3, 4, 5), (6, 3)),
    "ab,bc,cd->ad": ((3, 4), (4, 5), (5, 6)),
    "bij,bj->bi": ((2, 3, 4), (2, 4)),
    "bi,bi->b": ((5, 7), (5, 7)),
    "bi,bi->bi": ((5, 7), (5, 7)),
    "ii->i": ((5, 5),),
    "...ii->...i": ((3, 5, 5),),
    "ii": ((5, 5),),
    "abcd,abed->ace": ((2, 3, 4, 5), (2, 3, 6, 5)),
    " b i j , k j -> b k i ": ((2, 3, 4), (5, 4)),
    "ij": ((3, 4),),
    "ji": ((3, 4),),
}


@pytest.mark.parametrize("given", ["inputs", "constant"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_equations(equation: str, given: str) -> None:
    """Also of a constant, which becomes a weight; NaN on a matrix doesn't reach its diagonal."""
    shapes = EQUATIONS[equation]
    arrays: list[Array] = [drawn(*shape, seed=k) for k, shape in enumerate(shapes)]
    if "ii" in equation:
        arrays[0][..., 0, 1] = np.nan
    names = [f"x{k}" for k in range(len(arrays))]
    inputs = names[:-1] if given == "constant" and len(names) > 1 else names
    made = np.einsum(equation.replace(" ", ""), *arrays)
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], equation=equation)],
        "sums",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in zip(inputs, arrays, strict=False)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, made.shape)],
        [helper.make_tensor(n, TensorProto.FLOAT, a.shape, a.reshape(-1)) for n, a in zip(names, arrays, strict=True)][
            len(inputs) :
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compare(model, dict(zip(inputs, arrays, strict=False)))


def test_rows_stay_independent() -> None:
    """A batch of any size, as attention written by Einsum."""
    from planning import modelled

    from trnrt.importer import import_model

    graph = """(float[N, 4, 6] q, float[N, 5, 6] k) => (float[N, 4, 5] y) {
        y = Einsum<equation = "bqd,bkd->bqk">(q, k) }"""
    model = modelled(graph)
    assert import_model(model.SerializeToString()).batch == "N"
    compare(model, {"q": drawn(3, 4, 6), "k": drawn(3, 5, 6)})
