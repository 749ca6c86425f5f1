"""The timing model: a pure function from a program (and its target's parameters) to a timeline."""

from trnrt.nki.machine.timing.simulation import schedule
from trnrt.nki.machine.timing.timeline import PS_PER_US, Timeline, Transfer

__all__ = ["PS_PER_US", "Timeline", "Transfer", "schedule"]
