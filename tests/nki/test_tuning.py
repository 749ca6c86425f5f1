"""Tuning a kernel of a file: the processes, the file of results, the best candidate and its numbers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from kernel_files import ADDITIONS, CALL

from trnrt.nki.calls import parse_call
from trnrt.nki.errors import KernelError, OptionError
from trnrt.nki.level import Level
from trnrt.nki.loading import find_launches, loading
from trnrt.nki.ordering import Certainty
from trnrt.nki.profiling import predicted_us
from trnrt.nki.tuning.records import run_key
from trnrt.nki.tuning.space import Space, read_space
from trnrt.nki.tuning.timing import Task
from trnrt.nki.tuning.tuner import Tuned, Wish, tune
from trnrt.nki.tuning.workers import Workers

TILES = "TILE=64,100,128,256,512,1024"


@pytest.fixture
def wish(tmp_path: Path) -> Wish:
    return make_wish(tmp_path)


def make_wish(folder: Path) -> Wish:
    script = folder / "my_kernels.py"
    script.write_text(ADDITIONS, encoding="utf-8")
    return Wish(script, CALL, read_space([TILES]), folder / "out" / "results.jsonl", target="trn2", jobs=1)


def lines(wish: Wish) -> list[Any]:
    return [json.loads(line) for line in wish.records.read_text().splitlines()]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Wish, Tuned]:
    """One run for several tests."""
    wish = make_wish(tmp_path_factory.mktemp("tuned"))
    return wish, tune(wish)


def test_every_candidate_has_its_headline_or_a_reason(tuned: tuple[Wish, Tuned]) -> None:
    wish, found = tuned
    times = {trial.values["TILE"]: trial.us for trial in found.trials}
    with loading(wish.script, "trn2"):
        (launch,) = find_launches(wish.script, [CALL])
        for tile in (64, 128, 256, 512, 1024):
            (program,) = launch.with_values({"TILE": tile}).trace()
            assert times[str(tile)] == predicted_us(program)
    (refused,) = found.refusals
    assert refused.values == {"TILE": "100"} and "1024 columns are no multiple of 100" in refused.reason
    assert f"{wish.script}:11 in add" in refused.reason
    assert (found.complete, found.stopped, found.resumed) == (True, False, 0)


def test_the_best_and_the_order_of_the_others(tuned: tuple[Wish, Tuned]) -> None:
    found = tuned[1]
    assert found.best is not None and found.default is not None and found.order is not None
    times = sorted(trial.us for trial in found.trials if trial.us is not None)
    assert [ranked.range.us for ranked in found.top] == times
    assert found.best.benchmark_us == times[0] < found.default.benchmark_us
    assert found.best_call == found.top[0].call and found.default_call == CALL[:-1] + ", TILE=256)"
    assert found.agreements is not None and [one.identical for one in found.agreements] == [True]
    assert found.top[-1].certainty is Certainty.CERTAIN and found.top[-1].values == {"TILE": "64"}
    assert found.order.ratio == pytest.approx(found.best.benchmark_us / found.default.benchmark_us)


def test_two_processes_find_the_same(tuned: tuple[Wish, Tuned], tmp_path: Path) -> None:
    wish, one = tuned
    two = tune(replace(wish, jobs=2, records=tmp_path / "other.jsonl"))
    assert (one.trials, one.best_call, one.top) == (two.trials, two.best_call, two.top)
    assert Wish(wish.script, None, wish.space, wish.records).processes == len(os.sched_getaffinity(0))


def test_a_default_outside_of_the_values_is_tried_too(wish: Wish) -> None:
    found = tune(replace(wish, space=read_space(["TILE=128,1024", "scale=1.0"])))
    assert found.space.values == {"TILE": (128, 256, 1024), "scale": (1.0,)}
    assert len(found.trials) == 3 and found.trials[0].values == {"TILE": "256", "scale": "1.0"}


# --- the numbers


def test_a_faster_candidate_with_other_numbers_is_not_the_best(wish: Wish) -> None:
    """scale=1.0 leaves an instruction out; the call as given multiplies by 2."""
    call = CALL[:-1] + ", scale=2.0)"
    found = tune(replace(wish, call=call, space=read_space(["scale=1.0,2.0"])))
    (wrong,) = found.wrong
    assert wrong.values == {"scale": "1.0"} and "its numbers differ: result, float32 [128, 1024]" in wrong.reason
    assert found.best_call == call and [ranked.call for ranked in found.top] == [call]


def test_a_reference_in_numpy_or_as_a_kernel(wish: Wish) -> None:
    call = CALL[:-1] + ", scale=2.0)"
    asked = replace(wish, call=call, space=read_space(["scale=1.0,2.0"]))
    for reference in ("right", "add"):  # a + b: then it is the default that is wrong
        found = tune(replace(asked, reference=reference))
        assert found.best_call == CALL[:-1] + ", scale=1.0)" and found.agreements and not found.wrong
    found = tune(replace(asked, reference="wrong"))
    assert found.best is None and found.order is None and len(found.wrong) == 2 and not found.top
    with pytest.raises(OptionError, match="no function 'missing'"):
        tune(replace(asked, reference="missing"))


def test_a_default_that_can_not_run(wish: Wish) -> None:
    """The best is reported, but with nothing to compare its numbers with."""
    found = tune(replace(wish, call=CALL[:-1] + ", TILE=100)"))
    assert found.default is None and "no multiple of 100" in found.default_reason
    assert found.best is not None and found.agreements is None and "the default can't run" in found.unchecked
    found = tune(replace(wish, call=CALL[:-1] + ", TILE=100)", reference="right"))
    assert found.agreements and not found.unchecked


def test_tiles_that_do_not_fit_are_listed(wish: Wish) -> None:
    call = "huge(f32[128,64], f32[128,64])"
    found = tune(replace(wish, call=call, space=read_space(["WIDTH=64,100000"])))
    (refused,) = found.refusals
    assert refused.values == {"WIDTH": "100000"} and "SBUF" in refused.reason


# --- the file of results


def test_a_run_resumes_from_its_results(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tune(wish)
    kept = lines(wish)
    assert [entry["values"]["TILE"] for entry in kept] == ["256", "64", "100", "128", "512", "1024"]
    text = wish.records.read_text().splitlines(keepends=True)
    wish.records.write_text("".join(text[:3]) + text[3][:20])  # killed while it wrote the fourth
    again = tune(wish)
    assert (again.resumed, again.trials, again.best_call) == (3, first.trials, first.best_call)
    assert "\n" in wish.records.read_text()[len("".join(text[:3])) :]
    monkeypatch.setattr("trnrt.nki.tuning.workers._Worker", None)  # nothing is left to do
    assert tune(wish).resumed == 6


def test_the_key_has_all_that_a_time_depends_on(wish: Wish) -> None:
    task = Task(wish.script, parse_call(CALL), "trn2", Level.nki_0_7)
    key = run_key(task, [wish.script], "1")
    others = [
        replace(task, call=parse_call(CALL.replace("1024", "512"))),
        replace(task, call=parse_call(CALL.replace("add(", "add[2]("))),
        replace(task, target="trn1"),
        replace(task, level=Level.nki_0_6),
        replace(task, capacity=False),
    ]
    keys = [key, run_key(task, [wish.script], "2"), *(run_key(other, [wish.script], "1") for other in others)]
    wish.script.write_text(ADDITIONS.replace("nl.add", "nl.subtract"))
    keys.append(run_key(task, [wish.script], "1"))
    assert len(set(keys)) == len(keys) == 8
    wish.script.write_text(ADDITIONS)
    assert run_key(task, [wish.script], "1") == key


def test_results_of_another_run_are_not_taken(wish: Wish) -> None:
    few = replace(wish, space=read_space(["TILE=256,512"]))
    assert [tune(replace(few, version=version)).resumed for version in ("1", "2", "1", "2")] == [0, 0, 2, 2]
    assert len({entry["key"] for entry in lines(wish)}) == 2 and len(lines(wish)) == 4  # both runs are in the file


def test_the_order_of_the_arguments_does_not_matter(wish: Wish) -> None:
    one = tune(replace(wish, space=read_space(["TILE=256,512", "scale=1.0,2.0"])))
    other = tune(replace(wish, space=read_space(["scale=1.0,2.0", "TILE=256,512"])))
    assert (one.resumed, other.resumed) == (0, 4)
    assert list(other.trials[0].values) == ["scale", "TILE"]


def test_a_module_beside_the_file_belongs_to_its_source(wish: Wish) -> None:
    helper = wish.script.with_name("our_sizes_of_tiles.py")
    helper.write_text("TILE = 256\n")
    wish.script.write_text(
        ADDITIONS.replace("import nki\n", "import nki\nimport our_sizes_of_tiles\n", 1).replace(
            "TILE=256", "TILE=our_sizes_of_tiles.TILE"
        )
    )
    few = replace(wish, space=read_space(["scale=1.0,3.0"]))
    tune(few)
    assert tune(few).resumed == 2
    helper.write_text("TILE = 512\n")
    assert tune(few).resumed == 0


def test_a_file_that_holds_no_results(wish: Wish, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(OptionError, match="no file of results"):
        tune(replace(wish, records=tmp_path / "notes.txt"))
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"


# --- processes and time


def test_a_candidate_that_ends_its_process_is_listed(wish: Wish) -> None:
    wish.script.write_text(
        ADDITIONS.replace(
            "    assert columns", "    if TILE == 128:\n        import os; os._exit(9)\n    assert columns"
        )
    )
    found = tune(wish)
    reasons = {trial.values["TILE"]: trial.reason for trial in found.refusals}
    assert reasons.keys() == {"100", "128"} and "ended with 9" in reasons["128"]
    assert found.best is not None


def test_the_time_limit_ends_a_candidate_too(wish: Wish) -> None:
    wish.script.write_text(
        ADDITIONS.replace("    assert columns", "    if TILE == 128:\n        while True: pass\n    assert columns")
    )
    started = monotonic()
    found = tune(replace(wish, seconds=8, space=read_space(["TILE=128,256"])))
    assert monotonic() - started < 60
    assert found.stopped and not found.complete and [trial.values["TILE"] for trial in found.trials] == ["256"]
    assert found.best is not None


def test_the_time_limit_ends_quick_candidates_too(wish: Wish) -> None:
    """One of them is always done."""
    task = Task(wish.script, parse_call(CALL), "trn2", Level.nki_0_7)
    with Workers(task, 1) as workers:
        assert len(list(workers.time_all([{"TILE": 256}]))) == 1  # the file is loaded now
        many = [{"TILE": 256, "scale": 1.0 + n} for n in range(100000)]
        started = monotonic()
        found = list(workers.time_all(many, started + 1))
        assert 0 < len(found) < 100000 and monotonic() - started < 30


def test_progress_counts_candidates(wish: Wish) -> None:
    counted: list[int] = []
    tune(wish, counted.append)
    tune(wish, counted.append)
    assert counted == [1] * 12


def test_what_can_not_be_tuned(wish: Wish) -> None:
    with pytest.raises(OptionError, match="no argument 'TILES'"):
        tune(replace(wish, space=Space({"TILES": (1, 2)})))
    with pytest.raises(OptionError, match="calls no kernel"):
        tune(replace(wish, call=None))
    a = "\na = np.ones((128, 1024), np.float32)\n"
    wish.script.write_text(ADDITIONS + a + "add(a, a)\nadd(a, a, TILE=128)\n")
    with pytest.raises(OptionError, match="2 different calls"):
        tune(replace(wish, call=None))
    wish.script.write_text(ADDITIONS + a + "add(a, a)\n")
    assert tune(replace(wish, call=None)).best is not None


def test_a_file_that_loads_once_only(wish: Wish) -> None:
    """Its other processes say why."""
    wish.script.write_text(
        f"from pathlib import Path\nmark = Path({str(wish.script)!r} + '.mark')\n"
        "assert not mark.exists(), 'once is enough'\nmark.touch()\n" + ADDITIONS
    )
    with pytest.raises(KernelError, match="once is enough"):
        tune(wish)
