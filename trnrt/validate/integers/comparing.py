"""Compare a session's integers with their meaning, and tell flips at ties from mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trnrt.running.rows import join_rows, pad_rows
from trnrt.session import InferenceSession
from trnrt.validate.exposing import load, open_exposed
from trnrt.validate.integers.evaluating import Evaluator, Rounded

Array = NDArray[Any]
TIE_ULPS = 16
"""How far from a tie a float may be that rounds to either side, in ulps of its tensor's largest number before rounding:
what OpenCL allows its least exact functions (see docs/validation.md). Integer layers have 0: they are exact."""

ROWS = 4
"""Rows of an open batch that are evaluated at once: the columns of a convolution are held in float64."""


@dataclass(frozen=True)
class LayerDifference:
    """A quantised tensor, recomputed from trnrt's own values of the tensors before it.

    ``elements``: how many differ, by at most ``steps``; ``ulps``: the largest distance of one of these from a tie.
    ``exact``: True for integer layers, in which none may differ.
    """

    value: str
    node: str
    elements: int
    size: int
    steps: int
    ulps: float
    exact: bool
    passed: bool


@dataclass(frozen=True)
class IntegersReport:
    """``layers``: the quantised tensors that differ, in order, of ``compared`` ones (none if the outputs are
    right). ``reference_elements``: elements of outputs in which onnxruntime differs from the integer
    meaning beyond float32's rounding; ``own_elements``: in which trnrt does. ``reference``: onnxruntime's version, its
    settings, and the CPU's instructions for 8-bit products.
    """

    compared: int
    layers: tuple[LayerDifference, ...]
    own_elements: int
    reference_elements: int
    reference: str

    @property
    def is_correct(self) -> bool:
        """True if every layer is exact, or differs at ties only."""
        return all(layer.passed for layer in self.layers)


def compute_truth(session: InferenceSession, feeds: Mapping[str, Array]) -> list[Array]:
    """The model's outputs by the integer meaning."""
    evaluator, parts = Evaluator(load(session)), []
    for part, kept in _slice_rows(session, evaluator.model, feeds):
        found = evaluator.run(part) | part
        parts.append([_keep_rows(found[info.name], kept) for info in evaluator.model.graph.output])
    return [join_rows(column) for column in zip(*parts, strict=True)]


def compare_layers(
    session: InferenceSession, feeds: Mapping[str, Array]
) -> tuple[int, tuple[LayerDifference, ...], list[Array]]:
    """Run the model here with every quantised tensor as an output, and each layer's meaning on what it was given here.

    A mistake therefore shows in its own layer, and flips that descend from an earlier one don't show at all. Returns
    the number of tensors, those that differ, and the model's outputs by the meaning after trnrt's own integers.
    """
    proto = load(session)
    evaluator, differences, parts = Evaluator(proto), dict[str, LayerDifference](), []
    names: list[str] = []
    opened = None
    for part, kept in _slice_rows(session, proto, feeds):
        if opened is None:
            kinds = evaluator.run(part)
            held = _constant_values(proto)
            names = [name for name in evaluator.rounded if name not in held]
            opened = open_exposed(session, proto, {name: kinds[name] for name in names})
        own = dict(zip(names, map(np.asarray, opened.run(names, part)), strict=True))
        found = evaluator.run(part, own)
        for name in names:
            made = _compare_layer(name, evaluator.rounded[name], found[name], own[name])
            differences[name] = made if name not in differences else _join(differences[name], made)
        found |= part
        parts.append([_keep_rows(own.get(o.name, found[o.name]), kept) for o in proto.graph.output])
    layers = tuple(layer for layer in differences.values() if layer.elements)
    return len(names), layers, [join_rows(column) for column in zip(*parts, strict=True)]


def describe_reference() -> str:
    """onnxruntime's version and settings, and what this CPU multiplies 8-bit integers with."""
    import onnxruntime

    try:
        flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    except OSError:
        flags = set()
    known = [name for name in ("amx_int8", "avx512_vnni", "avx_vnni", "avx2", "asimddp") if name in flags]
    exact = bool({"amx_int8", "avx512_vnni", "avx_vnni", "asimddp"} & flags)
    saturating = "" if exact or not known else ", whose sums of two 8-bit products saturate at 16 bits"
    return (
        f"onnxruntime {onnxruntime.__version__}, all optimisations but of QDQ groups, CPU with "
        f"{', '.join(known) or 'no known 8-bit instructions'}{saturating}"
    )


def _slice_rows(
    session: InferenceSession, model: onnx.ModelProto, feeds: Mapping[str, Array]
) -> Iterator[tuple[dict[str, Array], int | None]]:
    """Slices of rows, and how many of each count: the model's own batch, or a few rows where rows are independent."""
    batch = session.model.batch
    whole = {n: a for n, a in feeds.items() if n in session.model.parameters or not a.ndim}
    data = {n: a for n, a in feeds.items() if n not in whole}
    dynamic = any(node.op_type.startswith("DynamicQuantize") for node in model.graph.node)
    if batch is None or not data or (isinstance(batch, str) and dynamic):
        yield dict(feeds), None
        return
    size = batch if isinstance(batch, int) else ROWS
    rows = len(next(iter(data.values())))
    for start in range(0, rows, size):
        part = {n: a[start : start + size] for n, a in data.items()}
        kept = min(size, rows - start)
        yield whole | ({n: pad_rows(a, size) for n, a in part.items()} if isinstance(batch, int) else part), kept


def _keep_rows(array: Array, kept: int | None) -> Array:
    return array if kept is None or not array.ndim else array[:kept]


def _join(one: LayerDifference, other: LayerDifference) -> LayerDifference:
    """The differences of two slices of rows."""
    return replace(
        one,
        elements=one.elements + other.elements,
        size=one.size + other.size,
        steps=max(one.steps, other.steps),
        ulps=max(one.ulps, other.ulps),
        passed=one.passed and other.passed,
    )


def _constant_values(model: onnx.ModelProto) -> set[str]:
    """Values that follow from constants alone: no session computes them."""
    known = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if all(name in known for name in node.input if name):
            known.update(node.output)
    return known


def _compare_layer(name: str, rounded: Rounded, truth: Array, own: Array) -> LayerDifference:
    steps = np.abs(truth.astype(np.int64) - own.astype(np.int64))
    before = np.broadcast_to(rounded.before, truth.shape).astype(np.float64)
    differ = steps > 0
    ulp = float(np.spacing(np.float32(np.abs(before).max(initial=1.0))))
    ulps = float((np.abs(np.abs(before - np.floor(before)) - 0.5)[differ] / ulp).max(initial=0.0))
    most = int(steps.max(initial=0))
    passed = not differ.any() or (not rounded.is_exact and most <= 1 and ulps <= TIE_ULPS)
    return LayerDifference(name, rounded.node, int(differ.sum()), truth.size, most, ulps, rounded.is_exact, passed)
