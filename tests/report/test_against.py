"""Two runs over each other: which lines belong together, what changed, and what a report that is read may hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from timelines import matmul_program

from trnrt.errors import OptionError
from trnrt.nki.profiling import profile_programs
from trnrt.report.against import (
    LineChange,
    StepChange,
    compare_runs,
    difference_parts,
    pair_lines,
    pair_runs,
    pair_steps,
)
from trnrt.report.console import render
from trnrt.report.page import report_html
from trnrt.report.page.columns import report_data
from trnrt.report.page.reading import run_of_page
from trnrt.report.runs import Run, RunLine, RunStep, run_of


def lines(*code: str, file: str = "k.py", first: int = 1) -> list[RunLine]:
    return [RunLine(file, first + k, text, float(k + 1)) for k, text in enumerate(code)]


def numbers(found: list[LineChange]) -> list[tuple[int | None, int | None]]:
    return [tuple(None if one is None else one.line for one in (line.before, line.after)) for line in found]  # type: ignore[misc]


def a_run(name: str = "add(f32[1])", us: float = 10.0, **changes: Any) -> Run:
    return replace(Run(name, "k.py", us, {"vector": us / 2}, tuple(lines("a", "b"))), **changes)


def test_lines_that_moved_are_matched_by_their_code() -> None:
    assert numbers(pair_lines(lines("a", "b", "c"), lines("new", "a", "b", "c"))) == [
        (None, 1), (1, 2), (2, 3), (3, 4)
    ]  # fmt: skip
    assert numbers(pair_lines(lines("a", "b", "c"), lines("a", "c"))) == [(1, 1), (2, None), (3, 2)]


def test_a_line_that_changed_in_place_is_the_same_line() -> None:
    assert numbers(pair_lines(lines("a", "b", "c"), lines("a", "B", "c"))) == [(1, 1), (2, 2), (3, 3)]


def test_equal_lines_are_matched_in_their_order() -> None:
    before, after = lines("load", "add", "load"), lines("load", "add", "load", "load")
    assert numbers(pair_lines(before, after)) == [(1, 1), (2, 2), (3, 3), (None, 4)]


def test_runs_are_paired_by_their_call_or_their_order() -> None:
    one, two = a_run("f(1)"), a_run("f(2)")
    by_name = pair_runs([two, one], [one, two])
    assert by_name is not None and [d.before.name for d in by_name] == ["f(1)", "f(2)"]
    by_order = pair_runs([one], [two])
    assert by_order is not None and (by_order[0].before.name, by_order[0].after.name) == ("f(1)", "f(2)")
    assert pair_runs([one], [one, two]) is None


def test_the_difference_by_engine_and_line() -> None:
    after = a_run(us=8.0, engines={"vector": 3.0, "dma": 1.0}, lines=tuple(lines("b", "c")))
    found = compare_runs(a_run(), after)
    assert (found.benchmark.difference, found.benchmark.percent) == (-2.0, -20.0)
    assert [(c.name, c.before_us, c.after_us) for c in found.engines] == [("vector", 5.0, 3.0), ("dma", None, 1.0)]
    assert [(line.change.before_us, line.change.after_us) for line in found.lines] == [
        (None, 2.0), (1.0, None), (2.0, 1.0)
    ]  # fmt: skip
    assert found.document["lines"][0] == {
        "file": "k.py", "code": "c", "before_line": None, "after_line": 2, "before_us": None, "after_us": 2.0
    }  # fmt: skip
    text = render(difference_parts([found]))
    assert "add(f32[1]) against k.py" in text and "-2.00 us (-20.0%)" in text and "k.py:2 c" in text


def matmul_run(target: str = "trn2") -> tuple[Any, Run]:
    """The small product's profile, and its run with what a page draws."""
    profile = profile_programs([matmul_program(target)])
    engines = {name: {"busy_us": use.busy_us} for name, use in profile.engines.items()}
    uses = [{"file": use.file, "line": use.line, "code": "", "path_us": use.path_us} for use in profile.lines]
    document = {"predicted_us": {"benchmark": profile.benchmark_us}, "engines": engines, "lines": uses}
    return profile, run_of("matmul()", "k.py", document, report_data(profile))


def test_a_report_read_again_is_the_run_that_it_shows(tmp_path: Path) -> None:
    profile, run = matmul_run()
    path = tmp_path / "before.html"
    path.write_text(report_html(profile, "matmul()"))
    read = run_of_page(path)
    assert (read.name, read.file) == ("matmul()", str(path))
    assert (read.benchmark_us, read.engines) == (run.benchmark_us, run.engines)
    assert [line.line for line in read.lines] == [line.line for line in run.lines]
    assert [line.path_us for line in read.lines] == pytest.approx([line.path_us for line in run.lines])
    assert read.lines[0].code.startswith("nisa.dma_copy(dst=stationary")
    assert read.texts == run.texts and json.dumps(read.cores) == json.dumps(run.cores)


def test_the_page_has_both_timelines_and_the_tables() -> None:
    (slow, before), (fast, after) = matmul_run("trn1"), matmul_run()
    found = compare_runs(before, after)
    text = report_html(fast, "matmul()", found)
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    (core,) = data["against"]["cores"]
    assert core["duration"] == slow.timeline.duration
    assert core["instructions"]["step"] == [0, 1, 2, 3, 4], "the steps of the same lines here"
    assert [data["texts"][k] for k in core["instructions"]["operation"]][2] == "nc_matmul"
    assert "Against k.py" in text and "Busy time, by engine" in text
    assert 'id="against"' not in report_html(fast, "matmul()")


def change_data(change: Callable[[Any], None]) -> str:
    """A report whose data was changed."""
    text = report_html(matmul_run()[0], "matmul()")
    head, _, rest = text.partition('id="data">')
    data, _, tail = rest.partition("</script>")
    document = json.loads(data)
    change(document)
    return f'{head}id="data">{json.dumps(document)}</script>{tail}'


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.pop("run"), "from an older version"),
        (lambda data: data["run"].update(benchmark_us="1"), "a time in it is no number"),
        (lambda data: data["texts"].append(1), "not that of a report"),
        (lambda data: data["cores"][0]["spans"]["lane"].append(0), "too short"),
        (lambda data: data["cores"][0]["spans"]["lane"].__setitem__(0, 99), "out of range"),
        (lambda data: data["cores"][0]["spans"]["row"].__setitem__(0, 10**9), "out of range"),
        (lambda data: data["cores"][0]["issues"]["instruction"].__setitem__(0, -1), "out of range"),
        (lambda data: data["cores"][0]["instructions"]["name"].__setitem__(0, 10**6), "out of range"),
        (lambda data: data["cores"][0]["instructions"]["operands"].pop(), "too short"),
        (lambda data: data["cores"][0]["transfers"]["issue"].__setitem__(0, True), "out of range"),
        (lambda data: data["cores"][0].pop("spans"), "it has no 'spans'"),
        (lambda data: data["lines"][0].update(file=7), "index out of range"),
        (lambda data: data.update(cores=5), "not iterable"),
    ],
)
def test_a_report_that_is_damaged_is_refused(tmp_path: Path, change: Any, told: str) -> None:
    path = tmp_path / "bad.html"
    path.write_text(change_data(change))
    with pytest.raises(OptionError, match=told):
        run_of_page(path)


@pytest.mark.parametrize(
    "content", ["", "<html></html>", '<script type="application/json" id="data">{</script>', "\xff"]
)
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.html"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(OptionError, match="can't read the report"):
        run_of_page(path)
    with pytest.raises(OptionError, match="no such file"):
        run_of_page(tmp_path / "missing.html")


# ---- models


def steps(*rows: tuple[str, tuple[str, ...], float]) -> tuple[RunStep, ...]:
    return tuple(RunStep(number, *row) for number, row in enumerate(rows))


def names(found: list[StepChange]) -> list[tuple[list[str], list[str]]]:
    return [([step.name for step in row.before], [step.name for step in row.after]) for row in found]


def test_steps_are_matched_by_their_nodes_else_their_names() -> None:
    before = steps(("a", ("conv", "relu"), 3.0), ("b", ("gone",), 1.0), ("same", ("x",), 2.0), ("rest", (), 1.0))
    after = steps(("rest", (), 2.0), ("conv", ("conv",), 1.0), ("relu", ("relu",), 1.5), ("same", ("y",), 1.0))
    found = pair_steps(before, after)
    assert names(found) == [(["rest"], ["rest"]), (["a"], ["conv", "relu"]), (["same"], ["same"]), (["b"], [])]
    assert (found[1].change.before_us, found[1].change.after_us) == (3.0, 2.5)
    assert (found[3].change.before_us, found[3].change.after_us) == (1.0, None)


def test_steps_in_a_chain_of_common_nodes_are_one_row() -> None:
    before = steps(("a", ("1", "2"), 1.0), ("b", ("3", "4"), 1.0))
    after = steps(("c", ("1",), 1.0), ("d", ("2", "3"), 1.0), ("e", ("4",), 1.0))
    assert names(pair_steps(before, after)) == [(["a", "b"], ["c", "d", "e"])]


def test_other_settings_are_said_and_rows_compared() -> None:
    one = a_run("m", 10.0, lines=(), steps=steps(("a", ("n",), 4.0)), settings={"dtype": "float32", "batch": 1})
    two = replace(one, benchmark_us=20.0, steps=steps(("b", ("k",), 9.0)), settings={"dtype": "float32", "batch": 4})
    found = compare_runs(one, two)
    assert found.per_row is not None and (found.per_row.before_us, found.per_row.after_us) == (10.0, 5.0)
    text = render(difference_parts([found]))
    assert "Not the same: batch 1 before, 4 now." in text and "No step has the nodes or the name of one before" in text
    assert compare_runs(one, one).remarks == [] and compare_runs(one, one).per_row is None
    assert "No step's part of the critical path changed." in render(difference_parts([compare_runs(one, one)]))
