"""What AWS's profiler captured on the device, laid beside the prediction, step by step.

``explorer`` reads the tables that Neuron Explorer writes and knows nothing of plans; ``attributing`` finds the step of
each instruction. Nothing here was ever run on a profile of a real device: the tables' fields are the documented ones
(``schema.json`` has the page and line of each), and where the documentation is silent the result says what it assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Attribution", "Rest", "StepMeasured"]


@dataclass(frozen=True)
class StepMeasured:
    """A step on the device. Microseconds.

    ``active_us`` is how long at least one of its instructions ran, or a transfer that one of them started; waits for
    semaphores are not counted. ``predicted_active_us`` is the same of the prediction. Steps overlap, so the times of
    all steps add up to more than the whole. ``start_us`` and ``end_us`` count from the profile's first instruction.
    ``inferred`` are those of its ``instructions`` whose step was inferred from the order of execution.
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
    """Instructions that belong to no one step: ``steps`` are those that share their source line, or none."""

    steps: tuple[str, ...]
    active_us: float
    instructions: int


@dataclass(frozen=True)
class Attribution:
    """A profile by step. ``elapsed_us``: from the first instruction's start to the end of the last one, or of the
    last transfer; ``total_us`` is the profiler's own figure, where it has one; ``predicted_total_us`` what is predicted
    for that. ``dma``: whether the profile says when transfers ran. ``notes``: what was left out, and what the profiler
    warned of.
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
