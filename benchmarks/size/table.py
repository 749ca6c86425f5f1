"""The rows: each network's kernels with and without a budget of instructions, and what the budget costs in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from benchmarks.baseline.networks import BY_NAME
from benchmarks.baseline.yolo import yolov8n
from benchmarks.size.vit import vit_b_16
from trnrt.errors import KernelSizeError, OptionError
from trnrt.nki.machine.timing import Range
from trnrt.planner.options import DEFAULT_BUDGET, NO_BUDGET
from trnrt.session import InferenceSession

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": BY_NAME["resnet50"].build,
    "efficientnet_b0": BY_NAME["efficientnet_b0"].build,
    "yolov8n": partial(yolov8n, "N"),
    "vit_b_16": vit_b_16,
}
BATCHES = (1, 8)
SMALL_BUDGET = 3_000
"""A budget that each of the networks exceeds at batch 8, to show what loops and cuts cost."""
MOST_RATIO = 1.05
"""The bar: at batch 1 the default budget may take this much of the upper end of the predicted time without a budget."""


@dataclass(frozen=True)
class Row:
    """A network's kernels at a batch and a budget (0: none); sizes are ``unrolled`` and as ``compiled``, each kernel's.

    ``predicted`` is None, and there are no kernels, if the budget can't be met, for the reason in ``problem``.
    """

    model: str
    batch: int
    budget: int
    unrolled: tuple[int, ...]
    compiled: tuple[int, ...]
    trips: int
    predicted: Range | None
    problem: str = ""


@dataclass(frozen=True)
class Compared:
    """A row beside the one without a budget."""

    row: Row
    before: Row

    @property
    def ratio(self) -> float | None:
        """The headline over that without a budget."""
        row, before = self.row.predicted, self.before.predicted
        return None if row is None or before is None else row.us / before.us

    @property
    def most_ratio(self) -> float | None:
        """The upper end of the range over that without a budget."""
        row, before = self.row.predicted, self.before.predicted
        return None if row is None or before is None else row.most_us / before.most_us

    @property
    def meets_bar(self) -> bool | None:
        """True if the bar is met; None without a bar."""
        if self.row.batch != 1 or self.row.budget != DEFAULT_BUDGET:
            return None
        return self.most_ratio is not None and self.most_ratio <= MOST_RATIO


def measure(
    target: str, only: Sequence[str], budgets: Sequence[int] = (DEFAULT_BUDGET, SMALL_BUDGET)
) -> Iterator[Compared]:
    """The rows of the networks called ``only`` (all by default) in float32; OptionError for an unknown name."""
    for name in only:
        if name not in NETWORKS:
            raise OptionError(f"no network is called {name!r}", hint=f"there are {', '.join(NETWORKS)}")
    for name in only or NETWORKS:
        content = NETWORKS[name]().SerializeToString()
        for batch in BATCHES:
            before = plan_row(name, content, target, batch, NO_BUDGET)
            for budget in (NO_BUDGET, *budgets):
                row = plan_row(name, content, target, batch, budget) if budget != NO_BUDGET else before
                yield Compared(row, before)


def plan_row(name: str, content: bytes, target: str, batch: int, budget: int) -> Row:
    """Plan and time a network."""
    session = InferenceSession(content, target=target, backend="simulator", cache=False, max_instructions=budget)
    try:
        partition = session.partition(batch)
    except KernelSizeError as error:
        return Row(name, batch, budget, (), (), 1, None, str(error))
    sizes = [plan.size for plan in partition.plans]
    return Row(
        name,
        batch,
        budget,
        tuple(size.unrolled for size in sizes),
        tuple(size.compiled for size in sizes),
        max(size.trips for size in sizes),
        session.latency(batch, partition),
    )
