"""Every hint of a refusal is tried: the model is refused with it, and runs once the hint is followed."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from hint_sites import REFUSALS, find_sites
from hinted import Hinted
from hinted_operators import ELEMENTWISE, ENCODERS, INDICES, LAYERS, ROWS_AND_IMAGES
from hinted_refused import REFUSED
from hinted_wrong import CONTRADICTIONS, WRONGLY_MADE
from numpy.typing import NDArray
from planning import modelled, onnxruntimes

import trnrt
from trnrt.errors import Blocker, ModelFileError, UnsupportedModelError
from trnrt.importer import import_model, sizes
from trnrt.operators.record import Refusal, records
from trnrt.planner import PlanOptions
from trnrt.planner.lowering.blocked import FALLBACK, WRONG
from trnrt.planner.parts import partitioning
from trnrt.planner.parts.partitioning import make_partition

Array = NDArray[Any]
TABLES = (ELEMENTWISE, ENCODERS, INDICES, LAYERS, ROWS_AND_IMAGES, REFUSED, WRONGLY_MADE)
HINTED = {name: hinted for table in TABLES for name, hinted in table.items()}
_FLAG = re.compile(r"use --dtype (\w+)(, which halves them)?")


@cache
def blockers_of(name: str) -> tuple[Blocker, ...]:
    """Why the model is refused."""
    hinted = HINTED[name]
    model = hinted.refused()
    imported = import_model(model.SerializeToString(), name="m")
    shapes = {
        info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in model.graph.input
        if info.name in {one.name for one in imported.inputs}
    }
    values = {name: hinted.more[name] for name in imported.parameters}
    with pytest.raises(UnsupportedModelError) as caught:
        make_partition(imported, shapes, PlanOptions("trn2", hinted.dtype, effort=0), values)
    return tuple(caught.value.blockers)


def feeds_of(model: onnx.ModelProto, hinted: Hinted) -> dict[str, Array]:
    """The inputs of the trial, and drawn ones."""
    found = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        drawn = np.random.default_rng(1).standard_normal([dim.dim_value for dim in kind.shape.dim])
        found[info.name] = hinted.more.get(
            info.name, drawn.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        )
    return found


def run_both(model: onnx.ModelProto, hinted: Hinted, **options: Any) -> None:
    """Run a model with trnrt and onnxruntime: they answer the same."""
    feeds = feeds_of(model, hinted)
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False, **options)
    loose = 1e-5 if options.get("dtype", "float32") == "float32" else 5e-2
    for mine, theirs in zip(session.run(None, feeds), onnxruntimes(model, feeds), strict=True):
        if getattr(mine, "dtype", np.dtype(object)).kind == "f":
            np.testing.assert_allclose(mine, theirs, rtol=loose, atol=loose)
        else:  # integers, labels, or a list of dicts
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", HINTED)
def test_it_is_refused_with_the_hint(name: str) -> None:
    assert HINTED[name].hint in [blocker.hint for blocker in blockers_of(name)], blockers_of(name)


@pytest.mark.parametrize("name", HINTED)
def test_following_the_hint_helps(name: str) -> None:
    """Each of its parts: the fallback, another dtype, or another model."""
    hinted, followed = HINTED[name], 0
    parts = hinted.hint.split("; ")
    if FALLBACK in parts:
        run_both(hinted.refused(), hinted, fallback="onnxruntime", dtype=hinted.dtype)
        followed += 1
    if flag := next(filter(None, map(_FLAG.fullmatch, parts)), None):
        run_both(hinted.refused(), hinted, dtype=flag[1])
        followed += 1
    if hinted.hint == WRONG:
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            onnxruntimes(hinted.refused(), feeds_of(hinted.refused(), hinted))
    elif hinted.after:
        run_both(hinted.mended(), hinted, dtype=hinted.dtype)
    else:
        assert followed == len(parts), f"nobody follows a part of: {hinted.hint}"


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused_when_it_is_read(name: str) -> None:
    """So the lowering's own check of it is never reached; and onnxruntime refuses it, too."""
    model = CONTRADICTIONS[name].refused()
    feeds = feeds_of(model, CONTRADICTIONS[name])
    with pytest.raises((ModelFileError, UnsupportedModelError)):
        trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, feeds)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntimes(model, feeds)


def test_names_are_unique() -> None:
    assert len(HINTED) == sum(map(len, TABLES))


# ---- hints that need more than a model


def test_one_number_for_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hint: export the model with its weights. The real limit is a GiB."""
    monkeypatch.setattr(sizes, "MOST_FILLED", 1000)
    text = "(float[1] x) => (float[1] y) { c = ConstantOfShape(s)  m = Mul(x, c)  y = ReduceSum(m) }"
    with pytest.raises(UnsupportedModelError) as caught:
        run(modelled(text, {"s": np.array([500])}), x=[1])
    (blocker,) = caught.value.blockers
    assert blocker.reason.startswith("one value repeated to ") and blocker.hint == "export the model with its weights"
    weights = np.arange(500, dtype=np.float32) / 500
    run(modelled("(float[1] x) => (float[1] y) { m = Mul(x, c)  y = ReduceSum(m) }", {"c": weights}), x=[1])


@pytest.mark.parametrize("place", ["input", "output"])
def test_a_value_that_is_no_tensor(place: str) -> None:
    """Its hint: export the model without it."""
    text = {
        "input": "(float[1] x, optional(float[1]) z) => (float[1] y) { y = Neg(x) }",
        "output": "(float[1] x) => (float[1] y, optional(float[1]) z) { y = Neg(x)  z = Optional(y) }",
    }
    with pytest.raises(UnsupportedModelError) as caught:
        run(modelled(text[place], opset=18), "onnxruntime", x=[1])
    (blocker,) = caught.value.blockers
    assert (blocker.op, blocker.reason) == (place, "its type is optional(float32), not a tensor")
    assert blocker.hint == "export the model without it"
    run(modelled("(float[1] x) => (float[1] y) { y = Neg(x) }"), x=[1])


def test_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hint: run the whole model with onnxruntime."""
    monkeypatch.setattr(partitioning, "MOST_PARTS", 4)
    nodes = "  ".join(f"a{k + 1} = {'Exp' if k % 2 else 'Hardmax'}(a{k})" for k in range(6))
    model = modelled(f"(float[2,4] a0) => (float[2,4] a6) {{ {nodes} }}")
    with pytest.raises(UnsupportedModelError) as caught:
        run(model, "onnxruntime", a0=np.ones((2, 4)))
    assert "run the whole model with onnxruntime" in [blocker.hint for blocker in caught.value.blockers]
    onnxruntimes(model, {"a0": np.ones((2, 4), np.float32)})


def run(model: onnx.ModelProto, fallback: str | None = None, **inputs: Any) -> None:
    """Run a model: it answers as onnxruntime does."""
    feeds = {name: np.array(value, np.float32) for name, value in inputs.items()}
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False, fallback=fallback)
    for mine, theirs in zip(session.run(None, feeds), onnxruntimes(model, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


# ---- the source


GUARDS = {
    "both sides are constants": "such nodes are folded",
    "all its inputs are constants, too large to be computed when the model is read": "such nodes are folded",
    "16385 separate transfers; a step makes 16384 at most": "a node of as many inputs is refused when it is read",
    "broadcast=1 with an axis, as before opset 7": "written as of opset 7 wherever the shapes are known",
    "it would be cut into 1001 parts, each a program of its own; up to 1000 are made": "test_many_parts",
    "one value repeated to 2 GiB, 2 GiB with others before it; trnrt takes up to 1 GiB of such constants": (
        "test_one_number_for_all_weights"
    ),
    "its type is optional(float32), not a tensor": "test_a_value_that_is_no_tensor",
}
"""Reasons that no model is known to reach, or that another test reaches."""


def test_every_hint_of_the_source_is_tried() -> None:
    tried = [(blocker.reason, blocker.hint) for name in HINTED for blocker in blockers_of(name)]
    folders = ("importer", "operators", "planner", "running")
    sites = [site for folder in folders for site in find_sites(folder, REFUSALS)]
    assert len(sites) > 100
    tried += [(hinted.reason, WRONG) for hinted in CONTRADICTIONS.values()]
    sites = [site for site in sites if not any(re.fullmatch(site.message, reason) for reason in GUARDS)]
    untried = [site for site in sites if not any(site.gives(*one) for one in tried)]
    assert not untried, "\n".join(f"{s.place} {s.kind} {s.message} -> {s.hint}" for s in untried)


def test_every_refusal_of_the_table_is_tried() -> None:
    """Hints of operators without a lowering."""
    tried = {blocker.hint for name in HINTED for blocker in blockers_of(name)}
    hints = {record.lowering.hint for record in records().values() if isinstance(record.lowering, Refusal)}
    assert hints <= tried
