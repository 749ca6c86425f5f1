"""Runs with a timeline: of a profile that was just made, or of an earlier HTML report.

A report may hold anything: all of it is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.errors import OptionError
from trnrt.report.comparing import LARGEST_BASELINE
from trnrt.report.page.columns import report_data
from trnrt.report.page.graph import graph_data
from trnrt.report.runs import SETTINGS, Run, run_of, run_of_model
from trnrt.text import quote, reason_text

if TYPE_CHECKING:
    from trnrt.nki.profiling import Profile
    from trnrt.planner.plan import Plan
    from trnrt.report.documents import Document

_OPENING = '<script type="application/json" id="data">'
_MOST_ROWS = 4096
_TEXTS = ("operation", "name", "source")
_WRITERS = {"calls": ("trnrt nki profile", "script"), "model": ("trnrt profile", "model")}
_BOX_TEXTS = ("kernel", "shape", "place", "reason")


def run_of_profile(name: str, file: str, profile: Profile, document: Document) -> Run:
    """The run of a profile and its document, with what a page draws of it."""
    return run_of(name, file, document, report_data(profile))


def page_of_plan(plan: Plan, profile: Profile) -> dict[str, Any]:
    """The data of a model's page, with timelines and graph. ``run_of_model`` takes it."""
    return report_data(profile, graph=graph_data(plan, profile))


def run_of_page(path: Path, kind: str = "calls") -> Run:
    """The run in an HTML report of ``nki profile`` (``kind`` "calls") or ``profile`` ("model").

    Raises:
        OptionError: if the file can't be read, or is no such report.
    """
    verb, source = _WRITERS[kind]
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BASELINE + 1)
        if len(content) > LARGEST_BASELINE:
            raise ValueError("it is too large")
        data = _data(content.decode("ascii"))
        if (data["graph"] is None) == (kind == "model"):
            raise ValueError(f"it is no report of `{verb}`")
        for core in data["cores"]:
            _check_core(core, len(data["texts"]), len(data["steps"]))
        if data["graph"] is not None:
            _check_graph(data["graph"], len(data["steps"]))
        return _run(str(path), data)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else reason_text(error)
        raise OptionError(
            f"can't read the report {quote(str(path))}: {why}",
            hint=f"{verb} {source.upper()} --html FILE writes one; --against takes {source}s and JSON documents, too",
        ) from None


def _data(text: str) -> dict[str, Any]:
    _, opening, rest = text.partition(_OPENING)
    if not opening:
        raise ValueError("it holds no data of a report")
    data = json.loads(rest.partition("</script>")[0])
    if not isinstance(data, dict) or not all(isinstance(text, str) for text in data["texts"]):
        raise ValueError("its data is not that of a report")
    if "run" not in data:
        raise ValueError("it is from an older version of trnrt")
    return data


def _run(file: str, data: dict[str, Any]) -> Run:
    sources = data["sources"]
    lines = [
        {
            "file": str(sources[use["file"]]["path"]),
            "line": use["line"],
            "code": _code(sources[use["file"]]["parts"], use["line"]),
            "path_us": _finite(use["path"]) / 1e6,
        }
        for use in data["lines"]
    ]
    run = data["run"]
    document = {
        "predicted_us": {"benchmark": _finite(run["benchmark_us"])},
        **{key: {"benchmark": _finite(run[key])} for key in ("low_us", "high_us") if key in run},
        **{key: run[key] for key in SETTINGS if key in run},
        "engines": {str(name): {"busy_us": _finite(us)} for name, us in run["engines"].items()},
        "lines": lines,
    }
    if data["graph"] is None:
        return run_of(str(run["name"]), file, document, data)
    steps = [
        {"name": _text(s["name"]), "nodes": _texts(s["nodes"]), "time_us": _finite(s["time"])} for s in data["steps"]
    ]
    return run_of_model(str(run["name"]), file, document | {"steps": steps}, data)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a name in it is no text")
    return value


def _texts(values: Any) -> list[str]:
    return [_text(value) for value in values]


def _code(parts: Sequence[Any], line: int) -> str:
    return next((str(lines[line - first]).strip() for first, lines in parts if 0 <= line - first < len(lines)), "")


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a time in it is no number")
    return float(value)


def _check_graph(graph: dict[str, Any], steps: int) -> None:
    """ValueError unless the boxes of a graph and its edges name what there is."""
    boxes = graph["boxes"]
    for box in boxes:
        _texts([box["kind"], box["name"], *(box.get(key, "") for key in _BOX_TEXTS)])
        _check([box["layer"], box["order"]], 2, len(boxes))
        if box["kind"] == "step":
            _check([box["step"]], 1, steps, least=-1)
            for name, operator in box["nodes"]:
                _texts([name, operator])
    for edge in graph["edges"]:
        _check(edge, 2, len(boxes))
    for row in graph["outside"]:
        _texts(row)


def _check_core(core: dict[str, Any], texts: int, steps: int) -> None:
    """ValueError unless the columns of a core have one length each, and name what there is."""
    spans, issues, found, moves = (core[key] for key in ("spans", "issues", "instructions", "transfers"))
    instructions = len(found["operation"])
    transfers, issued = len(moves["issue"]), len(issues["instruction"])
    if not all(isinstance(lane, str) for lane in core["lanes"]):
        raise ValueError("a lane in it has no name")
    _check([core["duration"], core.get("launch", 0)], 2)
    _check(spans["lane"], issued + transfers, len(core["lanes"]))
    _check(spans["row"], issued + transfers, _MOST_ROWS)
    _check(spans["length"], issued + transfers)
    _check(spans["start"], issued + transfers, least=None)
    _check(issues["instruction"], issued, instructions)
    _check(issues["waited"], issued, least=None)
    for key in _TEXTS:
        _check(found[key], instructions, texts)
    _check(found["line"], instructions)
    _check(found["step"], instructions, steps, least=-1)
    if len(found["operands"]) != instructions:
        raise ValueError("a column in it is too short")
    for operands in found["operands"]:
        _check(operands, len(operands), texts)
    _check(moves["issue"], transfers, issued)
    for key in ("payload", "hbm", "packets", "engines"):
        _check(moves[key], transfers)


def _check(column: Any, count: int, below: int | None = None, *, least: int | None = 0) -> None:
    """ValueError unless ``column`` is a list of ``count`` whole numbers from ``least`` to ``below``."""
    if not isinstance(column, list) or len(column) != count:
        raise ValueError("a column in it is too short")
    for value in column:
        if type(value) is not int or (least is not None and value < least) or (below is not None and value >= below):
            raise ValueError("a number in it is out of range")
