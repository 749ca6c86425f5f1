"""What steps say that their kernels take of SBUF, against what these take when they are traced."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import pytest

import trnrt
from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.program import MemoryRegion, Program
from trnrt.planner.placing.placement import Tiles
from trnrt.planner.placing.sweeps import reduce_steps
from trnrt.planner.rendering.draft import Material
from trnrt.planner.searching.fitting import Fitted, fit, trace

FOLDER = Path(__file__).parents[1] / "data" / "architectures"
MODELS = sorted(path for path in FOLDER.glob("*.onnx") if "torchscript" not in path.stem)


def taken(program: Program, lines: tuple[int, int]) -> int:
    """The most bytes a partition that tiles of these lines of the module hold at once."""
    spans = find_lifetimes(program)
    changes: list[tuple[int, int]] = []
    for tile in program.storages:
        if tile.buffer is MemoryRegion.sbuf and tile.index in spans and lines[0] <= tile.line <= lines[1]:
            first, last = spans[tile.index]
            changes += [(2 * first, tile.partition_bytes), (2 * last + 1, -tile.partition_bytes)]
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize(("dtype", "target", "batch"), [("float32", "trn2", 1), ("bfloat16", "trn1", 3)])
def test_no_kernel_takes_more_than_its_step_says(
    model: Path, dtype: str, target: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the planner counts on where it does not trace a module to see whether it fits."""
    seen: list[tuple[Material, Fitted]] = []

    def seeing(material: Material, known: Container[object] = ()) -> Fitted | None:
        fitted = fit(material, known)
        assert fitted is not None
        seen.append((material, fitted))
        return fitted

    monkeypatch.setattr("trnrt.planner.searching.trials.fit", seeing)
    session = trnrt.InferenceSession(str(model), dtype=dtype, target=target, cache=False, effort=0)
    batch = session.model.batch if isinstance(session.model.batch, int) else batch
    session.plan(batch)
    material, fitted = seen[-1]
    placed, module = fitted.placed, fitted.module
    traced = trace(material, fitted)
    assert traced.program is not None
    steps = reduce_steps(material.steps, placed.sweeps)
    tiles = Tiles(material.steps, placed.sweeps)
    said = {held: tiles.working_bytes(placed, held=held) for held in (False, True)}
    some = 0
    for number, (step, lines, (loading, _)) in enumerate(zip(steps, module.lines, module.loading, strict=True)):
        most = taken(traced.program, lines)
        assert most <= said[loading == "prefetched"][number], step.name
        some += most > 0
    assert some
