"""A run to compare: of a kernel call or a model; from a profile, a ``--json-out`` document, or an HTML report.

A call has lines, a model has steps. Only profiles and reports have timelines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trnrt.errors import OptionError
from trnrt.report.comparing import call_name
from trnrt.text import name_text, quote

if TYPE_CHECKING:
    from trnrt.report.documents import Document

Columns = dict[str, Any]

SETTINGS = ("target", "dtype", "batch", "cores")


@dataclass(frozen=True, slots=True)
class RunLine:
    """A line's part of the critical path, in microseconds; ``code``: the line, stripped."""

    file: str
    line: int
    code: str
    path_us: float


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a model's plan: its number, its ONNX nodes, and its part of the critical path in microseconds."""

    number: int
    name: str
    nodes: tuple[str, ...]
    time_us: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a kernel. ``name``: the call, or the model; ``file``: where it comes from. ``cores``: what a page
    draws of its timelines, one a core, with their ``texts`` (see ``page.columns``); none if only its numbers are known.

    ``ends``: the least and the most of the benchmark's range, None if unknown. ``settings``: those of ``SETTINGS`` that
    are known. ``steps`` and ``graph`` (see ``page.graph``): a model's.
    """

    name: str
    file: str
    benchmark_us: float
    engines: Mapping[str, float]
    lines: tuple[RunLine, ...] = ()
    cores: tuple[Columns, ...] = ()
    texts: tuple[str, ...] = ()
    ends: tuple[float, float] | None = None
    settings: Mapping[str, str | int | None] = field(default_factory=dict)
    steps: tuple[RunStep, ...] = ()
    graph: Columns | None = None

    @property
    def rows(self) -> int | None:
        """The rows of its batch; None if it has none, or it is unknown."""
        rows = self.settings.get("batch")
        return rows if isinstance(rows, int) and rows > 0 else None


def run_of(name: str, file: str, document: Document, page: Columns | None = None) -> Run:
    """The run of a call's document (see ``call_document``); ``page``: the data of its report, for its timelines."""
    lines = _lines(document.get("lines", ()))
    drawn: dict[str, Any] = {} if page is None else {"cores": tuple(page["cores"]), "texts": tuple(page["texts"])}
    return Run(name, file, engines=_engines(document), lines=lines, **_numbers(document), **drawn)


def run_of_model(name: str, file: str, document: Document, page: Columns | None = None) -> Run:
    """The run of a model's document (see ``profile_document``), or of one of its parts.

    Engines are busy for the sum of all parts. ``page``: the data of its report, for its timelines, lines and graph.
    """
    steps = tuple(
        RunStep(number, name_text(step["name"]), tuple(map(name_text, step.get("nodes", ()))), float(step["time_us"]))
        for number, step in enumerate(document["steps"])
    )
    parts = [document] if "engines" in document else [part for part in document["parts"] if "engines" in part]
    engines: Counter[str] = Counter()
    for part in parts:
        engines.update(_engines(part))
    known = parts[0] | document if parts else document
    drawn: dict[str, Any] = {}
    if page is not None:
        drawn = {"cores": tuple(page["cores"]), "texts": tuple(page["texts"]), "graph": page["graph"]}
    lines = _lines(document.get("lines", ()))
    return Run(name, file, engines=dict(engines), lines=lines, steps=steps, **_numbers(known), **drawn)


def runs_of_document(file: str, document: Document) -> list[Run]:
    """The runs of a ``--json-out`` document: its calls; or the model as a whole, and then each of its parts, if it has
    several. They have numbers without timelines.

    Raises:
        OptionError: if one has no such numbers.
    """
    try:
        if "calls" in document:
            return [run_of(call_name(call), file, call) for call in document["calls"]]
        parts = [part for part in document["parts"] if "engines" in part]
        whole = run_of_model(str(document["model"]), file, document)
        return [whole, *(run_of_model(str(part["name"]), file, part) for part in parts)]
    except (KeyError, TypeError, ValueError, AttributeError):
        rows = "lines" if "calls" in document else "steps"
        raise OptionError(
            f"{quote(file)} has no engines and {rows} with their times", hint="write it again with --json-out FILE"
        ) from None


def _lines(uses: Any) -> tuple[RunLine, ...]:
    return tuple(RunLine(str(use["file"]), int(use["line"]), str(use["code"]), float(use["path_us"])) for use in uses)


def _engines(document: Document) -> dict[str, float]:
    return {str(name): float(use["busy_us"]) for name, use in document["engines"].items()}


def _numbers(document: Document) -> dict[str, Any]:
    """The benchmark's figure with its range, and the settings."""
    ends = [document[key]["benchmark"] for key in ("low_us", "high_us") if document.get(key)]
    known = [key for key in SETTINGS if key in document and isinstance(document[key], str | int | None)]
    return {
        "benchmark_us": float(document["predicted_us"]["benchmark"]),
        "ends": (float(ends[0]), float(ends[1])) if len(ends) == 2 else None,
        "settings": {key: document[key] for key in known},
    }
