"""The benchmark of networks: bounds counted by hand, what holds a network, and the bars."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from planning import drawn, modelled

from benchmarks.baseline.networks import BY_NAME
from benchmarks.documented import bound, guide_rates, rates
from benchmarks.models.bounds import Product, Work, list_products, outline, work_of
from benchmarks.networks import table
from benchmarks.networks.__main__ import app
from benchmarks.networks.floor import floor_us
from benchmarks.networks.report import networks_document, networks_parts
from benchmarks.networks.table import BY_BOUND, NETWORKS, Row, bars_of, baseline_us, best_of, measure
from trnrt.nki.breakdown import Holder
from trnrt.nki.machine.timing import Range
from trnrt.report.console import render


def chain() -> onnx.ModelProto:
    """Two products with Softmax between them."""
    constants = {"w": drawn(64, 64), "v": drawn(64, 64)}
    return modelled(
        "(float[N,64] x) => (float[N,64] y) { a = MatMul(x, w)  b = Softmax(a)  y = MatMul(b, v) }", constants
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small network in place of the eight."""
    monkeypatch.setattr(table, "NETWORKS", {"chain": chain})


WORK_OF_100_US = Work(multiplications=0, weights=18_400_000, inputs=0, outputs=0)
"""36.8 MB of bfloat16 at 368 GB/s."""


def made(network: str, batch: int, us: float, work: Work = WORK_OF_100_US) -> Row:
    """A row on trn2 in bfloat16."""
    return Row(network, "trn2", "bfloat16", batch, Range(0.9 * us, us, 1.2 * us), work, 10, 1, (Holder("launch", us),))


def test_the_guides_rates_are_at_most_the_theoretical_ones() -> None:
    assert [guide_rates(target).gbps for target in ("trn1", "trn2", "trn3")] == pytest.approx([272, 368, 528])
    assert all(guide_rates(one).gbps <= rates(one).gbps for one in ("trn1", "trn2", "trn3"))


def test_the_bound_by_hand() -> None:
    """trn2: 368 MB at 368 GB/s take 1 ms; 79 GFLOP of bfloat16 1 ms at 79 TFLOP/s, 20 GFLOP of float32, too."""
    found = bound("trn2", "bfloat16", 79e9, 368e6, guide_rates("trn2"))
    assert (found.memory_us, found.tensor_us) == pytest.approx((1000, 1000))
    assert bound("trn2", "float32", 20e9, 0, guide_rates("trn2")).tensor_us == pytest.approx(1000)
    assert bound("trn2", "bfloat16", 0, 435.2e6).memory_us == pytest.approx(1000)


def test_the_bound_of_resnet_50_by_hand() -> None:
    """25.53 million weights and 4.089 giga-multiplications an image (torchvision), and an image of 3 x 224 x 224."""
    outlined = outline(BY_NAME["resnet50"].build())
    one, eight = (made("resnet50", batch, 1.0, work_of(outlined, batch)).least_time for batch in (1, 8))
    assert one.us == one.memory_us == pytest.approx(2 * (25_530_472 + 150_528 + 1000) / 368e3, rel=1e-4)
    assert one.us == pytest.approx(139.6, abs=0.1)
    assert eight.us == eight.tensor_us == pytest.approx(8 * 2 * 4.089e9 / 79e6, rel=1e-3)


def test_transposed_convolutions_count() -> None:
    """Each of 8 x 5 x 5 inputs goes to 4 x 2 x 2 results."""
    graph = (
        "(float[N,8,5,5] x) => (float[N,4,10,10] y) { y = ConvTranspose<kernel_shape=[2, 2], strides=[2, 2]>(x, w) }"
    )
    work = work_of(outline(modelled(graph, {"w": drawn(8, 4, 2, 2)})), 3)
    assert (work.multiplications, work.weights) == (3 * 8 * 25 * 16, 8 * 4 * 4)


@pytest.mark.parametrize("name", ["unet", "yolov8n", "mobilenet_v2"])
def test_work_of_a_batch_grows_with_it(name: str) -> None:
    outlined = outline(NETWORKS[name]())
    one, four = work_of(outlined, 1), work_of(outlined, 4)
    assert (four.multiplications, four.weights) == (4 * one.multiplications, one.weights)
    assert (four.inputs, four.outputs) == (4 * one.inputs, 4 * one.outputs)


def test_a_row_for_each_batch(small: None) -> None:
    done: list[int] = []
    rows = list(measure("trn2", "float32", ["chain"], (1, 4), 0, done.append))
    assert [row.batch for row in rows] == [1, 4] and done == [1, 1]
    for row in rows:
        assert row.predicted.least_us <= row.predicted.us <= row.predicted.most_us
        assert sum(one.us for one in row.held) == pytest.approx(row.predicted.us)
        assert {"launch", "DMA starts"} <= {one.by for one in row.held}
        assert any(one.by.startswith("tensor") for one in row.held)
        assert row.held == tuple(sorted(row.held, key=lambda one: -one.us))
        assert row.instructions > 4 and row.bound_ratio.us > 1
        assert row.theoretical_time.us < row.least_time.us
    assert bars_of(rows) == []  # they are for bfloat16


def test_two_cores_beside_one(small: None) -> None:
    (row,) = measure("trn2", "float32", ["chain"], (4,), 0, lambda count: None, lnc=2)
    assert row.shared is not None and row.scaling is not None
    assert row.scaling.us == pytest.approx(row.predicted.us / row.shared.us)
    document: dict[str, Any] = networks_document([row])
    assert document["rows"][0]["scaling"]["us"] == row.scaling.us
    text = " ".join(render(networks_parts([row])).split())
    assert "us on 2 cores" in text and f"{row.scaling.us:.2f} (" in text and "--lnc 2" in text


def test_bars_of_networks_by_the_bound() -> None:
    rows = [made("vgg16", 1, 144.9), made("vgg16", 2, 200.0), made("vgg16", 4, 500.0)]
    assert best_of(rows).batch == 2
    first, best = bars_of(rows)
    assert (first.batch, first.most, first.meets_bar) == (1, 1.45, True) and first.value == pytest.approx(1.449)
    assert (best.batch, best.most, best.meets_bar) == (2, 1.4, False) and best.value == pytest.approx(2.0)
    assert not bars_of([replace(rows[0], predicted=Range(100, 145.1, 200))])[0].meets_bar
    assert len(bars_of(rows[:1])) == 1  # one batch can't be the best
    assert bars_of([replace(row, target="trn1") for row in rows]) == []


def test_bars_of_the_others_by_the_kernels_of_before() -> None:
    assert baseline_us()["mobilenet_v2"] == pytest.approx(234.4, abs=0.05)  # benchmarks/baseline/table.md
    (met,) = bars_of([made("mobilenet_v2", 1, 175.0), made("mobilenet_v2", 8, 1000.0)])
    (missed,) = bars_of([made("mobilenet_v2", 1, 176.0)])
    assert met.most == pytest.approx(0.75 * baseline_us()["mobilenet_v2"]) and met.meets_bar and not missed.meets_bar
    assert set(baseline_us()) == set(NETWORKS) and set(BY_BOUND) < set(NETWORKS)


def test_what_is_shown() -> None:
    rows = [made("resnet50", 1, 200.0), made("resnet50", 2, 250.0)]
    document: dict[str, Any] = networks_document(rows)
    first, second = document["rows"]
    assert first["over_bound"] == {
        "least_us": pytest.approx(1.8),
        "us": pytest.approx(2),
        "most_us": pytest.approx(2.4),
    }
    assert second["images_per_second"] == pytest.approx(8000)
    assert first["over_theoretical"] == pytest.approx(200 / (36_800 / 435.2))
    assert not document["passed"] and [bar["passed"] for bar in document["bars"]] == [False, False]
    text = " ".join(render(networks_parts(rows)).split())
    assert "resnet50: most images a second at batch 2: 8,000" in text
    assert "2 bars, 2 missed" in text and "MISS" in text and "launch 100%" in text and "368 GB/s" in text


def test_the_command(small: None) -> None:
    flags = ["--net", "chain", "--batch", "2", "--dtype", "float32", "--effort", "0"]
    outcome = CliRunner().invoke(app, [*flags, "--json"])
    assert outcome.exit_code == 0
    document = json.loads(outcome.stdout)
    assert [(row["network"], row["batch"], row["dtype"]) for row in document["rows"]] == [("chain", 2, "float32")]
    unknown = CliRunner().invoke(app, ["--net", "nothing"])
    assert unknown.exit_code == 2 and "chain" in unknown.stderr


def test_the_floor_by_hand() -> None:
    """trn2 moves 334 GB/s: 24,576 numbers a partition, 6.3 MB, take 18.8 us; on top come 11.5 us of fixed costs. With
    weights that take half more room than SBUF has, half of that comes after the first product."""
    fixed = (7400 + 179 + 2 * (900 + 355)) / 1e3
    small = [Product(0, 0, 3_145_728, frozenset())]
    assert floor_us(small, Work(0, 3_145_728, 0, 0), "trn2", "bfloat16") == pytest.approx(fixed + 6_291_456 / 334e3)
    room = 128 * (229_376 - 16_384)
    first = 128 * 128 * 2_400_000  # a millisecond of columns
    late = [Product(first, 0, 0, frozenset()), Product(0, 0, 3 * room // 4, frozenset({0}))]
    columns = 2_400_000 * (1 / 2.4 + 2.5 / 512) / 1e3
    work = Work(first, 3 * room // 4, 0, 0)
    assert floor_us(late, work, "trn2", "bfloat16") == pytest.approx(fixed + columns + room / 2 / 334e3)


def test_the_floor_of_vgg_16_at_batch_1() -> None:
    """Its classifier's weights, 247 MB, find room in SBUF for 27 MB of them while the convolutions run."""
    outlined = outline(NETWORKS["vgg16"]())
    work, products = work_of(outlined, 1), list_products(outlined, 1)
    assert sum(one.multiplications for one in products) == work.multiplications
    assert sum(one.weights for one in products) == work.weights
    row = replace(made("vgg16", 1, 1200.0, work), floor_us=floor_us(products, work, "trn2", "bfloat16"))
    (bar,) = bars_of([row])
    assert 1.43 < bar.floor < 1.44 < bar.most == 1.45
    assert "no plan" not in render(networks_parts([row]))
    (hopeless,) = bars_of([replace(row, floor_us=1100.0)])
    assert hopeless.floor > hopeless.most
    text = " ".join(render(networks_parts([replace(row, floor_us=1100.0)])).split())
    assert "below their floor, so that no plan can meet them: 1" in text
