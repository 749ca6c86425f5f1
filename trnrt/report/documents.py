"""The JSON document of each verb: the keys that other programs may rely on.

The documents are strictly valid JSON, which knows no NaN and no infinity: such a number is null.
An output whose data has one also says ``"non_finite": true``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from trnrt.bench.measuring import Row
    from trnrt.errors import Blocker
    from trnrt.importer import TensorInfo
    from trnrt.nki.checking import CheckedCall, Report
    from trnrt.nki.profiling import Profile
    from trnrt.planner.plan import NodeReport, Plan
    from trnrt.report.top import Choice, Top
    from trnrt.session import InferenceSession
    from trnrt.validate import ValidationReport

SCHEMA_VERSION = 1

SMALL = 1024
"""Elements up to which an output's data is in the document without ``--full``."""

Document = dict[str, Any]


def as_text(document: Document) -> str:
    """The document as JSON text, in ASCII; every number in it is finite."""
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def header(session: InferenceSession) -> Document:
    """What every document about a session starts with."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": session.name,
        "backend": session.backend,
        "target": session.target,
        "dtype": session.dtype,
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
    """``run``: the outputs by name, their data if there are up to ``SMALL`` elements or with ``full``.

    ``top`` is null without ``--top``, else a list of rows, each a list of ``{class, number, label}``, best
    first; ``top_output`` tells which output that is, ``top_softmax`` whether softmax was applied.
    """
    return header(session) | {
        "wall_ms": wall_ms,
        "predicted_us": session.predicted_us,
        "outputs": {name: _output(array, full) for name, array in outputs.items()},
        "top": None if top is None else [[_choice(choice) for choice in row] for row in top.rows],
        "top_output": None if top is None else top.output,
        "top_softmax": None if top is None else top.softmax,
        "notes": list(notes),
    }


def validate_document(session: InferenceSession, report: ValidationReport, notes: Iterable[str]) -> Document:
    """``validate``: an output's error that is not finite is null, so is a tolerance that does not exist."""
    outputs = [asdict(output) for output in report.outputs]
    compared = asdict(report) | {"outputs": outputs}
    return header(session) | compared | {"predicted_us": session.predicted_us, "notes": list(notes)}


def check_document(report: Report) -> Document:
    """``nki check``: a call that could not be traced has an ``error``, and no numbers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "file": report.file,
        "target": report.target,
        "findings": [asdict(finding) for finding in report.findings],
        "calls": [asdict(call) for call in report.calls],
        "notes": report.notes,
    }


def profile_document(model: str, profile: Profile, *, version: str) -> Document:
    """``profile``: the prediction of a model's kernel, by this ``version`` of trnrt; what ``--baseline`` reads."""
    head = {"schema_version": SCHEMA_VERSION, "trnrt_version": version, "model": model}
    return head | _prediction(profile) | {"comparison": None}


def nki_profile_document(report: Report, profiles: Iterable[tuple[CheckedCall, Profile]], *, version: str) -> Document:
    """``nki profile``: the prediction of each call; what could not be traced is in ``failures``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "trnrt_version": version,
        "file": report.file,
        "target": report.target,
        # The call's name of the kernel, which says the cores that it is launched on.
        "calls": [_prediction(p) | {"kernel": call.kernel, "arguments": call.arguments} for call, p in profiles],
        "failures": [asdict(failure) for failure in report.failures],
        "notes": report.notes,
        "comparison": None,
    }


def _prediction(profile: Profile) -> Document:
    """Microseconds, bytes and counts; shares of 1. Peaks are bytes of one partition."""
    from trnrt.report.summary import summary_of

    roofline = profile.roofline
    return {
        "kernel": profile.kernel,
        "target": profile.target,
        "dtype": profile.dtype,
        "batch": profile.batch,
        "cores": len(profile.cores),
        "compared": profile.compared,
        "predicted_us": asdict(profile.predicted_us),
        "mfu": profile.mfu,
        "mbu": profile.mbu,
        "flops": profile.flops,
        "hbm_bytes": profile.hbm_bytes,
        "hbm_read_bytes": profile.hbm_read_bytes,
        "hbm_write_bytes": profile.hbm_write_bytes,
        "dma_transfer_count": profile.dma_transfer_count,
        "dma_packets": profile.dma_packets,
        "instructions": profile.instructions,
        "engines": {name: asdict(use) for name, use in profile.engines.items()},
        "steps": [asdict(step) | {"nodes": list(step.nodes)} for step in profile.steps],
        "sbuf_peak_bytes": profile.sbuf_peak_bytes,
        "psum_peak_bytes": profile.psum_peak_bytes,
        "roofline": asdict(roofline) | {"attainable_tflops": roofline.attainable_tflops},
        "summary": summary_of(profile),
        "notes": list(profile.notes),
    }


def bench_document(benchmark: str, rows: Iterable[Row], *, quick: bool) -> Document:
    """``bench``: ``passed`` is null where there is no bar, or no value to hold against it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": benchmark,
        "quick": quick,
        "rows": [asdict(row) | {"passed": row.passed} for row in rows],
    }


def inspect_document(plan: Plan, batch: int | None) -> Document:
    """``inspect`` of a model that can run; ``batch`` is null for a model that has none."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": plan.name,
        "target": plan.target,
        "dtype": plan.dtype,
        "batch": batch,
        "supported": True,
        "nodes": [asdict(node) for node in plan.nodes],
        "steps": [asdict(step) for step in plan.steps],
        "blockers": [],
        "notes": list(plan.notes),
    }


def unsupported_document(model: str, nodes: Iterable[NodeReport], blockers: Iterable[Blocker]) -> Document:
    """``inspect`` of a model that can't run: the nodes as far as known, and everything that blocks it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "supported": False,
        "nodes": [asdict(node) for node in nodes],
        "steps": [],
        "blockers": [asdict(blocker) for blocker in blockers],
        "notes": [],
    }


def stage_document(
    model: str,
    stage: str,
    *,
    inputs: Iterable[TensorInfo],
    outputs: Iterable[TensorInfo],
    listing: str,
) -> Document:
    """``inspect --stage imported|rewritten``: the signature, and the graph's listing as lines."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "stage": stage,
        "inputs": [asdict(tensor) for tensor in inputs],
        "outputs": [asdict(tensor) for tensor in outputs],
        "listing": listing.splitlines(),
    }


def compile_document(session: InferenceSession, batch: int | None, files: Iterable[str]) -> Document:
    """``compile``: what was compiled, and the files that were written."""
    return header(session) | {"batch": batch, "files": list(files)}


def _output(array: npt.NDArray[Any], full: bool) -> Document:
    entry: Document = {"shape": list(array.shape), "dtype": dtype_name(array)}
    if full or array.size <= SMALL:
        entry["data"] = _data(array)
    if _has_non_finite(array):
        entry["non_finite"] = True
    return entry


def dtype_name(array: npt.NDArray[Any]) -> str:
    """An array's dtype as the importer names it: numpy's name, "str" for strings."""
    return "str" if array.dtype.kind in "OUS" else array.dtype.name


def _data(array: npt.NDArray[Any]) -> Any:
    return (array.astype("float32") if array.dtype.kind == "V" else array).tolist()


def _has_non_finite(array: npt.NDArray[Any]) -> bool:
    import numpy as np

    return array.dtype.kind in "fcV" and not bool(np.isfinite(array).all())


def _choice(choice: Choice) -> Document:
    return {"class": choice.index, "number": choice.number, "label": choice.label}


def _finite(value: Any) -> Any:
    """``value`` with None for every number that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
