"""``trnrt bench models``: its networks are torchvision's, its bounds physical, its bars the issue's, and no network
gets slower unseen: ``tests/golden/models.json`` has every prediction, of trn1 and trn2.

``UPDATE_GOLDEN=1 pytest tests/unit/test_bench_models.py -k golden`` writes the predictions anew, and what the planner's
search has found for them (``found.json``), which takes a while: else that is planned as it was found.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from planning import drawn, modelled
from typer.testing import CliRunner

from trnrt.bench.models import table
from trnrt.bench.models.bounds import Work, outline, work_of
from trnrt.bench.models.networks import NETWORKS, Network, light_networks
from trnrt.bench.models.table import Model, Published, Row, kinds, networks, published
from trnrt.cli import app
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.crossing import host_link
from trnrt.report.models import host_us
from trnrt.session import InferenceSession

GOLDEN = Path(__file__).parents[1] / "golden" / "models.json"
FOUND = GOLDEN.parent / "found.json"
TARGETS = ("trn1", "trn2")
ACCEPTED = 0.02
UPDATE = "UPDATE_GOLDEN=1 pytest tests/unit/test_bench_models.py -k golden"

# torchvision's table of pretrained weights: parameters, and multiplications in units of 1e9 ("GFLOPS" there).
TORCHVISION = {
    "resnet18": (11_689_512, 1.81),
    "resnet34": (21_797_672, 3.66),
    "resnet50": (25_557_032, 4.09),
    "resnet101": (44_549_160, 7.80),
    "resnet152": (60_192_808, 11.51),
    "vgg11": (132_863_336, 7.61),
    "vgg16": (138_357_544, 15.47),
}

Numbers = dict[str, float]


def key(row: Row) -> str:
    return f"{row.target} {row.dtype} batch {row.batch}"


def strays(found: Numbers, golden: Numbers) -> list[str]:
    """What is to be said of predictions that are not the recorded ones."""
    told = [f"{name}: recorded, but no longer predicted" for name in sorted(golden.keys() - found.keys())]
    for name, us in found.items():
        known = golden.get(name)
        if known is None:
            told.append(f"{name}: {us} us, not recorded yet")
        elif us > known * (1 + ACCEPTED):
            told.append(f"{name}: {us / known - 1:+.1%}, from {known} to {us} us: make it as fast again, or say why")
        elif us < known * (1 - ACCEPTED):
            told.append(f"{name}: {us / known - 1:+.1%}, from {known} to {us} us: record it, or it may be lost unseen")
    return told


def record(path: Path, model: str, found: dict[str, Any]) -> None:
    """Put what belongs to one network into a file; other processes may do the same at the same time."""
    path.touch()
    with path.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        recorded = json.loads(file.read() or "{}") | {model: found}
        order = [network.name for network in networks()]
        kept = {name: recorded[name] for name in order if name in recorded}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(kept, indent=2) + "\n")
        file.flush()


def found_before(network: Network, target: str) -> dict[tuple[str, int], Choices]:
    """What the search has found for a network's rows, when it was last asked."""
    recorded = json.loads(FOUND.read_text(encoding="utf-8")).get(network.name, {})
    return {
        (dtype, batch): Choices.of(recorded.get(f"{target} {dtype} batch {batch}", {}))
        for dtype, batch in kinds(network)
    }


def test_the_search_finds_what_is_recorded() -> None:
    network = next(network for network in networks() if network.name == "light_squeezenet")
    session = InferenceSession(
        network.build().SerializeToString(), target="trn2", backend="simulator", cache=False, effort=1
    )
    assert session.planned_for(1).choices == found_before(network, "trn2")["float32", 1] != DEFAULT


# The slowest come first, so that no process is left alone with one of them at the end.
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("network", networks()[::-1], ids=lambda network: network.name)
def test_golden(network: Network) -> None:
    model = Model(network)
    anew = os.environ.get("UPDATE_GOLDEN") == "1"
    rows = [row for target in TARGETS for row in model.rows(target, None if anew else found_before(network, target))]
    found = {key(row): round(row.predicted_us, 1) for row in rows}
    if anew:
        record(GOLDEN, network.name, found)
        record(FOUND, network.name, {key(row): row.choices.document for row in rows if row.choices != DEFAULT})
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")).get(network.name, {})
    told = [f"{network.name}, {text}" for text in strays(found, golden)]
    assert not told, "\n".join([*told, f"{UPDATE} records the new numbers; the change's log entry says why"])


def test_every_row_is_recorded_and_no_other() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {name: list(numbers) for name, numbers in golden.items()} == {
        network.name: [f"{target} {dtype} batch {batch}" for target in TARGETS for dtype, batch in kinds(network)]
        for network in networks()
    }


def test_two_percent_are_accepted_and_more_is_told() -> None:
    golden = {"a": 100.0, "b": 100.0}
    assert strays({"a": 101.9, "b": 98.1}, golden) == []
    slower, faster = strays({"a": 102.1, "b": 97.9}, golden)
    assert slower.startswith("a: +2.1%, from 100.0 to 102.1 us") and faster.startswith("b: -2.1%")
    lost, new = strays({"a": 100.0, "c": 1.0}, golden)
    assert lost.startswith("b: recorded") and new.startswith("c: 1.0 us, not recorded")


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_networks_are_torchvisions(network: Network) -> None:
    model = network.build()
    onnx.checker.check_model(model, full_check=model.ByteSize() < 2**28)
    work = work_of(outline(model), 1)
    convolutions = {node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    # BatchNormalization has a scale for each channel that is folded away; its shift is the bias.
    scales = sum(tensor.dims[0] for tensor in model.graph.initializer if tensor.name in convolutions)
    parameters, giga = TORCHVISION[network.name]
    assert work.weights + (scales if network.name.startswith("resnet") else 0) == parameters
    assert round(work.multiplications / 1e9, 2) == giga
    assert (work.inputs, work.outputs) == (3 * 224 * 224, 1000)


def test_a_network_runs_in_onnxruntime() -> None:
    model = NETWORKS[0].build()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"image": drawn(2, 3, 224, 224)})
    assert scores.shape == (2, 1000)
    assert 0.1 < np.std(scores[0]) < 100
    assert not np.allclose(scores[0], scores[1])


def test_weights_are_seeded_and_differ() -> None:
    first, again = (NETWORKS[0].build() for _ in range(2))
    assert first == again
    raw = [tensor.raw_data for tensor in first.graph.initializer]
    assert len(set(raw)) == len(raw)


def test_the_light_networks_are_all_there() -> None:
    assert len(light_networks()) == 9
    for network in light_networks():
        work = work_of(outline(network.build()), 1)
        assert work.inputs == 3 * 224 * 224 and work.outputs == 1000
        assert work.weights > 1e6 and work.multiplications > 1e8


def test_work_is_counted_by_hand() -> None:
    graph = """(float[N, 8, 10, 10] x) => (float[M, K] y) {
        c = Conv<kernel_shape=[3, 3], group=2>(x, w, b)
        f = Flatten(c)
        h = Gemm(f, g)
        n = Neg(m)
        y = MatMul(h, n)
    }"""
    constants = {"w": drawn(12, 4, 3, 3), "b": drawn(12), "g": drawn(12 * 64, 20), "m": drawn(20, 5)}
    work = work_of(outline(modelled(graph, constants)), 3)
    assert work.multiplications == 3 * (12 * 64 * 4 * 9 + 768 * 20 + 20 * 5)
    assert work.weights == 12 * 36 + 12 + 768 * 20 + 20 * 5  # what Neg makes of m is a constant, too
    assert (work.inputs, work.outputs) == (3 * 800, 3 * 5)


def test_gemm_may_turn_its_left_side() -> None:
    graph = "(float[7, 3] x) => (float[3, 90] y) { y = Gemm<transA=1>(x, w) }"
    assert work_of(outline(modelled(graph, {"w": drawn(7, 90)})), 1).multiplications == 3 * 90 * 7


def test_the_bound_is_the_slower_of_dma_and_the_tensor_engine() -> None:
    moving = Work(multiplications=0, weights=100_000, inputs=50_000, outputs=10_000)
    assert moving.bound_us("trn1", "bfloat16") == pytest.approx(1)  # 320 kB at 320 GB/s
    assert moving.bound_us("trn1", "float32") == pytest.approx(2)
    busy = replace(moving, multiplications=46_000_000 * 5)
    assert busy.bound_us("trn1", "bfloat16") == pytest.approx(5)  # 92 TFLOPS
    assert busy.bound_us("trn1", "float32") == pytest.approx(20)  # 23 TFLOPS


def test_bars_are_the_issues() -> None:
    known = {(model, batch): bars for (model, _, _, batch), bars in published().items()}
    assert len(known) == len(published()) == 10
    assert {(target, dtype) for _, target, dtype, _ in published()} == {("trn1", "bfloat16")}
    for model, (us, ratio) in {"resnet18": (596, 0.45), "resnet152": (1185, 0.5), "vgg16": (1956, 0.72)}.items():
        assert known[model, 1].us == pytest.approx(us)
        assert (known[model, 1].most_ratio, known[model, 1].most_bounds) == (ratio, 2)
    # 2161 images a second of two cores: 8 take one core 7.4 ms; 1.5 times as many are two thirds of the time.
    assert known["vgg16", 8].us == pytest.approx(7404, rel=1e-4)
    assert known["vgg16", 8].most_ratio == pytest.approx(2 / 3)
    assert known["resnet18", 8].most_ratio == known["resnet50", 8].most_ratio == pytest.approx(0.4)
    assert known["resnet50", 8].most_bounds is None


def made_row(**changes: Any) -> Row:
    work = Work(multiplications=0, weights=16_000_000, inputs=0, outputs=0)  # 100 us
    return replace(Row("m", "trn1", "bfloat16", 1, 190.0, work, Published(1000.0, 0.5, 2.0)), **changes)


def test_a_row_passes_within_both_bars() -> None:
    assert made_row().passed is True
    assert made_row().ratio == pytest.approx(0.19)
    assert made_row(predicted_us=201.0).passed is False
    assert made_row(predicted_us=201.0, published=Published(1000.0, 0.5, None)).passed is True
    assert made_row(predicted_us=501.0, published=Published(1000.0, 0.5, None)).passed is False
    assert made_row(published=Published(300.0, 0.5, 2.0)).passed is False
    free = made_row(published=None)
    assert (free.published_us, free.ratio, free.bar_us, free.passed) == (None, None, None, None)


def test_the_hosts_time_is_that_of_the_link() -> None:
    row = made_row(work=Work(0, 1, inputs=1_000_000, outputs=0))
    link = host_link("trn1")
    assert host_us(row) == pytest.approx(link.latency_us + 4_000_000 / (link.gbps * 1000))


def tiny(name: str, features: int) -> Network:
    graph = f"(float[N, {features}] x) => (float[N, 10] y) {{ y = Gemm(x, w) }}"
    return Network(name, partial(modelled, graph, {"w": drawn(features, 10)}))


def run(*flags: str) -> Any:
    return CliRunner().invoke(app, ["bench", "models", *flags], catch_exceptions=False)


@pytest.fixture
def two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "networks", lambda: (tiny("first", 40), tiny("second", 300)))
    bars = {("first", "trn1", "bfloat16", 1): Published(1e6, 0.5, None)}
    bars |= {("second", "trn1", "bfloat16", 8): Published(1.0, 0.5, None)}
    monkeypatch.setattr(table, "published", lambda: bars)


@pytest.mark.usefixtures("two_networks")
def test_the_verb_fails_where_a_bar_is_missed(tmp_path: Path) -> None:
    result = run("--target", "trn1", "--json", "--json-out", str(tmp_path / "models.json"))
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document == json.loads((tmp_path / "models.json").read_text(encoding="utf-8"))
    assert (document["benchmark"], document["passed"]) == ("models", False)
    keys = ["model", "target", "dtype", "batch", "predicted_us", "bound_us", "published_us", "ratio", "passed"]
    assert [list(row) for row in document["rows"]] == [keys, keys]
    first, second = document["rows"]
    assert (first["model"], first["batch"], first["passed"]) == ("first", 1, True)
    assert (second["model"], second["batch"], second["passed"]) == ("second", 8, False)
    assert 0 < second["bound_us"] < second["predicted_us"] == second["ratio"]
    text = run("--target", "trn1").stdout
    assert "MISS" in text and "2 rows with a bar, 1 missed" in text
    assert "PCIe included, which is not in ours" in text and "host us: an estimate for trn1" in text


@pytest.mark.usefixtures("two_networks")
def test_one_network_alone() -> None:
    result = run("--target", "trn1", "--only", "first")
    assert result.exit_code == 0
    assert "\nfirst" in result.stdout and "\nsecond" not in result.stdout
    assert "1 row with a bar, all reached" in result.stdout
    wrong = run("--only", "third")
    assert wrong.exit_code == 2
    assert "no network 'third'" in wrong.stderr and "first, second" in wrong.stderr


@pytest.mark.usefixtures("two_networks")
def test_other_targets_have_no_bars() -> None:
    result = run("--target", "trn2", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["rows"]
    assert [(row["target"], row["published_us"], row["ratio"], row["passed"]) for row in rows] == [
        ("trn2", None, None, None)
    ] * 2
    assert "published" not in run("--target", "trn2").stdout.partition("\n")[2]
