"""The JSON document of each verb: the keys that other programs may rely on.

The documents are strict JSON: NaN and infinity become null, and an output with such data has ``"non_finite": true``.
"""

from __future__ import annotations

import json
import linecache
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from trnrt.errors import Blocker
    from trnrt.importer import ImportedModel
    from trnrt.nki.breakdown import PlanCost, StepCost
    from trnrt.nki.checking import CheckedCall, Report
    from trnrt.nki.machine.timing import Cause
    from trnrt.nki.profiling import Profile
    from trnrt.nki.sim.subset_source import Finding
    from trnrt.planner.parts.partition import Part, Partition
    from trnrt.planner.plan import NodeReport
    from trnrt.report.top import Choice, Top
    from trnrt.report.verdict import Tried
    from trnrt.session import InferenceSession
    from trnrt.validate import LayersReport, ValidationReport

SCHEMA_VERSION = 1

SMALL = 1024
"""The most elements of an output whose data is included without ``--full``."""

Document = dict[str, Any]


def as_text(document: Document) -> str:
    """The document as JSON text in ASCII, with null for NaN and infinity. ``timing``: the overlay in use, if any."""
    from trnrt.nki.machine.targets import overlay_in_use

    overlay = overlay_in_use()
    document = document if overlay is None else document | {"timing": overlay.describe()}
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def header(session: InferenceSession) -> Document:
    """The first keys of every document about a session."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": session.name,
        "backend": session.backend,
        "target": session.target,
        "dtype": session.dtype,
    }


def partition_header(partition: Partition) -> Document:
    """The first keys of every document about a planned model."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": partition.name,
        "target": partition.target,
        "dtype": partition.dtype,
        "batch": partition.batch,
    }


def run_document(
    session: InferenceSession,
    outputs: Mapping[str, npt.NDArray[Any]],
    top: Top | None,
    *,
    wall_ms: float,
    full: bool,
    notes: Iterable[str],
) -> Document:
    """``run``: the outputs by name, with their data if they have up to ``SMALL`` elements or with ``full``.

    ``top`` is null without ``--top``, else a list of rows, each a list of ``{class, number, label}``, best
    first; ``top_output`` names the output, ``top_softmax`` says whether softmax was applied.
    """
    return header(session) | {
        "wall_ms": wall_ms,
        **_predicted_document(session),
        "parts": parts_of(session),
        "outputs": {name: _output(array, full) for name, array in outputs.items()},
        "top": None if top is None else [[_choice(choice) for choice in row] for row in top.rows],
        "top_output": None if top is None else top.output,
        "top_softmax": None if top is None else top.softmax,
        "notes": list(notes),
    }


def validate_document(
    session: InferenceSession, report: ValidationReport, notes: Iterable[str], layers: LayersReport | None = None
) -> Document:
    """``validate``: an error that is not finite is null, and so is a tolerance that does not exist.

    ``layers`` is null without ``--layers``, unless 16-bit outputs are judged by their steps; ``passed`` covers outputs
    and layers. ``tolerances`` is "measured", "given" or "default"; ``atol`` is the largest one.
    """
    outputs = [asdict(output) for output in report.outputs]
    compared = asdict(replace(report, steps=None, notes=())) | {"outputs": outputs}
    del compared["steps"]
    if report.integers is not None:
        compared["integers"]["passed"] = report.integers.is_correct
    compared["passed"] = report.passed and (layers is None or layers.passed)
    rest = _predicted_document(session) | {"parts": parts_of(session), "notes": list(notes)}
    return header(session) | compared | {"layers": None if layers is None else layers_document(layers)} | rest


def _predicted_document(session: InferenceSession) -> Document:
    """The last run's predicted latency with its range; null if there is none."""
    found = session.last_run.predicted
    if found is None:
        return dict.fromkeys(("predicted_us", "low_us", "high_us"))
    return {"predicted_us": found.us, "low_us": found.least_us, "high_us": found.most_us}


def layers_document(report: LayersReport) -> Document:
    """``validate --layers``: the steps in order; ``first_failure`` names a step, or is null.

    ``isolated`` and ``cumulative`` have the ``error`` and ``tolerance`` of the ``element`` with the largest ``ratio``.
    A tensor that is no value of the model has no tolerance, and its ``isolated`` is null.
    """
    first = report.first_failure
    return {
        "passed": report.passed,
        "rows": report.rows,
        "first_failure": None if first is None else first.step,
        "first_failure_nodes": [] if first is None else list(first.nodes),
        "steps": [asdict(layer) for layer in report.layers],
        "bundle": [str(path) for path in report.bundle],
    }


def parts_of(session: InferenceSession) -> list[Document]:
    """The parts of a session's last run."""
    partition = session.last_run.partition
    return [] if partition is None else [part_document(part) for part in partition.parts]


def part_document(part: Part) -> Document:
    """A part of a model: ``place`` is "core" or "cpu"; ``reasons`` says why each node is on the CPU.

    ``instructions`` of the kernel are ``unrolled`` and as ``compiled``, which has the body of its loop of ``trips``
    once; null for "cpu". ``to_host_bytes`` leave the device for a CPU part, ``to_device_bytes`` return,
    ``crossing_us`` is the cost; null for "core".
    """
    from trnrt.planner.parts.partition import CpuPart

    nodes = part.nodes if isinstance(part, CpuPart) else part.plan.nodes
    crossing = part.crossing if isinstance(part, CpuPart) else None
    return {
        "name": part.name,
        "place": "core" if crossing is None else "cpu",
        "nodes": [node.name for node in nodes],
        "reasons": {} if crossing is None else {node.name: node.reason for node in nodes},
        "inputs": list(part.inputs),
        "outputs": list(part.outputs),
        "instructions": None if isinstance(part, CpuPart) else asdict(part.plan.size),
        "to_host_bytes": None if crossing is None else crossing.to_host,
        "to_device_bytes": None if crossing is None else crossing.to_device,
        "crossing_us": None if crossing is None else crossing.predicted_us,
    }


def check_document(report: Report) -> Document:
    """``nki check``: an untraceable call has an ``error``, and no numbers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "file": report.file,
        "target": report.target,
        "nki": report.level.value,
        "findings": [_finding_document(finding) for finding in report.findings],
        "warnings": [_finding_document(warning) for warning in report.warnings],
        "calls": [asdict(call) for call in report.calls],
        "notes": report.notes,
    }


def _finding_document(finding: Finding) -> Document:
    """A finding with the stable code of its kind."""
    from trnrt.nki.findings import code_of

    return {"code": code_of(finding.rule)} | asdict(finding)


def profile_document(model: str, profile: Profile, tried: Sequence[Tried] = (), *, version: str) -> Document:
    """``profile``: the prediction for a model's kernel by this ``version`` of trnrt; ``--baseline`` reads it.
    ``tried``: see ``verdict_of``."""
    head = {"schema_version": SCHEMA_VERSION, "trnrt_version": version, "model": model}
    return head | prediction_document(profile, tried) | {"parts": [], "comparison": None, "against": None}


def parts_profile_document(
    partition: Partition, profiles: Mapping[str, Profile], notes: Iterable[str], *, version: str
) -> Document:
    """``profile`` of a model in parts: times are sums over the device's parts (``profiles``, by part) and the round
    trips, which are steps, too. Ends of ranges are the sums of their ends."""
    from trnrt.nki.machine.timing import add_ranges

    parts, steps = [], list[Document]()
    for part in partition.parts:
        document = part_document(part)
        if part.name in profiles:
            document |= prediction_document(profiles[part.name])
            steps += document["steps"]
        elif document["crossing_us"]:
            steps.append({"name": f"round trip of {part.name}", "time_us": document["crossing_us"]})
        parts.append(document)
    crossings = partition.crossings_us
    benchmark = add_ranges((profile.benchmark for profile in profiles.values()), crossings)
    profiler = add_ranges((profile.profiler for profile in profiles.values()), crossings)
    return partition_header(partition) | {
        "trnrt_version": version,
        "predicted_us": {"benchmark": benchmark.us, "profiler": profiler.us},
        "low_us": {"benchmark": benchmark.least_us, "profiler": profiler.least_us},
        "high_us": {"benchmark": benchmark.most_us, "profiler": profiler.most_us},
        "crossings_us": crossings,
        "steps": steps,
        "parts": parts,
        "notes": list(notes),
        "comparison": None,
        "against": None,
    }


def nki_profile_document(report: Report, profiles: Iterable[tuple[CheckedCall, Profile]], *, version: str) -> Document:
    """``nki profile``: the prediction for each call; ``failures`` has what could not be traced."""
    return {
        "schema_version": SCHEMA_VERSION,
        "trnrt_version": version,
        "file": report.file,
        "target": report.target,
        "nki": report.level.value,
        "calls": [call_document(call.kernel, call.arguments, profile) for call, profile in profiles],
        "failures": [_finding_document(failure) for failure in report.failures],
        "notes": report.notes,
        "comparison": None,
        "against": None,
    }


def call_document(kernel: str, arguments: str, profile: Profile) -> Document:
    """A call's prediction; ``kernel`` includes the cores."""
    return prediction_document(profile) | {"kernel": kernel, "arguments": arguments, "lines": line_documents(profile)}


def line_documents(profile: Profile) -> list[Document]:
    """The cost of each source line, with its ``code``, stripped."""
    return [asdict(use) | {"code": linecache.getline(use.file, use.line).strip()} for use in profile.lines]


def prediction_document(profile: Profile, tried: Sequence[Tried] = ()) -> Document:
    """A profile in microseconds, bytes, counts and shares of 1. Peaks are bytes per partition. ``tried``: see
    ``verdict_of``."""
    from trnrt.report.summary import summary_of
    from trnrt.report.verdict import verdict_of

    verdict = verdict_of(profile, tried)
    roofline = profile.roofline
    return {
        "kernel": profile.kernel,
        "target": profile.target,
        "dtype": profile.dtype,
        "batch": profile.batch,
        "cores": len(profile.cores),
        "compared": profile.compared,
        "predicted_us": asdict(profile.predicted_us),
        "low_us": asdict(profile.low_us),
        "high_us": asdict(profile.high_us),
        "causes": [_cause(cause) for cause in profile.causes],
        "mfu": profile.mfu,
        "mbu": profile.mbu,
        "flops": profile.flops,
        "hbm_bytes": profile.hbm_bytes,
        "hbm_read_bytes": profile.hbm_read_bytes,
        "hbm_write_bytes": profile.hbm_write_bytes,
        "dma_transfer_count": profile.dma_transfer_count,
        "dma_packets": profile.dma_packets,
        "instructions": profile.instructions,
        "instructions_compiled": profile.counts.compiled,
        "instructions_unrolled": profile.counts.unrolled,
        "engines": {name: asdict(use) for name, use in profile.engines.items()},
        "steps": [asdict(step) | {"nodes": list(step.nodes)} for step in profile.steps],
        "verdict": None if verdict is None else verdict.document,
        "bottleneck": None if profile.bottleneck is None else asdict(profile.bottleneck),
        "breakdown": asdict(profile.breakdown) | {"parts": [asdict(part) for part in profile.breakdown.parts]},
        "sbuf_peak_bytes": profile.sbuf_peak_bytes,
        "psum_peak_bytes": profile.psum_peak_bytes,
        "fits": profile.fits,
        "roofline": asdict(roofline) | {"attainable_tflops": roofline.attainable_tflops},
        "summary": summary_of(profile),
        "notes": list(profile.notes),
    }


def _cause(cause: Cause) -> Document:
    """A cause of uncertainty, with the benchmark's range due to it alone."""
    ends = {"low_us": cause.range.least_us, "high_us": cause.range.most_us}
    return {"name": cause.name, **ends, "source": cause.source, "pin": cause.pin or None}


def inspect_document(partition: Partition, batch: int | None, cost: PlanCost | None, notes: Iterable[str]) -> Document:
    """``inspect`` of a model that can run; ``batch`` is null for a model that has none.

    ``supported``: all of it runs on the NeuronCore; else ``blockers`` say why not, and ``parts`` show the CPU's share.
    ``predicted``, and a step's ``tiles``, ``sbuf_bytes`` and ``psum_bytes`` (the peak per partition while it runs),
    ``predicted_us`` and ``held_by`` are null unless kernels were traced.
    """
    return partition_header(partition) | {
        "batch": batch,
        "supported": not partition.blockers,
        "predicted": None if cost is None else _whole_prediction(cost),
        "nodes": [asdict(node) for node in partition.nodes],
        "steps": [
            asdict(step) | _step_cost(None if cost is None else cost.steps[step.name])
            for plan in partition.plans
            for step in plan.steps
        ],
        "parts": [part_document(part) for part in partition.parts],
        "blockers": [asdict(blocker) for blocker in partition.blockers],
        "notes": [*partition.notes, *notes],
    }


def _whole_prediction(cost: PlanCost) -> Document:
    """The whole prediction, and the parts of its critical path, which add up to the headline."""
    found = cost.predicted
    held = [{"by": one.by, "us": one.us} for one in cost.held]
    return {"low_us": found.least_us, "us": found.us, "high_us": found.most_us, "held": held}


def _step_cost(cost: StepCost | None) -> Document:
    if cost is None:
        return dict.fromkeys(("sbuf_bytes", "psum_bytes", "tiles", "predicted_us", "held_by"))
    tiles = [asdict(tile) for tile in cost.tiles.tiles]
    held = {"predicted_us": cost.time_us, "held_by": cost.bound}
    return {"sbuf_bytes": cost.tiles.sbuf_bytes, "psum_bytes": cost.tiles.psum_bytes, "tiles": tiles} | held


def unsupported_document(model: str, nodes: Iterable[NodeReport], blockers: Iterable[Blocker]) -> Document:
    """``inspect`` of a model that can't run: its nodes, and every blocker."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "supported": False,
        "nodes": [asdict(node) for node in nodes],
        "steps": [],
        "parts": [],
        "blockers": [asdict(blocker) for blocker in blockers],
        "notes": [],
    }


def stage_document(model: ImportedModel, stage: str, listing: str) -> Document:
    """``inspect --stage imported|rewritten``: the signature, and the graph's listing as lines."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model.name,
        "stage": stage,
        "inputs": [asdict(tensor) for tensor in model.inputs],
        "outputs": [asdict(tensor) for tensor in model.outputs],
        "listing": listing.splitlines(),
    }


def compile_document(
    session: InferenceSession,
    buckets: list[int] | None,
    parts: list[Document],
    files: Iterable[str],
    checked: bool | None,
) -> Document:
    """``compile``: the compiled parts, and the written files.

    ``checked``: if the bundle agrees with onnxruntime; None if there is no bundle.
    """
    batch = buckets[0] if buckets is not None and len(buckets) == 1 else None
    bundle = None if checked is None else {"checked": checked}
    return header(session) | {
        "batch": batch,
        "buckets": buckets,
        "parts": parts,
        "files": list(files),
        "bundle": bundle,
    }


def _output(array: npt.NDArray[Any], full: bool) -> Document:
    entry: Document = {"shape": list(array.shape), "dtype": dtype_name(array)}
    if full or array.size <= SMALL:
        entry["data"] = _data(array)
    if _has_non_finite(array):
        entry["non_finite"] = True
    return entry


def dtype_name(array: npt.NDArray[Any]) -> str:
    """An array's dtype as the importer names it: numpy's name, or "str"."""
    return "str" if array.dtype.kind in "OUS" else array.dtype.name


def _data(array: npt.NDArray[Any]) -> Any:
    return (array.astype("float32") if array.dtype.kind == "V" else array).tolist()


def _has_non_finite(array: npt.NDArray[Any]) -> bool:
    import numpy as np

    return array.dtype.kind in "fcV" and not bool(np.isfinite(array).all())


def _choice(choice: Choice) -> Document:
    return {"class": choice.index, "number": choice.number, "label": choice.label}


def _finite(value: Any) -> Any:
    """``value`` with None for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
