"""Compare every stored tensor of a plan with onnxruntime's, in one pass that holds only the live values.

Each step runs alone, and twice: isolated, on onnxruntime's values of its inputs, and cumulative, on our own. Its
tolerance includes the errors of these inputs, so that a step only fails for its own errors.
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
from trnrt.planner.parts.partitioning import make_partition
from trnrt.planner.plan import Plan
from trnrt.running.rows import count_rows, pad_rows
from trnrt.session import InferenceSession
from trnrt.text import names_text, quote
from trnrt.validate.bundle import write_bundle
from trnrt.validate.distances import Distance
from trnrt.validate.running import check_rows
from trnrt.validate.walking import Compared, Unit, Walk, replace_plan

Array = NDArray[Any]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LayerComparison:
    """A step against onnxruntime. ``value``: the graph's name for its result; ``length``: of the longest sum in it.

    A tensor that is not a value of the graph (``value`` is "") has no reference: ``isolated`` is None, and
    ``cumulative`` compares the step's two runs without a verdict. The step that makes a node's value from the tensor
    answers for both steps.
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
    """All steps in order. ``first_failure``: the first step beyond its tolerance; ``bundle``: the written files."""

    passed: bool
    rows: int
    layers: tuple[LayerComparison, ...]
    first_failure: LayerComparison | None
    bundle: tuple[Path, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class BundleRequest:
    """Where to write the bundle, and for which step or node; None is the first that fails."""

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
    """Compare every step, of ``plan`` or the session's own; ``progress(done, all, step)`` is called before each.

    Takes the first rows of ``feeds``, as many as the session runs at a time; copies of the last row fill up the batch.

    Raises:
        OptionError: if the bundle's step or node does not exist.
    """
    check_rows(session, feeds)
    if session.options.float8 is not None:
        raise OptionError(
            f"--layers compares steps by the bounds of 16 bits; those of {session.dtype} have none",
            hint="leave --layers out, or use --dtype bfloat16",
        )
    arrays, notes = _first_batch(session, feeds)
    walk = _start_walk(session, arrays, plan)
    position = None if bundle is None or bundle.step is None else _position(walk, bundle.step)
    layers: list[LayerComparison] = []
    written: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="trnrt-layers-") as directory:
        for k, unit in enumerate(walk.units):
            if progress is not None:
                progress(k, len(walk.units), unit.name)
            if unit.step is None:
                walk.run_unit(unit)
            else:
                compared = walk.compare(unit, Path(directory))
                layers.append(_layer(unit, compared))
                is_wanted = k == position if position is not None else not layers[-1].passed and not written
                if bundle is not None and is_wanted:
                    written += write_bundle(bundle.directory, session, walk.groups.model, unit, compared)
            walk.forget(k)
    first = next((layer for layer in layers if not layer.passed), None)
    if bundle is not None and not written:
        notes.append("no step leaves its tolerance: no bundle is written; --bundle-step NAME writes one of any step")
    rows = count_rows(session.model, arrays)
    return LayersReport(first is None, rows, tuple(layers), first, tuple(written), tuple(notes))


def _start_walk(session: InferenceSession, arrays: Mapping[str, Array], plan: Plan | None) -> Walk:
    model = session.model
    partition = make_partition(
        model,
        {name: array.shape for name, array in arrays.items()},
        session.options,
        {name: arrays[name] for name in model.parameters},
    )
    return Walk(model, partition if plan is None else replace_plan(partition, plan), session.runner, arrays)


def _first_batch(session: InferenceSession, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """The inputs of one run of the plan, and a note if they differ from the feeds."""
    batch = session.model.batch
    arrays = {info.name: np.asarray(feeds[info.name]) for info in session.model.inputs}
    arrays = session.fit_length(arrays).arrays
    data = [name for name, array in arrays.items() if array.ndim and name not in session.model.parameters]
    if not data or batch is None:
        return arrays, []
    rows = arrays[data[0]].shape[0]
    buckets = (batch,) if isinstance(batch, int) else session.buckets
    taken = next((size for size in buckets if size >= rows), buckets[-1])
    if taken == rows:
        return arrays, []
    arrays |= {name: pad_rows(arrays[name][:taken], taken) for name in data}
    which = f"of the {rows} rows" if taken < rows else f"with the last of {rows} rows repeated"
    return arrays, [f"layers are compared on one batch of {taken}, {which}"]


def _position(walk: Walk, wanted: str) -> int:
    """The position of the unit with this name, or with a node of this name."""
    named = [(k, unit) for k, unit in enumerate(walk.units) if unit.step is not None and unit.groups]
    found = [k for k, unit in named if unit.name == wanted] or [k for k, unit in named if wanted in unit.nodes]
    if found:
        return found[0]
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
