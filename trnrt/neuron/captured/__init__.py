"""Compare a profile that AWS's profiler captured on the device with the prediction, step by step.

``explorer`` reads Neuron Explorer's tables and knows nothing of plans; ``attributing`` finds the step of each
instruction. Nothing here was ever run on a profile of a real device: the tables' fields are the documented ones
(``schema.json`` has the page and line of each), and the result states every assumption beyond the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Attribution", "Rest", "StepMeasured"]


@dataclass(frozen=True)
class StepMeasured:
    """A step on the device, in microseconds.

    ``active_us``: the time in which at least one of its instructions ran, or a transfer that one of them started,
    without waits for semaphores; ``predicted_active_us``: the same by the prediction. Steps overlap, so their times add
    up to more than the whole. ``start_us`` and ``end_us`` count from the profile's first instruction. ``inferred``: how
    many of the ``instructions`` belong to the step only by the order of execution.
    """

    name: str
    nodes: tuple[str, ...]
    predicted_active_us: float
    active_us: float
    start_us: float
    end_us: float
    instructions: int
    inferred: int


@dataclass(frozen=True)
class Rest:
    """Instructions without a single step. ``steps``: those that share their source line, or none."""

    steps: tuple[str, ...]
    active_us: float
    instructions: int


@dataclass(frozen=True)
class Attribution:
    """A profile by step. ``elapsed_us``: from the first instruction's start to the end of the last one, or of the last
    transfer. ``total_us``: the profiler's own figure, if it has one; ``predicted_total_us``: its prediction. ``dma``:
    whether the profile has the transfers' times. ``notes``: what was left out, and the profiler's warnings.
    """

    part: str
    schema_version: str
    instance: str | None
    elapsed_us: float
    total_us: float | None
    predicted_total_us: float
    dma: bool
    steps: tuple[StepMeasured, ...]
    rest: tuple[Rest, ...]
    notes: tuple[str, ...]
