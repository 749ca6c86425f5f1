"""Every stored tensor of a plan against onnxruntime's, in one pass that holds no more than the values alive.

Each step is run alone and twice: isolated, on onnxruntime's values of what it reads, and cumulative, on our own. Its
tolerance starts from how far these differ from onnxruntime's, so that a step is only ever blamed for itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import OptionError
from trnrt.planner.parts.partition import make_partition
from trnrt.planner.plan import Plan
from trnrt.session import InferenceSession
from trnrt.text import names_text, quote
from trnrt.validate.bundle import Material, write_bundle
from trnrt.validate.distances import Distance
from trnrt.validate.running import check_rows
from trnrt.validate.walking import Compared, Unit, Walk, for_plan

Array = NDArray[Any]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LayerComparison:
    """A step against onnxruntime. ``value`` is what its result is in the graph, ``length`` the longest sum in it.

    A tensor that is none of the graph's values (``value`` is empty) has no reference: ``isolated`` is None, and
    ``cumulative`` compares the step's two runs without a verdict. The step that makes the node's value of it is held to
    account for both.
    """

    step: str
    kernel: str
    nodes: tuple[str, ...]
    value: str
    shape: tuple[int, ...]
    length: int
    isolated: Distance | None
    cumulative: Distance
    passed: bool


@dataclass(frozen=True)
class LayersReport:
    """All steps in order. ``first_failure`` is the first one that leaves its tolerance, ``bundle`` what was written."""

    passed: bool
    rows: int
    layers: tuple[LayerComparison, ...]
    first_failure: LayerComparison | None
    bundle: tuple[Path, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class BundleRequest:
    """Where to write the bundle, and of which step or node (None: the first that fails)."""

    directory: Path
    step: str | None = None


def validate_layers(
    session: InferenceSession,
    feeds: Mapping[str, Array],
    *,
    plan: Plan | None = None,
    bundle: BundleRequest | None = None,
    progress: Progress | None = None,
) -> LayersReport:
    """Compare every step; ``plan`` instead of the session's own, ``progress(done, all, step)`` before each.

    The first rows of ``feeds`` are taken, as many as the session runs at a time; the last row fills up its batch.

    Raises:
        OptionError: if the bundle is to be of a step or node that does not exist.
    """
    check_rows(session, feeds)
    arrays, notes = _first_batch(session, feeds)
    walk = _walk(session, arrays, plan)
    position = None if bundle is None or bundle.step is None else _position(walk, bundle.step)
    layers: list[LayerComparison] = []
    written: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="trnrt-layers-") as directory:
        for k, unit in enumerate(walk.units):
            if progress is not None:
                progress(k, len(walk.units), unit.name)
            if unit.step is None:
                walk.cross(unit)
            else:
                compared = walk.compare(unit, Path(directory))
                layers.append(_layer(unit, compared))
                is_wanted = k == position if position is not None else not layers[-1].passed and not written
                if bundle is not None and is_wanted:
                    written += write_bundle(bundle.directory, _material(session, walk, unit, compared))
            walk.forget(k)
    first = next((layer for layer in layers if not layer.passed), None)
    if bundle is not None and not written:
        notes.append("no step leaves its tolerance: no bundle is written; --bundle-step NAME writes one of any step")
    rows = next((a.shape[0] for a in arrays.values() if a.ndim and session.model.batch is not None), 1)
    return LayersReport(first is None, rows, tuple(layers), first, tuple(written), tuple(notes))


def _walk(session: InferenceSession, arrays: Mapping[str, Array], plan: Plan | None) -> Walk:
    model = session.model
    partition = make_partition(
        model,
        {name: array.shape for name, array in arrays.items()},
        session.options,
        {name: arrays[name] for name in model.parameters},
    )
    return Walk(model, partition if plan is None else for_plan(partition, plan), session.runner, arrays)


def _first_batch(session: InferenceSession, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """What one run of the plan takes, and what to tell about the rest."""
    batch = session.model.batch
    arrays = {info.name: np.asarray(feeds[info.name]) for info in session.model.inputs}
    data = [name for name, array in arrays.items() if array.ndim and name not in session.model.parameters]
    if not data or batch is None:
        return arrays, []
    rows = arrays[data[0]].shape[0]
    buckets = (batch,) if isinstance(batch, int) else session.buckets
    taken = next((size for size in buckets if size >= rows), buckets[-1])
    if taken == rows:
        return arrays, []
    for name in data:
        part = arrays[name][:taken]
        arrays[name] = np.concatenate([part, part[-1:].repeat(taken - len(part), 0)])
    told = f"of the {rows} rows" if taken < rows else f"with the last of {rows} rows repeated"
    return arrays, [f"layers are compared on one batch of {taken}, {told}"]


def _position(walk: Walk, wanted: str) -> int:
    """The number of the unit that is called so, or makes a value with a node that is."""
    named = [(k, unit) for k, unit in enumerate(walk.units) if unit.step is not None and unit.groups]
    for k, unit in named:
        if unit.name == wanted:
            return k
    for k, unit in named:
        if wanted in unit.nodes:
            return k
    known = names_text([unit.name for _, unit in named])
    raise OptionError(f"--bundle-step: no step or node is called {quote(wanted)}", hint=f"steps: {known}")


def _layer(unit: Unit, compared: Compared) -> LayerComparison:
    step = unit.step
    assert step is not None
    return LayerComparison(
        step=step.name,
        kernel=step.kernel,
        nodes=unit.nodes,
        value=step.holds if unit.groups else "",
        shape=step.shape if compared.expected is None else compared.expected.shape,
        length=compared.length,
        isolated=compared.isolated,
        cumulative=compared.cumulative,
        passed=compared.isolated is None or (compared.isolated.passed and compared.cumulative.passed),
    )


def _material(session: InferenceSession, walk: Walk, unit: Unit, compared: Compared) -> Material:
    assert compared.expected is not None and compared.tolerance is not None
    return Material(
        name=unit.name,
        model=walk.groups.model,
        group=unit.groups[0],
        inputs=compared.inputs,
        expected=compared.expected,
        tolerance=compared.tolerance,
        target=session.target,
        dtype=session.dtype,
        backend=session.backend,
    )
