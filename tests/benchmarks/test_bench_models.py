"""The benchmark of models: its networks are torchvision's, its bounds physical at documented rates, and no ratio holds
the host's time. ``test_golden_predictions.py`` has every prediction."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from planning import drawn, modelled

from benchmarks.comparing import Figure, Kind
from benchmarks.models import table
from benchmarks.models.__main__ import app
from benchmarks.models.bounds import Work, outline, work_of
from benchmarks.models.host_part import fit_host
from benchmarks.models.networks import NETWORKS, Network, light_networks
from benchmarks.models.report import models_document, models_parts
from benchmarks.models.table import Published, Row, host_fit, latencies, published
from trnrt.nki.machine.timing import Range
from trnrt.report.console import render

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
    size = next(one for one in latencies() if one.model == network.name)
    assert (size.megabytes, size.gflop) == (2 * work.weights / 1e6, 2 * work.multiplications / 1e9)


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
    moving = Work(multiplications=0, weights=100_000, inputs=26_000, outputs=10_000)
    assert moving.bound("trn1", "bfloat16").us == pytest.approx(1)  # 272 kB at 272 GB/s
    assert moving.bound("trn1", "float32").us == pytest.approx(2)
    assert moving.bound("trn2", "bfloat16").us == pytest.approx(272 / 435.2)  # 16 engines of 27.2 GB/s
    busy = replace(moving, multiplications=46_000_000 * 5)
    assert (
        busy.bound("trn1", "bfloat16").us == busy.bound("trn1", "bfloat16").tensor_us == pytest.approx(5)
    )  # 92 TFLOPS
    assert busy.bound("trn1", "float32").us == pytest.approx(20)  # 23 TFLOPS
    assert busy.bound("trn1", "float32").memory_us == pytest.approx(2)


def test_bars_and_figures_are_those_recorded() -> None:
    known = {(model, batch): bars for (model, _, _, batch), bars in published().items()}
    assert len(known) == len(published()) == 10
    assert {(target, dtype) for _, target, dtype, _ in published()} == {("trn1", "bfloat16")}
    # What was once set as a share of AWS's figures stays, as a number.
    for model, (us, share) in {"resnet18": (596, 0.45), "resnet152": (1185, 0.5), "vgg16": (1956, 0.72)}.items():
        assert known[model, 1].measured.us == pytest.approx(us)
        assert known[model, 1].target_us == pytest.approx(share * us, rel=1e-4)
        assert known[model, 1].most_bounds == 2
    # 2161 images a second of two cores: 8 take one core 7.4 ms.
    assert known["vgg16", 8].measured.us == pytest.approx(7404, rel=1e-4)
    for model, speedup in {"resnet18": 2.5, "resnet50": 2.5, "vgg16": 1.5}.items():
        assert known[model, 8].target_us == pytest.approx(known[model, 8].measured.us / speedup, rel=1e-4)
    assert known["resnet50", 8].most_bounds is None
    device = known["resnet50", 1].device
    assert device is not None and known["resnet50", 8].measured.us / 8 > device.us  # what the page says of the host


def test_the_hosts_part_is_what_does_not_grow() -> None:
    made = [replace(one, us=400 + 3 * one.megabytes + 20 * one.gflop) for one in latencies()]
    exact = fit_host(made)
    assert (exact.constant_us, exact.us_per_mb, exact.us_per_gflop) == pytest.approx((400, 3, 20))
    assert exact.error_us == pytest.approx(0, abs=1e-6)
    assert max(map(abs, exact.residuals.values())) < 1e-6
    fitted = host_fit()
    assert fitted == fit_host(latencies())
    assert fitted.constant_us == pytest.approx(461.6, abs=0.1)
    assert (fitted.us_per_mb, fitted.us_per_gflop) == pytest.approx((3.46, 15.76), abs=0.01)
    # Least squares: the residuals have no part along any column.
    for column in ([1.0] * 7, [one.megabytes for one in latencies()], [one.gflop for one in latencies()]):
        assert np.dot(column, list(fitted.residuals.values())) == pytest.approx(0, abs=1e-6)
    assert fitted.residuals["resnet50"] == pytest.approx(62.6, abs=0.1)


LATENCY = Published(
    measured=Figure(1000.0, "end to end", "host", ""),
    target_us=500.0,
    most_bounds=2.0,
    device=Figure(400.0, "less host", "host", ""),
    residual_us=5.0,
)
THROUGHPUT = Published(Figure(1000.0, "throughput", "host", ""), target_us=500.0)


def made_row(us: float = 190.0, **changes: Any) -> Row:
    work = Work(multiplications=0, weights=13_600_000, inputs=0, outputs=0)  # 100 us
    return replace(Row("m", "trn1", "bfloat16", 1, Range(0.9 * us, us, 1.2 * us), work, LATENCY), **changes)


def test_a_row_passes_within_both_bars() -> None:
    assert made_row().verdict == "pass"
    assert [(bar.kind, bar.most_us) for bar in made_row().bars] == [("bound", pytest.approx(200)), ("own target", 500)]
    assert made_row(201.0).verdict == "missed"
    assert made_row(201.0, published=THROUGHPUT).verdict == "pass"
    assert made_row(501.0, published=THROUGHPUT).verdict == "missed"
    assert made_row(published=replace(LATENCY, target_us=180.0)).verdict == "missed"
    free = made_row(published=None)
    assert (free.device_ratio, free.bars, free.verdict) == (None, (), None)


def test_bars_and_ratios_are_of_the_headline() -> None:
    row = made_row(199.0)
    assert row.predicted.most_us > 200 and row.verdict == "pass"
    assert made_row(201.0).predicted.least_us < 200 and made_row(201.0).verdict == "missed"
    (line,) = models_document([row])["rows"]
    assert [line[key] for key in ("low_us", "predicted_us", "high_us")] == pytest.approx([179.1, 199.0, 238.8])
    rows = [replace(row, model="resnet18"), made_row(800.0, model="resnet18", batch=8, published=THROUGHPUT)]
    text = render(models_parts(rows))
    assert text.count("199 (179 to 239)") == 4  # over the bound, less the host, and for both bars
    assert "100 (90 to 120)" in text  # an item of 8


def test_no_ratio_is_formed_with_the_hosts_time() -> None:
    assert made_row().device_ratio == pytest.approx(190 / 400)
    assert made_row(published=THROUGHPUT).device_ratio is None
    for kind in get_args(Kind):
        row = made_row(published=replace(LATENCY, device=Figure(400.0, kind, "host", "")))
        assert (row.device_ratio is not None) == (kind in {"measured kernel", "less host"}), kind


def test_the_document_has_no_ratio_but_those_declared() -> None:
    for (model, target, dtype, batch), known in published().items():
        row = made_row(model=model, target=target, dtype=dtype, batch=batch, published=known)
        (line,) = models_document([row])["rows"]
        ratios = {key: value for key, value in line.items() if "ratio" in key}
        assert ratios.keys() == {"bound_ratio", "device_ratio"}
        assert ratios["bound_ratio"] == pytest.approx(1.9)
        assert line["published"]["kind"] == ("end to end" if batch == 1 else "throughput")
        assert line["compared_with"] == ("less host" if batch == 1 else "no comparison")
        assert (line["device_ratio"] is None) == (batch == 8)
        # No number of the row is the quotient of ours and a figure with the host's time in it.
        numbers = [value for value in line.values() if isinstance(value, float)]
        quotient = row.predicted_us / known.measured.us
        assert not any(value == pytest.approx(one) for value in numbers for one in (quotient, 1 / quotient))


def test_one_missed_bar_fails_the_table() -> None:
    assert models_document([made_row()])["passed"] is True
    assert models_document([made_row(), made_row(201.0)])["passed"] is False
    assert models_document([made_row(published=None)])["passed"] is True


def tiny(name: str, features: int) -> Network:
    graph = f"(float[N, {features}] x) => (float[N, 10] y) {{ y = Gemm(x, w) }}"
    return Network(name, partial(modelled, graph, {"w": drawn(features, 10)}))


def run(*flags: str) -> Any:
    return CliRunner().invoke(app, flags, catch_exceptions=False)


@pytest.fixture
def two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "networks", lambda: (tiny("first", 40), tiny("second", 300)))
    bars = {("first", "trn1", "bfloat16", 1): replace(THROUGHPUT, target_us=1e6)}
    bars |= {("second", "trn1", "bfloat16", 8): replace(THROUGHPUT, target_us=1.0)}
    monkeypatch.setattr(table, "published", lambda: bars)


@pytest.mark.usefixtures("two_networks")
def test_the_verb_fails_where_a_bar_is_missed(tmp_path: Path) -> None:
    result = run("--target", "trn1", "--json", "--json-out", str(tmp_path / "models.json"))
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document == json.loads((tmp_path / "models.json").read_text(encoding="utf-8"))
    assert (document["benchmark"], document["passed"]) == ("models", False)
    assert document["schema_version"] == 3
    keys = ["model", "target", "dtype", "batch", "predicted_us", "low_us", "high_us", "bound_us", "bound_ratio"]
    assert [list(row)[:9] for row in document["rows"]] == [keys, keys]
    assert document["rates"]["trn1"]["gbps"] == 272
    assert document["host_fit"]["constant_us"] == host_fit().constant_us
    first, second = document["rows"]
    assert (first["model"], first["batch"], first["passed"]) == ("first", 1, True)
    assert (second["model"], second["batch"], second["passed"]) == ("second", 8, False)
    assert 0 < second["bound_us"] < second["low_us"] < second["predicted_us"] < second["high_us"]
    assert second["published"]["us"] == 1000 and second["published_per_item_us"] == 125
    text = run("--target", "trn1").stdout
    assert "MISS" in text and "2 rows with a bar, 1 missed" in text
    assert text.index("x bound") < text.index("AWS")  # the bound leads
    assert "at 272 GB/s on trn1" in text and "link us: an estimate for trn1" in text


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
    assert [(row["target"], row["published"], row["device_ratio"], row["passed"]) for row in rows] == [
        ("trn2", None, None, None)
    ] * 2
    assert "target of ours" not in run("--target", "trn2").stdout
