"""Traces beside our timelines: that the reader reads what is there, that pairs are right, and what the verb says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from made_up_report import instruction, packet, report_of, update

from benchmarks.timing.__main__ import app
from benchmarks.timing.traces.aligning import MEASURED, SAME, align
from benchmarks.timing.traces.cases import CASES, find_case, likeness, predicted
from benchmarks.timing.traces.clock import grids
from benchmarks.timing.traces.comparing import compare
from benchmarks.timing.traces.facts import compare_facts
from benchmarks.timing.traces.record import Event, Run
from benchmarks.timing.traces.resolving import read_run
from trnrt.calibration import attention
from trnrt.errors import InputError, OptionError
from trnrt.nki import simulate

NAMES = [case.name for case in CASES]


def event(kind: str, size: int, start: int = 0, engine: str = "vector", source: str = "", **more: Any) -> Event:
    return Event(engine, kind, size, start, start + 10, source=source, **more)


# --- the kernels compute what they say


@pytest.mark.parametrize("kernel", [attention.attention_unfused, attention.attention_fused])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (ml_dtypes.bfloat16, 1e-3)])
@pytest.mark.parametrize("length", [512, 1024])
def test_attention(kernel: Any, dtype: Any, tolerance: float, length: int) -> None:
    rng = np.random.default_rng(length)
    q, k, v = (rng.uniform(-0.5, 0.5, (128, length)).astype(dtype) for _ in range(3))
    ours = np.asarray(simulate(kernel, "trn2")(q, k, v), np.float32)
    assert ours.shape == (length, 128)
    assert np.abs(ours - attention.attention(q, k, v)).max() < tolerance


# --- a device that keeps to our timeline


def written(path: Path, report: Any) -> Path:
    path.write_text(json.dumps(report), encoding="utf-8")
    return path


@pytest.fixture(params=CASES, ids=NAMES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A case, and the report that a device would give that kept to its timeline."""
    return request.param, written(tmp_path / "report.json", report_of(predicted(request.param)))


def test_our_own_timeline_is_recognised_and_no_event_differs(kept: tuple[Any, Path]) -> None:
    case, path = kept
    found = compare(path)
    assert (found.match.case, found.match.likeness, found.match.guessed) == (case, 1.0, True)
    begin, *pairs = found.pairs
    assert (begin.how, begin.measured) == (MEASURED, (0,))  # the kernel has begun, but gpsimd shows nothing yet
    assert {pair.how for pair in pairs} == {SAME}
    assert all(pair.measured == tuple(number + 1 for number in pair.ours) for pair in pairs)
    assert {(row.start_difference, row.duration_difference) for row in found.rows[1:]} == {(0, 0)}
    assert (found.measured.first, found.measured.last) == (found.ours.first, found.ours.last)
    same = [fact for fact in found.facts if fact.mechanism in ("semaphores", "triggers", "transfers", "program")]
    assert len(same) > 15
    assert {fact.error for fact in same if fact.measured and fact.measured.median} == {0.0}


@pytest.mark.parametrize("one", CASES, ids=NAMES)
def test_cases_are_told_apart(one: Any) -> None:
    others = [likeness(predicted(one), predicted(other)) for other in CASES if other != one]
    assert max(others) < 0.8 < likeness(predicted(one), predicted(one)) == 1.0


def test_another_kernel_is_refused_unless_it_is_named() -> None:
    run = Run("x.json", (event("product", 512),), 10, 0, 10)
    with pytest.raises(
        InputError, match=r"x\.json is like no known kernel: its work is \d+ % that of attention"
    ) as error:
        find_case(run)
    assert "--kernel" in (error.value.hint or "")
    assert find_case(run, NAMES[1]).case.name == NAMES[1]
    with pytest.raises(OptionError, match=r"no kernel is called 'atention'.*attention-unfused-fp32-512"):
        find_case(run, "atention")
    with pytest.raises(InputError, match=r"is of inf2\.xlarge, but .* is compared on trn2"):
        find_case(replace(run, facts={"instance_type": "inf2.xlarge"}), NAMES[0])


# --- what is read of a report


def small_report() -> Any:
    """A load of two packets an engine, a product of two passes, a copy that waits for both by two instructions."""
    load = "semaphore=8 sem_increment=2 src_elem_size=512 dst_elem_size=512 src_pattern=[512,1][128,1] "
    load += "dst_pattern=[262144,1][128,1] compute_op=NONE"
    copy = "S[5] (Tensor)>=1 S[4] (Scalar)++@complete src=fp32@0x2000000[1,1,1,1][64,2,1,1] dst=bfloat16@0x400[1][128]"
    moving = "src=fp32@0x4000[1,0,0][128,1,1] dst=0x2000000[1,0,0][128,1,1] 128*128"
    rows = [
        instruction("Sync", "NOTIFY", 10, 5, "", name=""),
        instruction("Sync", "DMA_DIRECT2D", 100, 60, load, name="I-1", number=1),
        instruction("Tensor", "LDWEIGHTS", 410, 80, f"S[8] (q)>=2 fp32_mode=LOW {moving}", name="I-2", number=1),
        instruction("TensorMatrix", "MATMUL", 440, 90, moving, name="I-2", number=2),
        instruction("Tensor", "LDWEIGHTS", 445, 80, f"fp32_mode=HIGH {moving}", name="I-2", number=3),
        instruction("TensorMatrix", "MATMUL", 500, 90, f"S[5] (Tensor)++@complete {moving}", name="I-2", number=4),
        instruction("Scalar", "EVENT_SEMAPHORE", 404, 40, "S[8] (q)>=2 setter=0", name="I-3-wait-0"),
        instruction("Scalar", "COPY", 630, 70, copy, name="I-3"),
        instruction("Sync", "DRAIN", 900, 5, "", name=""),
        {**instruction("Sync", "DRAIN", 0, 5000, "", name=""), "subgraph": "sg01"},
    ]
    packets = [
        packet(1, "hardware", engine, start + engine, start + engine + length, size)
        for engine in (64, 65)
        for start, length, size in ((100, 20, 512), (130, 20, 512), (148, 9, 4))
    ]
    packets.append(packet(14, "instruction", 70, 0, 50, 16384))
    updates = [update("8", 0, 2), update("S[8] (qSync)", 1, 380), update("S[8] (qSync)", 2, 396)]
    updates += [update("S[5] (Tensor)", 1, 607), update("S[4] (Scalar)", 1, 709), update("S[8] (qSync)", 0, 950)]
    return {
        "instruction": rows,
        "dma": packets,
        "semaphore_update": updates,
        "dma_queues_info": [{"q_idx": 1, "q_name": "qSync"}, {"q_idx": 14, "q_name": "qTable"}],
        "ham": [{"timestamp": 450, "duration": 500, "k": 8, "n": 8}],
        "active_time": [{"engine": "scalar", "duration_ns": 40}, {"engine": "scalar", "duration_ns": 70}],
        "summary": [{"total_time": 1.5e-6, "instance_type": "trn2.3xlarge"}],
        "warnings": [{"message": "so so"}],
    }


def test_a_small_report(tmp_path: Path) -> None:
    run = read_run(written(tmp_path / "small.json", small_report()))
    load, wait, product, copy = run.events
    assert (run.total, run.first, run.last, run.before, run.after) == (1500, 100, 709, 1, 1)
    assert (run.foreign, run.active, run.notes) == ({"qTable": 1}, {"scalar": 110}, ("the profiler warns: so so",))
    assert (load.kind, load.size, load.engine, load.duration, load.seen) == ("load", 65536, "sync", 60, 396)
    assert load.transfer is not None
    assert (load.transfer.queue, load.transfer.mode, load.transfer.direction) == ("qSync", "hardware", "load")
    assert (load.transfer.start, load.transfer.end, load.transfer.seen) == (164, 215, 396)
    assert Counter(packet.mark for packet in load.transfer.packets) == {False: 4, True: 2}
    assert (wait.kind, wait.engine, wait.ready, wait.waited_for) == ("wait", "scalar", 396, 0)
    assert (product.kind, product.size, product.place, product.slow) == ("product", 128, "fp32", True)
    assert (product.start, product.end, product.seen, product.ready, product.waited_for) == (410, 590, 607, 396, 0)
    assert [one.load[0] for one in product.passes] == [410, 445]
    assert [one.product for one in product.passes] == [(440, 530), (500, 590)]
    assert (copy.kind, copy.size, copy.place, copy.source) == ("copy", 128, "P fp32 to S bf16", "product")
    assert (copy.ready, copy.waited_for, copy.seen) == (607, 2, 709)


def test_the_waits_before_an_instruction_are_its_own(tmp_path: Path) -> None:
    """Whichever of its two semaphores an instruction leaves to the one before it."""
    report = small_report()
    wait, copy = (
        next(row for row in report["instruction"] if row["bir_instruction_name"] == n) for n in ("I-3-wait-0", "I-3")
    )
    wait["operands"], wait["timestamp"] = "S[5] (Tensor)>=1 setter=0", 612
    copy["operands"] = copy["operands"].replace("S[5] (Tensor)>=1", "S[8] (q)>=2")
    events = {event.name: event for event in read_run(written(tmp_path / "r.json", report)).events}
    assert (events["I-3"].ready, events["I-3"].source) == (607, "product")


def test_what_its_engine_held_up_did_not_wait_for_its_semaphore() -> None:
    product = event("product", 512, engine="tensor")
    late, held = (event("copy", 512, start, "scalar", ready=15, waited_for=0) for start in (38, 48))
    waits = "scalar: from another engine's semaphore to the start"
    alone = compare_facts(*(Run("r", (product, late), 100, 0, 100),) * 2)
    assert [fact.measured and fact.measured.median for fact in alone if fact.what == waits] == [23]
    both = compare_facts(*(Run("r", (product, late, held), 100, 0, 100),) * 2)
    assert [fact.measured and fact.measured.count for fact in both if fact.what == waits] == [1]


def facts_of(run: Run) -> dict[str, float]:
    return {fact.what: fact.measured.median for fact in compare_facts(run, run) if fact.measured}


def test_the_mechanisms_of_a_small_report(tmp_path: Path) -> None:
    found = facts_of(read_run(written(tmp_path / "small.json", small_report())))
    expected = {
        "before the kernel's first instruction": 100,
        "scalar: copy 128 P fp32 to S bf16": 70,
        "from one pass's start to the next: product 128 fp32, half clock": 60,
        "a load of weights: product 128 fp32, half clock": 80,
        "share of passes whose weights load behind the pass before: product 128 fp32, half clock": 100,
        "tensor: from an instruction's end to its semaphore": 17,
        "tensor: from a transfer's semaphore to the start": 14,
        "scalar: from a transfer's semaphore to the wait's start": 8,
        "scalar: from another engine's semaphore to the start": 23,
        "hardware descriptors, sync: the trigger": 60,
        "hardware load of 64 KiB: from the trigger to the first data": 64,
        "hardware load: from the last data to the semaphore": 181,
        "hardware load: a packet of 512 B": 20,
        "hardware load: from one packet of 512 B to the next on its engine": 30,
        "hardware load: from an engine's last data to its mark": -2,
        "hardware load: from the first engine's first data to the last engine's": 1,
    }
    assert {what: found.get(what) for what in expected} == expected


def test_a_trigger_that_waited_for_long_is_no_neighbour(tmp_path: Path) -> None:
    """Software descriptors: from one trigger to the next only where nothing else held it up."""
    report = small_report()
    for number, (start, waits) in enumerate([(200, ""), (250, ""), (1000, "S[4] (Scalar)>=1 ")]):
        text = report["instruction"][1]["operands"].replace("semaphore=8", f"{waits}semaphore={20 + number}")
        report["instruction"].append(instruction("GpSimd", "DMA_DIRECT2D", start, 40, text, name=f"J-{number}"))
        report["semaphore_update"] += [update(f"S[{20 + number}] (qPool)", n, start + 700 + n) for n in (1, 2)]
        report["dma"] += [
            packet(2, "software", 64, start + 500, start + 600, 65536),
            packet(2, "software", 64, start + 600, start + 609, 4),
        ]
    report["dma_queues_info"].append({"q_idx": 2, "q_name": "qPool"})
    found = {f.what: f.measured for f in compare_facts(*(read_run(written(tmp_path / "r.json", report)),) * 2)}
    interval = found["software descriptors, gpsimd: from one trigger to the next"]
    waited = found["software descriptors, gpsimd: from the semaphore to the trigger"]
    assert interval is not None and (interval.count, interval.median) == (1, 50)
    assert waited is not None and (waited.count, waited.median) == (1, 291)


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    report = small_report()
    report["dma"] = [row for row in report["dma"] if row["dma_engine"] == "70"]
    run = read_run(written(tmp_path / "r.json", report))
    assert "nothing is known of the packets of 1 triggers of qSync" in run.notes
    assert run.events[0].transfer is None and run.events[0].is_trigger
    report = small_report()
    report["dma"] += [packet(1, "hardware", engine, 600, 620, 4) for engine in (64, 65)]
    assert "qSync: packets of 2 transfers, but 1 triggers" in read_run(written(tmp_path / "r.json", report)).notes
    report = small_report()
    report["instruction"].append(instruction("Cc", "DMA", 1, 1, "", name="I-9"))
    assert (
        "1 instructions on Cc are left out: no such engine is known"
        in read_run(written(tmp_path / "r.json", report)).notes
    )


def without(table: str, field: str | None = None, value: Any = None) -> Callable[[], Any]:
    """The small report without a table, or with a field of its last record as it should not be."""

    def spoiled() -> Any:
        report = small_report()
        if field is None:
            del report[table]
        elif value is None:
            del report[table][0][field]
        else:
            report[table][0][field] = value
        return report

    return spoiled


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (list, "is no profiler's report: it holds no tables"),
        (lambda: {"traceEvents": []}, "lacks instruction, dma, semaphore_update; it has traceEvents"),
        (lambda: small_report() | {"dma": 7}, "dma is no list of records"),
        (lambda: small_report() | {"instruction": []}, "no instruction of its 0 has a compiler's name"),
        (without("dma"), "lacks dma"),
        (without("instruction", "timestamp"), "instruction 1: timestamp should be a whole number, not None"),
        (without("instruction", "duration", -4), "instruction 1: it starts at 10 and takes -4 ns"),
        (without("dma", "transfer_size", "big"), "dma 1: transfer_size should be a whole number, not 'big'"),
        (without("dma", "queue_type", 3), "dma 1: queue_type should be a text, not 3"),
        (without("semaphore_update", "id", "S"), "semaphore_update 1: 'S' is no semaphore"),
        (without("ham", "k", True), "ham 1: k should be a whole number, not True"),
    ],
)
def test_other_files_are_refused_in_words(tmp_path: Path, make: Callable[[], Any], words: str) -> None:
    path = written(tmp_path / "r.json", make())
    with pytest.raises(InputError) as error:
        read_run(path)
    assert words in str(error.value) and str(path) in str(error.value)


def test_files_that_hold_no_json(tmp_path: Path) -> None:
    for content in (b"", b"\xff\xfe\x00", b"{", b"[" * 100_000):
        (tmp_path / "r.json").write_bytes(content)
        with pytest.raises(InputError, match="is no JSON"):
            read_run(tmp_path / "r.json")
    with pytest.raises(InputError, match=r"can't read .*nowhere\.json"):
        read_run(tmp_path / "nowhere.json")


STRANGE: tuple[Any, ...] = (
    None,
    "",
    "x",
    -1,
    1e308,
    True,
    [],
    {},
    "S[5] (Tensor)>=",
    "src=fp32@0x0[][]",
    "semaphore=1 sem_increment=16",
)


def test_no_field_of_a_report_breaks_the_reader(tmp_path: Path) -> None:
    """Whatever stands in a field: the report is read, or refused in words."""
    refused = 0
    for table, rows in small_report().items():
        for row, field in [(n, field) for n, fields in enumerate(rows[:3]) for field in fields]:
            for value in STRANGE:
                report = small_report()
                report[table][row][field] = value
                try:
                    run = read_run(written(tmp_path / "r.json", report))
                    align(run, run)
                    compare_facts(run, run)
                    grids(run)
                except InputError as error:
                    refused += 1
                    assert str(tmp_path) in str(error)
    assert refused > 200


# --- the verb


def bench(*flags: object, fails: bool = False) -> Any:
    result = CliRunner().invoke(app, [*map(str, flags)], catch_exceptions=fails)
    assert (result.exit_code != 0) == fails
    return result


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Reports of two cases; in the second one's the scores are copied by another engine, and later."""
    first = written(tmp_path / "first.json", report_of(predicted(CASES[0])))
    report = report_of(predicted(CASES[3]))
    for row in report["instruction"]:
        if row["opcode"] == "COPY" and "[512,1,1,1]" in row["operands"]:
            row["label"] = "Scalar"
            row["timestamp"] += 5
    return [first, written(tmp_path / "second.json", report)]


def test_the_document(two: list[Path], tmp_path: Path) -> None:
    flags = [flag for path in two for flag in ("--trace", path)]
    document = json.loads(bench(*flags, "--json", "--json-out", tmp_path / "out.json").stdout)
    assert document == json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (document["schema_version"], document["benchmark"]) == (1, "timing traces")
    first, second = document["traces"]
    assert (first["file"], first["kernel"], first["guessed"]) == ("first.json", NAMES[0], True)
    assert first["total_ns"]["measured"] == first["total_ns"]["ours"] == predicted(CASES[0]).total
    assert [row["what"] for row in first["events"] if row["how"] != "same"] == ["wait"]
    moved = [row for row in second["events"] if row["how"] == "another engine"]
    assert [(row["lane"], row["start_difference"], row["duration_difference"]) for row in moved] == [
        ("scalar", -5, 0)
    ] * sum(event.what.startswith("copy 512") for event in predicted(CASES[3]).events)
    assert moved
    assert {row["measured"]["engine"] for row in moved} == {"scalar"} and {row["ours"]["engine"] for row in moved} == {
        "vector"
    }
    assert [engine["engine"] for engine in second["engines"]] == ["tensor", "vector", "scalar", "gpsimd", "sync"]
    assert second["clock"] == {"changes": [], "grids": []}
    fact = next(
        fact for fact in second["mechanisms"] if fact["what"] == "tensor: from an instruction's end to its semaphore"
    )
    assert fact["measured"]["median"] == fact["ours"]["median"] == 15 and fact["error"] == 0


def test_the_tables(two: list[Path]) -> None:
    text = bench("--trace", two[1], "--kernel", NAMES[3]).stdout
    assert f"second.json: {NAMES[3]} (as asked for)" in text
    assert "another engine" in text and "hardware" not in text and "software descriptors, gpsimd: the trigger" in text
    assert "(guessed: its work is 100 % that of it)" in bench("--trace", two[0]).stdout


def test_the_picture(two: list[Path], tmp_path: Path) -> None:
    bench("--trace", two[0], "--trace", two[1], "--trace-out", tmp_path / "picture.json")
    events = json.loads((tmp_path / "picture.json").read_text(encoding="utf-8"))["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["measured: first.json", f"ours: {NAMES[0]}", "measured: second.json", f"ours: {NAMES[3]}"]
    slices = [e for e in events if e["ph"] == "X"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"tensor", "DMA engine 64", "qGpSimdDynamic"} <= {name for (pid, _), name in threads.items() if pid == 1}
    engines = [sum(e["pid"] == pid and e["cat"] in ("tensor", "vector", "scalar") for e in slices) for pid in (1, 2)]
    assert engines[0] == engines[1] > 50
    assert min(e["ts"] for e in slices) == 0
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in slices:
        tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    assert tracks.keys() == threads.keys()
    for spans in tracks.values():
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(sorted(spans)))
    flows = Counter(e["ph"] for e in events if e["ph"] in "sf")
    assert flows["s"] == flows["f"] > 20


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--kernel", "x"], "--kernel and --trace-out need a profile"),
        (["--trace-out", "x.json"], "--kernel and --trace-out need a profile"),
        (["--trace", "x.json", "--fit"], "--fit and --trace are different comparisons"),
        (["--trace", "nowhere.json"], "can't read nowhere.json"),
        (["--trace", "nowhere.json", "--trace-out", "/"], "it is a directory"),
    ],
)
def test_wrong_options(flags: list[str], words: str) -> None:
    assert words in str(bench(*flags, fails=True).exception or "") + bench(*flags, fails=True).output
