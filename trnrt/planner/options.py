"""How a model is planned: one record, from the command line and the session down to the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trnrt.errors import OptionError
from trnrt.nki.machine.targets import DEFAULT_TARGET
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.sizes import Shape

DTYPES = ("float32", "bfloat16", "float16")
FALLBACKS = ("onnxruntime",)
EFFORTS = (0, 1)


@dataclass(frozen=True)
class PlanOptions:
    """The target and the dtype that a model is planned for, and what the user asks of the planner.

    ``choices`` override the planner's own. With ``effort`` 1 it chooses by the predicted time where that can gain, with
    0 by estimates. ``fallback`` names what runs the nodes that the device can't; without it such a model is refused.
    ``shapes``: sizes that the model's file leaves open, by input. Raises OptionError for a value that there is not.
    """

    target: str = DEFAULT_TARGET
    dtype: str = "float32"
    choices: Choices = DEFAULT
    effort: int = 0
    fallback: str | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise OptionError(f"unknown dtype {self.dtype!r}", hint=f"dtypes are {', '.join(DTYPES)}")
        if self.fallback is not None and self.fallback not in FALLBACKS:
            raise OptionError(f"unknown fallback {self.fallback!r}", hint=f"it is {', '.join(FALLBACKS)}, or None")
        if self.effort not in EFFORTS:
            raise OptionError(f"effort is {self.effort!r}", hint=f"it is one of {', '.join(map(str, EFFORTS))}")
