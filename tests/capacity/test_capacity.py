"""Capacity: from latencies and what the host takes to cores and instances; and ``trnrt plan``, which says so."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrivals import fewer
from commanding import trnrt

from trnrt.capacity import choosing
from trnrt.capacity.assumptions import WORKERS, Host, assumptions, default_utilisation, host
from trnrt.capacity.choosing import Demand, best, candidates
from trnrt.capacity.instances import find_instances, fleets, instances
from trnrt.capacity.planning import Question, answer
from trnrt.capacity.queueing import Waiting, Worker, stream, wait
from trnrt.capacity.workers import Served
from trnrt.commands.capacity import read_duration
from trnrt.errors import OptionError
from trnrt.nki.machine.targets import get_target, target_names
from trnrt.planner.parts.crossing import HostLink, host_link
from trnrt.report.capacity import MEDIAN_ERROR, WORST_ERROR, rate_text, time_text, trust_notes, uncertain_lines

ROOT = Path(__file__).parents[2]
CNN = str(ROOT / "models" / "digits_cnn.onnx")

HOST = Host(100.0, 40.0, 10.0, 20.0, 0.0, 1.0, HostLink(10.0, 5.0))
SERVED = Served(
    {1: 200.0, 2: 220.0, 4: 260.0, 8: 340.0}, row_sent=1_000_000, row_in=20_000, row_out=10_000, mergeable=True
)
DEMAND = Demand(rps=4000, p99_us=5000, rows=1, burst=1.0, utilisation=0.7)


@pytest.fixture(autouse=True)
def fewer_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "stream", fewer)


@pytest.fixture
def every_arrival(fewer_arrivals: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the arrivals that a plan is made with."""
    monkeypatch.setattr(choosing, "stream", stream)


# ---- a worker


def test_a_batch_is_padded_to_the_next_bucket_and_moved_there_and_back() -> None:
    worker = SERVED.worker(8, 1, HOST)
    moving = [5 + size * 2.0 + 5 + size * 1.0 for size in (1, 2, 4, 8)]  # 10 GB/s are 10,000 bytes a microsecond
    expected = [200 + moving[0], 220 + moving[1], *[260 + moving[2]] * 2, *[340 + moving[3]] * 4]
    assert worker.device_us == pytest.approx(expected)
    assert worker.host_us == pytest.approx([40.0, *(40 + 20.0 * n for n in range(2, 9))])
    assert (worker.in_us, worker.out_us, worker.queue) == (60.0, 50.0, 256)


@pytest.mark.parametrize(("rows", "most", "requests", "last"), [(3, 8, 2, 8), (4, 8, 2, 8), (5, 8, 1, 8), (1, 2, 2, 2)])
def test_requests_of_several_rows_fill_a_batch_sooner(rows: int, most: int, requests: int, last: int) -> None:
    worker = SERVED.worker(most, rows, HOST)
    assert (worker.most, worker.full) == (requests, requests + (requests * rows < most))
    assert worker.device_us[-1] == pytest.approx(SERVED.predicted_us[last] + 10 + 3.0 * last)


def test_a_request_beyond_the_limit_runs_in_slices() -> None:
    worker = SERVED.worker(2, 5, HOST)
    assert worker.device_us == pytest.approx([2 * (220 + 16) + 200 + 13])


def test_requests_that_can_not_share_a_batch_go_one_by_one() -> None:
    served = Served({3: 500.0}, 12, 12, 12, mergeable=False)
    worker = served.worker(3, 3, HOST)
    assert worker.most == 1 and worker.device_us[0] > 500


def test_what_the_host_takes_is_known_or_assumed() -> None:
    values = {name: value for name, (value, _) in assumptions().items()}
    assumed = host("trn2")
    assert (assumed.request_us, assumed.batch_us, assumed.link) == (
        values["request_us"],
        values["batch_us"],
        host_link("trn2"),
    )
    assert host("trn1", 20.0) == Host(20.0, 0.0, 0.0, 0.0, 0.0, values["cooling_us"], host_link("trn1"))
    assert SERVED.cpu_us(1, 4.0, HOST) == 100 + 10 + 40 / 4 + 20
    assert SERVED.cpu_us(1, 1.0, HOST) == 100 + 10 + 40


# ---- choosing


@pytest.mark.usefixtures("every_arrival")
def test_a_core_carries_what_it_may_and_the_cores_carry_everything() -> None:
    found = candidates(SERVED, (1, 2, 4, 8), DEMAND, HOST)
    for candidate in found:
        worker = candidate.worker
        assert candidate.waiting is not None and candidate.waiting.p99_us <= DEMAND.p99_us
        assert candidate.carries <= 0.7 * worker.saturation * (1 + 1e-9)
        assert (
            (candidate.cores - 1) * candidate.carries < DEMAND.rps <= candidate.cores * candidate.carries * (1 + 1e-9)
        )
        assert candidate.limited_by == ("device" if worker.device_rate < worker.host_rate else "host")
    chosen = best(found)
    assert chosen is not None and chosen.cores == min(candidate.cores for candidate in found)
    # Two rows take hardly longer than one: whoever merges needs fewer cores.
    assert found[0].cores > chosen.cores and chosen.max_batch > 1


@pytest.mark.usefixtures("every_arrival")
def test_a_strict_p99_limits_what_a_core_carries_and_nothing_more_is_in_time() -> None:
    strict = replace(DEMAND, p99_us=900.0)
    (candidate,) = candidates(SERVED, [4], strict, HOST)
    assert candidate.limited_by == "p99" and 0 < candidate.carries < 0.7 * candidate.worker.saturation
    moments = stream()
    assert wait(candidate.worker, candidate.carries, moments).p99_us <= 900
    assert wait(candidate.worker, candidate.carries * 1.05, moments).p99_us > 900
    (easy,) = candidates(SERVED, [4], DEMAND, HOST)
    assert candidate.cores > easy.cores


def test_what_takes_too_long_alone_is_not_possible() -> None:
    found = candidates(SERVED, (1, 8), replace(DEMAND, p99_us=300.0), HOST)
    assert [candidate.carries for candidate in found] == [0, 0] and best(found) is None


def test_bursts_and_headroom_take_more_cores() -> None:
    def cores(demand: Demand) -> int:
        return candidates(SERVED, [8], demand, HOST)[0].cores

    tight = replace(DEMAND, p99_us=2000.0)
    assert cores(tight) < cores(replace(tight, burst=3.0))
    assert cores(tight) < cores(replace(tight, utilisation=0.2))


class Plays:
    """How often the queue was played through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        monkeypatch.setattr(choosing, "wait", self.wait)

    def wait(self, *arguments: Any) -> Waiting:
        self.number += 1
        return wait(*arguments)


SMALL = Worker((20.0,) * 32, (200.0,) * 32, 150.0, 150.0, 256, 32)


@pytest.mark.parametrize("p99_us", [3800.0, 4700.0])
def test_bursts_whose_p99_hardly_falls_with_the_rate_are_counted_soon(
    monkeypatch: pytest.MonkeyPatch, p99_us: float
) -> None:
    bursts, plays = Demand(5000, p99_us, 1, 5.0, 0.7), Plays(monkeypatch)
    final = stream(5.0, 40_000)
    found = choosing._candidate(32, SMALL, bursts, stream(5.0, 8_000), final)
    assert plays.number <= 45
    if found.waiting is None:
        assert wait(SMALL, choosing.LEAST_LOAD * 2 * SMALL.saturation, final).p99_us > p99_us
    else:
        assert found.waiting.p99_us <= p99_us < wait(SMALL, found.carries * 1.02, final).p99_us
        assert found.cores == math.ceil(5000 / found.carries)


def test_what_only_the_small_sample_has_in_time_is_not_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    plays = Plays(monkeypatch)
    early, late = stream(1.0, 500), np.repeat(np.arange(1.0, 101.0) * 50, 50)  # by fifties, however low the rate
    found = choosing._candidate(32, SMALL, replace(DEMAND, p99_us=1500.0), early, late)
    assert (found.carries, found.cores, found.waiting) == (0, 0, None) and plays.number < 60


@pytest.mark.usefixtures("every_arrival")
@pytest.mark.parametrize(("p99_us", "burst", "uncertain"), [(2000.0, 3.0, True), (5000.0, 1.0, False)])
def test_a_count_that_other_arrivals_would_change_is_told(p99_us: float, burst: float, uncertain: bool) -> None:
    demand = replace(DEMAND, rps=400_000, p99_us=p99_us, burst=burst)
    found = answer(Question("m", "trn2", "float32", (), demand, HOST, SERVED), [4], find_instances("trn2"))
    assert found.chosen is not None and found.chosen.limited_by == ("p99" if uncertain else "host")
    assert [line.plain[:9] for line in uncertain_lines(found)] == ["Uncertain"] * uncertain


# ---- instances


def test_every_instance_says_where_its_figures_are_from_and_every_target_has_one() -> None:
    assert {instance.target for instance in instances().values()} == set(target_names())
    assert all(instance.source for instance in instances().values())
    cores = {name: instance.cores for name, instance in instances().items()}
    assert (cores["trn1.2xlarge"], cores["trn1.32xlarge"], cores["trn2.3xlarge"], cores["trn2.48xlarge"]) == (
        2,
        32,
        8,
        128,
    )


def test_cores_or_the_host_say_how_many_instances() -> None:
    known = find_instances("trn1")
    by_cores = fleets(known, 5, cpu_s=0.5, utilisation=0.7)
    assert [(fleet.count, fleet.instance.name, fleet.limited_by) for fleet in by_cores[:2]] == [
        (3, "trn1.2xlarge", "cores"),
        (1, "trn1.32xlarge", "cores"),
    ]
    by_host = fleets(known, 1, cpu_s=20.0, utilisation=0.5)
    assert [(fleet.count, fleet.instance.name, fleet.limited_by) for fleet in by_host[:2]] == [
        (5, "trn1.2xlarge", "host"),
        (1, "trn1.32xlarge", "cores"),
    ]


def test_one_instance_can_be_asked_for() -> None:
    assert [instance.name for instance in find_instances("trn2", "trn2.48xlarge")] == ["trn2.48xlarge"]
    with pytest.raises(OptionError, match=r"trn1\.2xlarge has trn1") as caught:
        find_instances("trn2", "trn1.2xlarge")
    assert "trn2.48xlarge" in (caught.value.hint or "")
    with pytest.raises(OptionError, match="no instance 'trn2'"):
        find_instances("trn2", "trn2")


# ---- what is said


@pytest.mark.parametrize(
    ("text", "us"), [("20ms", 2e4), ("0.02s", 2e4), ("20000us", 2e4), (" 1.5 ms ", 1500), (".5s", 5e5), ("3 µs", 3)]
)
def test_durations(text: str, us: float) -> None:
    assert read_duration(text) == pytest.approx(us)


@pytest.mark.parametrize("text", ["", "ms", "-3ms", "0ms", "1e3ms", "nan s", "inf s", "20 m", "1,5ms", "9" * 400 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="no duration") as caught:
        read_duration(text)
    assert "20ms" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["20", " 0.5 "])
def test_a_duration_needs_its_unit(text: str) -> None:
    with pytest.raises(OptionError, match="has no unit") as caught:
        read_duration(text)
    assert "20ms" in (caught.value.hint or "")


def test_durations_are_read_by_people() -> None:
    times = (0.5, 15.526, 999.4, 999.6, 2884.0, 999_400, 999_600, 3e9, math.inf)
    assert [time_text(time) for time in times] == [
        *("0.5 us", "15.5 us", "999 us", "1 ms", "2.88 ms", "999 ms", "1 s", "3e+03 s", "never"),
    ]


def test_the_errors_that_are_told_are_those_of_the_timing_models_page() -> None:
    page = (ROOT / "docs" / "timing.md").read_text(encoding="utf-8")
    median, worst = re.findall(r"median ([\d.]+)%, worst ([\d.]+)%", page)[0]
    assert (float(median), float(worst)) == (MEDIAN_ERROR, WORST_ERROR)
    assert f"{MEDIAN_ERROR:g} % off in the median and {WORST_ERROR:g} % at worst" in page
    (trust,) = trust_notes("trn2")
    assert f"{MEDIAN_ERROR:g} %" in trust and f"{WORST_ERROR:g} %" in trust
    assert "16 % slower" in assumptions()["utilisation"][1] and 1 / default_utilisation() == pytest.approx(
        1.16 * 1.23, rel=0.01
    )
    assert "never compared" in trust_notes("trn3")[0] and not get_target("trn3").timing.compared


def test_every_assumption_has_a_source() -> None:
    text = (files("trnrt.capacity") / "assumptions.toml").read_text(encoding="utf-8")
    assert text.count("\nvalue = ") == text.count("\nsource = ") == len(assumptions())


# ---- trnrt plan


def plan(*arguments: str) -> list[str]:
    return ["plan", CNN, "--rps", "5000", "--p99", "20ms", "--target", "trn2", "--max-batch", "4", *arguments]


@pytest.mark.usefixtures("every_arrival")
def test_plan_says_what_a_rate_needs_and_on_what_that_rests(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    outcome = trnrt(*plan("--json-out", str(file)))
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "digits_cnn in float32 on trn2: 5,000 requests/s of 1 row, 99 % answered within 20 ms"
    document = json.loads(file.read_text(encoding="utf-8"))
    chosen, (first, *_) = document["chosen"], document["instances"]
    assert lines[1].startswith(f"{chosen['cores']} cores, batches of {chosen['max_batch']} at most: expected p99 ")
    assert f"{first['count']} x {first['name']}" in lines[1] and "--workers" in lines[2]
    assert len([line for line in lines if line.startswith("> ")]) == 2
    assert sum(line.endswith("planned") for line in lines) == 1
    for told in ("Poisson", "assumptions.toml", "machine/trn2.toml", "standard error", "--max-delay-ms"):
        assert told in outcome.out
    assert "none of this ran on a device" in outcome.err


def test_the_document_is_the_answer() -> None:
    document = trnrt(*plan("--json")).document
    assert document["schema_version"] == 1
    assert list(document["predicted_us"]) == ["1", "2", "4"]
    assert document["asked"] == {"rps": 5000, "p99_us": 20000, "rows": 1, "burst": 1, "utilisation": 0.7}
    chosen = document["chosen"]
    assert chosen in document["candidates"]
    assert chosen["waiting"]["p99_us"] <= 20000 and chosen["load"] <= 0.7
    assert chosen["cores"] == min(candidate["cores"] for candidate in document["candidates"])
    assert document["assumed"]["link"]["gbps"] == host_link("trn2").gbps
    rates = [point["rate"] for point in document["curve"]]
    assert rates == sorted(rates) and len(rates) == 9
    assert set(document["sources"]) == set(assumptions())
    assert {fleet["target"] for fleet in document["instances"]} == {"trn2"}


def test_the_server_that_is_printed_is_the_one_that_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,W] x) => (float[N,W] y) { y = Relu(x) }'
    )
    path = tmp_path / "a model.onnx"
    onnx.save(model, path)
    monkeypatch.setenv("COLUMNS", "80")
    flags = ("--target", "trn1", "--dtype", "bfloat16", "--shape", "x=12", "--fallback", "onnxruntime")
    outcome = trnrt("plan", path, "--rps", "9", "--p99", "1s", "--max-batch", "2", *flags)
    assert outcome.code == 0, outcome.err
    (line,) = (line for line in outcome.out.splitlines() if line.startswith("    trnrt serve "))
    assert len(line) > 80  # whoever copies it has all of it
    asked: list[dict[str, Any]] = []

    def serve(given: dict[str, Any]) -> int:
        asked.append(given)
        return 0

    monkeypatch.setattr("trnrt.commands.serve.serve", serve)
    assert trnrt(*shlex.split(line)[1:]).code == 0
    most = int(re.findall(r"batches of (\d) at\s+most", outcome.out)[0])
    assert asked == [
        {
            "models": [path],
            "workers": 1,
            "max_batch": most,
            "target": "trn1",
            "dtype": "bfloat16",
            "fallback": "onnxruntime",
            "shape": ["x=12"],
        }
    ]


def test_a_plan_that_no_server_makes_is_refused_or_told() -> None:
    """``trnrt serve`` compiles every size up to its ``--max-batch``, and on a NeuronCore with effort 1."""
    refused = trnrt(*plan("--buckets", "1,4"))
    assert refused.code == 2 and "No such option" in refused.err
    assert "plans with --effort 1" in trnrt(*plan("--effort", "0", "--max-batch", "1")).err


def test_more_cores_than_a_server_has_workers_take_several_servers() -> None:
    told = "".join(trnrt(*plan("--rps", "250000", "--instance", "trn2.48xlarge")).out.splitlines()[1:3])
    cores, servers, workers = map(
        int, re.findall(r"^(\d+) cores.*1 x trn2\.48xlarge.* (\d) x:.*--workers (\d+)", told)[0]
    )
    assert cores > WORKERS >= workers and servers == 2 and servers * workers - cores in (0, 1)


def test_what_is_printed_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    question = plan("--rps", "500000", "--max-batch", "1")
    monkeypatch.setenv("COLUMNS", "80")
    tables = trnrt(*question).out.partition("\n\n")[2].partition("Assumed:")[0]
    assert tables.count("\n") > 15
    monkeypatch.setenv("COLUMNS", "300")
    assert tables in trnrt(*question).out


def test_the_same_question_has_the_same_answer() -> None:
    question = plan("--max-batch", "1", "--json")
    assert trnrt(*question).out == trnrt(*question).out


def test_what_can_not_be_in_time_is_an_answer_too() -> None:
    outcome = trnrt("plan", CNN, "--rps", "10", "--p99", "40us", "--target", "trn1", "--json")
    assert outcome.code == 1
    document = outcome.document
    assert document["chosen"] is None and document["instances"] == [] and document["least_us"] > 500
    assert list(document["predicted_us"]) == ["1"]  # no larger batch is planned for nothing
    text = trnrt("plan", CNN, "--rps", "10", "--p99", "40us", "--target", "trn1")
    assert text.code == 1 and "not possible: even without a queue a request takes" in text.out
    told = " ".join(text.out.split())
    assert "500 us on the host (--host-us)" in told and "(1.66 ms after a pause)" in told
    known = trnrt("plan", CNN, "--rps", "10", "--p99", "40us", "--target", "trn1", "--host-us", "100")
    assert "after a pause" not in known.out


def test_rates_are_written_as_people_read_them() -> None:
    assert [rate_text(rate) for rate in (0.5, 12.25, 5000.0, 1e6, 1e9)] == [
        "0.5",
        "12.25",
        "5,000",
        "1,000,000",
        "1,000,000,000",
    ]


def test_a_quick_host_leaves_it_to_the_device() -> None:
    document = trnrt(*plan("--host-us", "2", "--instance", "trn2.48xlarge", "--json")).document
    assert document["chosen"]["limited_by"] == "device"
    assert [fleet["name"] for fleet in document["instances"]] == ["trn2.48xlarge"]
    assert "(--host-us)" in trnrt(*plan("--host-us", "2")).out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--p99", "20"), "has no unit"),
        (("--instance", "trn1.2xlarge"), "trn1.2xlarge has trn1"),
        (("--json-out", "/nowhere/plan.json"), "can't write"),
        (("--shape", "image=3"), "image"),
    ],
)
def test_wrong_requests_are_refused(arguments: tuple[str, ...], told: str) -> None:
    outcome = trnrt(*plan(*arguments))
    assert outcome.code == 2 and told in outcome.err and not outcome.out


@pytest.mark.parametrize("flag", ["--rps=0", "--rps=nan", "--rps=-1", "--rows=0", "--utilisation=1.5", "--burst=inf"])
def test_numbers_have_limits(flag: str) -> None:
    assert trnrt(*plan(flag)).code == 2


def test_a_fixed_batch_is_filled_up(tmp_path: Path) -> None:
    import onnx

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[4,3] x) => (float[4,3] y) { y = Relu(x) }'
    )
    path = tmp_path / "fixed.onnx"
    onnx.save(model, path)
    outcome = trnrt("plan", path, "--rps", "100", "--p99", "10ms", "--max-batch", "16", "--json")
    assert [candidate["max_batch"] for candidate in outcome.document["candidates"]] == [4]
    assert "fixed at 4" in outcome.err


def test_rows_that_depend_on_each_other_are_a_batch_by_themselves(tmp_path: Path) -> None:
    import onnx

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,3] x) => (float[N,3] y) { y = Softmax<axis=0>(x) }'
    )
    path = tmp_path / "mixing.onnx"
    onnx.save(model, path)
    outcome = trnrt("plan", path, "--rps", "100", "--p99", "10ms", "--rows", "6", "--json")
    assert list(outcome.document["predicted_us"]) == ["6"]
    assert outcome.document["chosen"]["waiting"]["batch"] == 1
    assert outcome.document["mergeable"] is False
    assert "requests are not merged: the rows of a batch are not independent, Softmax" in outcome.err
    text = trnrt("plan", path, "--rps", "100", "--p99", "10ms", "--rows", "6").out
    assert "each request is a batch by itself" in " ".join(text.split())


def test_rows_that_come_together_only_are_asked_for_together(tmp_path: Path) -> None:
    import onnx

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[4,3] x) => (float[4,3] y) { y = Softmax<axis=0>(x) }'
    )
    path = tmp_path / "fixed_mixing.onnx"
    onnx.save(model, path)
    question = ("plan", path, "--rps", "100", "--p99", "10ms")
    outcome = trnrt(*question)
    assert outcome.code == 2 and "takes 4 rows at a time" in outcome.err and "--rows 4" in outcome.err
    assert trnrt(*question, "--rows", "4").code == 0


def test_what_runs_on_the_cpu_is_told(tmp_path: Path) -> None:
    import onnx

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,3] x) => (float[N,3] y) { a = Relu(x)  y = Hardmax(a) }'
    )
    path = tmp_path / "part.onnx"
    onnx.save(model, path)
    question = ("plan", path, "--rps", "100", "--p99", "10ms", "--max-batch", "1")
    refused = trnrt(*question)
    assert refused.code == 1 and "Hardmax" in refused.err
    outcome = trnrt(*question, "--fallback", "onnxruntime")
    assert outcome.code == 0 and "runs on the CPU" in outcome.err and "own time is not predicted" in outcome.err
