"""What ``inspect`` says of each step before anything runs: tiles, SBUF and PSUM; readable at any width."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import onnx
import pytest
from commanding import trnrt
from planning import modelled, plan_rows
from rich.console import Console

from trnrt.importer import import_model
from trnrt.nki import Spec, nisa, nki, nl, trace
from trnrt.nki.machine.timing.steps import Step
from trnrt.nki.tiles import Tiles, tile_plan
from trnrt.planner import PlanOptions
from trnrt.report.tables import Items
from trnrt.running.profiler import profile_plan, tiles_of_plan

MODELS = Path(__file__).parents[2] / "models"
CNN = str(MODELS / "digits_cnn.onnx")


@nki.jit
def two_steps(a: Any, b: Any) -> Any:
    """A product, and the square of it, in a tile that the first step leaves behind."""
    y = nl.ndarray((64, 256), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    right = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    product = nl.ndarray((64, 256), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=left, moving=right)
    square = nl.ndarray((64, 256), dtype=nl.float32, buffer=nl.sbuf)
    for _ in nl.affine_range(2):
        nisa.activation(dst=square, op=nl.square, data=product)
    nisa.dma_copy(dst=y, src=square)
    return y


def planned(*steps: tuple[str, int, int]) -> dict[str, Any]:
    """The tile plan of the kernel, cut into steps: (name, first, last) as lines counted from its decorator."""
    program = trace(two_steps, Spec((128, 64), "float32"), Spec((128, 256), "float32"), target="trn2")
    first = two_steps_line()
    named = [Step(name, (), (first + begin, first + end)) for name, begin, end in steps]
    return {step.name: step for step in tile_plan(program, named)}


def two_steps_line() -> int:
    """The line of the kernel's decorator."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return lines.index("@nki.jit") + 1


def test_a_step_counts_its_instructions_by_operation_and_tile() -> None:
    plan = planned(("first", 3, 9), ("second", 10, 13))
    first, second = plan["first"], plan["second"]
    assert first.tiles == (
        Tiles("nc_matmul", "tensor", (128, 64, 256), 1),
        Tiles("dma_copy", "dma", (128, 1024), 1),
        Tiles("dma_copy", "dma", (128, 256), 1),
    )
    assert second.tiles == (
        Tiles("activation", "scalar", (64, 256), 2),
        Tiles("dma_copy", "dma", (64, 1024), 1),
    )
    assert (first.instructions, second.instructions) == (3, 3)
    assert [tile.text for tile in first.tiles] == ["nc_matmul 128x64x256", "dma_copy 128x1KiB", "dma_copy 128x256B"]


def test_memory_is_the_most_that_is_held_while_the_step_runs() -> None:
    plan = planned(("first", 3, 9), ("second", 10, 13))
    assert (plan["first"].sbuf_bytes, plan["first"].psum_bytes) == ((64 + 256) * 4, 1024)
    assert (plan["second"].sbuf_bytes, plan["second"].psum_bytes) == (256 * 4, 1024)
    one = planned(("all", 1, 14))["all"]
    assert (one.sbuf_bytes, one.psum_bytes) == ((64 + 256) * 4, 1024)
    assert planned(("nothing", 1, 1))["nothing"].tiles == ()


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("name", ["digits_cnn", "digits_ffnn"])
def test_steps_of_a_model_add_up_to_its_profile(name: str, target: str) -> None:
    plan = plan_rows(import_model(MODELS / f"{name}.onnx"), 4, PlanOptions(target, "float32"))
    profile = profile_plan(plan)
    steps = tiles_of_plan(plan, profile)
    assert [step.name for step in steps] == [step.name for step in plan.steps]
    assert max(step.sbuf_bytes for step in steps) == profile.sbuf_peak_bytes
    ahead, warms_up = profile.steps[-1].instructions, "    warm_up(6)" in plan.source
    # Ahead of all steps six transposes of (128, 128) may warm the tensor engine up.
    assert max(512 * warms_up, *(step.psum_bytes for step in steps)) == profile.psum_peak_bytes
    assert sum(step.instructions for step in steps) + ahead == profile.instructions
    transfers = sum(tile.count for step in steps for tile in step.tiles if tile.engine == "dma")
    brought = plan.source.count(" = prefetch(")
    assert transfers + brought == profile.dma_transfer_count and ahead == brought + 7 * warms_up
    products = [tile for step in steps for tile in step.tiles if tile.operation == "nc_matmul"]
    assert 2 * sum(k * m * n * tile.count for tile in products for k, m, n in [tile.shape]) >= profile.flops > 0


# ---- on the command line


def test_json_has_tiles_and_memory_of_every_step() -> None:
    document = trnrt("inspect", CNN, "--json").document
    for step in document["steps"]:
        assert step["sbuf_bytes"] > 0
        assert step["psum_bytes"] > 0
        assert all(tile.keys() == {"operation", "engine", "shape", "count"} for tile in step["tiles"])
        assert any(tile["operation"] == "nc_matmul" for tile in step["tiles"])
    assert document["supported"] is True
    assert {node["place"] for node in document["nodes"]} == {"core", "view"}


def test_the_time_is_the_profiles_and_its_holders_add_up() -> None:
    document, profiled = trnrt("inspect", CNN, "--json").document, trnrt("profile", CNN, "--json").document
    predicted = document["predicted"]
    assert [predicted[key] for key in ("low_us", "us", "high_us")] == pytest.approx(
        [profiled[key]["benchmark"] for key in ("low_us", "predicted_us", "high_us")]
    )
    assert sum(one["us"] for one in predicted["held"]) == pytest.approx(predicted["us"])
    assert predicted["held"] == sorted(predicted["held"], key=lambda one: -one["us"])
    of_steps = {step["name"]: (step["time_us"], step["bound"]) for step in profiled["steps"]}
    for step in document["steps"]:
        assert (step["predicted_us"], step["held_by"]) == of_steps[step["name"]]
    out = trnrt("inspect", CNN).out
    assert f"held by {predicted['held'][0]['by']} " in out and f"{document['steps'][0]['predicted_us']:.2f}" in out


def test_no_tiles_is_the_fast_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trnrt("inspect", CNN, "--json").document
    monkeypatch.setattr("trnrt.running.profiler.cost_of_plan", lambda plan: pytest.fail("it traced"))
    document = trnrt("inspect", CNN, "--no-tiles", "--json").document
    assert all(step["tiles"] is step["sbuf_bytes"] is step["psum_bytes"] is None for step in document["steps"])
    blank = dict.fromkeys(("tiles", "sbuf_bytes", "psum_bytes", "predicted_us", "held_by"))
    assert document == whole | {"predicted": None, "steps": [step | blank for step in whole["steps"]]}
    assert "tile plan" not in trnrt("inspect", CNN, "--no-tiles").out


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_is_readable_in_a_narrow_window(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = trnrt("inspect", CNN).out
    assert all(len(line) <= width for line in out.splitlines())
    table = out[out.index("tile plan") :]
    document = trnrt("inspect", CNN, "--json").document
    for step in document["steps"]:
        count, tile = step["tiles"][0]["count"], step["tiles"][0]
        assert f"{count} {tile['operation']} {'x'.join(map(str, tile['shape']))}" in table
        assert f"{step['sbuf_bytes']:,}" in table


def test_a_spinner_on_a_terminal_says_how_to_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def noted(what: str) -> AbstractContextManager[None]:
        said.append(what)
        return nullcontext()

    monkeypatch.setattr("trnrt.commands.inspect.working", noted)
    trnrt("inspect", CNN)
    assert any("tracing 3 steps" in what and "--no-tiles" in what for what in said)


def test_nodes_that_only_move_elements_are_dmas(tmp_path: Path) -> None:
    path = tmp_path / "moves.onnx"
    graph = "(float[2,3] x) => (float[4,3] y) { a = Relu(x)  b = Concat<axis=0>(a, x)  y = Sigmoid(b) }"
    onnx.save(modelled(graph), path)
    document = trnrt("inspect", path, "--json").document
    assert {node["op"]: node["place"] for node in document["nodes"]} == {
        "Relu": "core",
        "Concat": "dma",
        "Sigmoid": "core",
    }


@pytest.mark.parametrize(("width", "lines"), [(10, ["1 ab,", "2 cd,", "33 efghi"]), (11, ["1 ab, 2 cd,", "33 efghi"])])
def test_items_are_not_broken(width: int, lines: list[str]) -> None:
    with (console := Console(width=width)).capture() as captured:
        console.print(Items(["1 ab", "2 cd", "33 efghi"]))
    assert [line.rstrip() for line in captured.get().splitlines()] == lines
