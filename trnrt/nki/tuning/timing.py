"""The predicted time of a candidate: the headline of its call with the candidate's arguments, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnrt.nki.calls import Call, value_text
from trnrt.nki.errors import TrnrtError
from trnrt.nki.level import Level
from trnrt.nki.loading import Launch, find_kernel, import_kernels
from trnrt.nki.machine.timing import predict_benchmark
from trnrt.nki.profiling import predicted_us


@dataclass(frozen=True)
class Task:
    """The kernel to tune: its file, the call without data, and the hardware. It can be sent to another process."""

    script: Path
    call: Call
    target: str | None
    level: Level
    capacity: bool = True

    def launch(self) -> Launch:
        """The call, within the file's environment (``loading``). Raises OptionError if the file has no such kernel."""
        module = import_kernels(self.script)
        return Launch(find_kernel(module, self.call), self.call.args, self.call.kwargs)


@dataclass(frozen=True)
class Trial:
    """A candidate's arguments as text, its headline in microseconds (None if it has none), and the reason if so."""

    values: Mapping[str, str]
    us: float | None
    reason: str = ""


def values_text(values: Mapping[str, Any]) -> dict[str, str]:
    """A candidate's arguments as text: the key of its result."""
    return {name: value_text(value) for name, value in values.items()}


def time_candidate(launch: Launch, values: Mapping[str, Any]) -> Trial:
    """The headline of the call with these arguments. An error of the kernel becomes the reason for having none."""
    try:
        programs = launch.with_values(values).trace()
        time = predicted_us(programs[0]) if len(programs) == 1 else predict_benchmark(programs).us
    except TrnrtError as error:
        return Trial(values_text(values), None, reason_of(error))
    except RecursionError as error:
        return Trial(values_text(values), None, f"{type(error).__name__}: {error}")
    return Trial(values_text(values), time)


def reason_of(error: TrnrtError) -> str:
    """An error's first line, with the place in the kernel if it names one."""
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    place = next((line.strip() for line in reversed(rest) if line.startswith("  at ")), "")
    return f"{first} ({place})" if place else first
