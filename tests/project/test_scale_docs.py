"""docs/scale.md says what the code does: its tables and its example are generated.

``UPDATE_DOCS=1 pytest tests/project/test_scale_docs.py`` writes them anew, in two minutes, with the latencies that
``tests/data/scale.json`` has (``tests/shared/scale_latencies.py``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commanding import trnrt
from numpy.typing import NDArray

from benchmarks.models.networks import NETWORKS
from trnrt.capacity.assumptions import DEFAULT_MOST, assumptions, default_utilisation, host
from trnrt.capacity.choosing import Demand
from trnrt.capacity.instances import find_instances, instances
from trnrt.capacity.planning import Question, answer
from trnrt.capacity.queueing import FINAL_SAMPLES, SAMPLES
from trnrt.capacity.workers import Served
from trnrt.report.capacity import MEASURED_P50, MEASURED_P99, MEDIAN_ERROR, WORST_ERROR, time_text
from trnrt.session import InferenceSession

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale.md"
COMMAND = "    $ trnrt plan models/digits_cnn.onnx --rps 5000 --p99 20ms --target trn2\n"
RATES, HOSTS = (1000, 20_000), (None, 20.0)
UPDATING = bool(os.environ.get("UPDATE_DOCS"))
CHECKED = 11
"""Of how many rows one is computed anew, unless all are written."""


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def networks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "scale.json").read_text(encoding="utf-8"))
    return found


def table(header: str) -> tuple[str, list[str], str]:
    """What comes before the rows of the table with this header, its rows, and what comes after."""
    before, found, after = text().partition(f"{header}\n")
    assert found, header
    line, _, rest = after.partition("\n")
    rows, _, end = rest.partition("\n\n") if not rest.startswith("\n") else ("", "", rest[1:])
    return f"{before}{header}\n{line}\n", rows.splitlines(), f"\n\n{end}" if rows else f"\n{end}"


def check(header: str, rows: list[str]) -> None:
    before, kept, after = table(header)
    if UPDATING:
        PAGE.write_text(f"{before}{chr(10).join(rows)}\n\n{after.lstrip(chr(10))}", encoding="utf-8")
    else:
        assert kept == rows


def test_the_assumptions_are_those_of_the_data() -> None:
    rows = [f"| `{name}` | {value:g} | {source} |" for name, (value, source) in assumptions().items()]
    check("| value | | source |", rows)


def test_the_instances_are_those_of_the_data() -> None:
    rows = [
        f"| {i.name} | {i.target} | {i.chips} | {i.cores} | {i.vcpus} | {i.memory_gib:,} GiB | {i.source} |"
        for i in instances().values()
    ]
    check("| type | target | chips | cores | vCPUs | memory | source |", rows)


def cases() -> Iterator[tuple[dict[str, Any], int, float | None]]:
    for network in networks():
        for rate in RATES:
            for host_us in HOSTS:
                yield network, rate, host_us


def row(network: dict[str, Any], rate: int, host_us: float | None) -> str:
    predicted = {int(size): float(us) for size, us in network["predicted_us"].items()}
    served = Served(predicted, network["row_sent"], network["row_in"], network["row_out"], mergeable=True)
    demand = Demand(rate, 20_000.0, 1, 1.0, default_utilisation())
    target = network["target"]
    question = Question(network["model"], target, network["dtype"], (), demand, host(target, host_us), served)
    found = answer(question, sorted(predicted), find_instances(target))
    chosen = found.chosen
    assert chosen is not None and chosen.waiting is not None
    told = "assumed" if host_us is None else f"{host_us:g}"
    needs = f"{found.fleets[0].count} x {found.fleets[0].instance.name}"
    cells = [network["model"], network["dtype"], target, f"{rate:,}", told, chosen.max_batch, chosen.cores]
    cells += [f"{100 * chosen.load(rate):.0f} %", time_text(chosen.waiting.p99_us), chosen.limited_by, needs]
    return f"| {' | '.join(map(str, cells))} |"


def test_the_networks_need_what_the_page_says() -> None:
    header = "| model | dtype | target | requests/s | host us | max batch | cores | load | p99 | limit | instances |"
    _, kept, _ = table(header)
    if UPDATING:
        check(header, [row(*case) for case in cases()])
        return
    told = [line.split(" | ")[:5] for line in kept]
    assert len(told) == len(list(cases())) == len({tuple(cells) for cells in told})
    for number, case in enumerate(cases()):
        if number % CHECKED == 0:
            assert kept[number] == row(*case)


@pytest.mark.parametrize("network", [n for n in networks() if n["model"] == "digits_cnn"], ids=lambda n: n["target"])
def test_the_latencies_are_those_that_are_predicted(network: dict[str, Any]) -> None:
    model, kind = ROOT / "models" / "digits_cnn.onnx", {"target": network["target"], "dtype": network["dtype"]}
    session = InferenceSession(model, backend="simulator", effort=1, **kind)
    for size in (1, DEFAULT_MOST):
        assert session.latency(size).us == pytest.approx(network["predicted_us"][str(size)], abs=0.001)


def test_a_networks_latency_is_still_about_what_is_predicted(tmp_path: Path) -> None:
    (network,) = [n for n in networks() if (n["model"], n["target"]) == ("resnet18", "trn2")]
    path = tmp_path / "resnet18.onnx"
    onnx.save(next(n for n in NETWORKS if n.name == "resnet18").build(), path)
    session = InferenceSession(path, target="trn2", dtype=network["dtype"], backend="simulator", effort=1)
    assert session.latency(1).us == pytest.approx(network["predicted_us"]["1"], rel=0.02)


def test_the_example_is_what_the_command_prints() -> None:
    outcome = trnrt(*COMMAND.replace("models/", f"{ROOT}/models/").split()[2:])
    assert outcome.code == 0
    shown = outcome.out.partition("\nAssumed:")[0].replace(f"{ROOT}/", "").rstrip().splitlines()
    listing = "".join(f"    {line}".rstrip() + "\n" for line in shown)
    before, _, after = text().partition(COMMAND)
    kept, _, rest = after.partition("\nBelow this")
    if UPDATING:
        PAGE.write_text(f"{before}{COMMAND}{listing}\nBelow this{rest}", encoding="utf-8")
    else:
        assert kept == listing


def test_what_is_said_of_the_comparison_is_what_its_table_says() -> None:
    columns = ("p50 ms", "p99 ms (least to most)", "batch", "CPU us")
    _, rows, _ = table(f"| device ms | row | requests/s | {' | '.join(f'{name} | planned' for name in columns)} |")
    cells = np.array([[float(cell.split()[0].replace(",", "")) for cell in row[2:].split(" | ")[3:]] for row in rows])
    measured, planned = cells[:, 0::2], cells[:, 1::2]
    assert measured.shape == (24, 4)

    def least_middle_most(shares: NDArray[np.float64]) -> tuple[float, float, float]:
        return float(shares.min()), float(np.median(shares)), float(shares.max())

    p50, p99 = (least_middle_most(column) for column in (measured / planned).T[:2])
    assert [tuple(round(end, 1) for end in (least, most)) for least, _, most in (p50, p99)] == [
        MEASURED_P50,
        MEASURED_P99,
    ]
    page = " ".join(text().split())
    low, middle, high = least_middle_most(planned[:, 0] / measured[:, 0])
    assert f"{low:.2f} to {high:.2f} times those measured (median {middle:.2f})" in page
    for column in (2, 3):
        low, middle, high = least_middle_most(planned[:, column] / measured[:, column])
        assert f"{low:.2f} to {high:.2f} ({middle:.2f})" in page
    assert f"{p99[0]:.1f} to {p99[2]:.1f} times, {p99[1]:.1f} in the median" in page


def test_the_figures_in_the_prose_are_those_of_the_code() -> None:
    page = " ".join(text().split())
    assert f"{FINAL_SAMPLES:,} arrivals" in page and f"{SAMPLES:,} to search with" in page
    assert f"{MEDIAN_ERROR:g} % off published figures in the median and {WORST_ERROR:g} % at worst" in page
