"""The planner's options: one record, from the command line and the session down to the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trnrt.errors import OptionError
from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.sizes import Shape

DTYPES = ("float32", "bfloat16", "float16")
EIGHT_BITS = ("float8_e4m3", "float8_e5m2")
NARROW = ("faster", "all")
FALLBACKS = ("onnxruntime",)
EFFORTS = (0, 1)
NO_BUDGET = 0
DEFAULT_BUDGET = 100_000
"""Instructions of a kernel as compiled. AWS's compiler refuses more than 5,000,000 (aws-neuron-sdk #987, NCC_EBVF030),
and is slow long before: the first kernel of aws-neuron-sdk #1374 (2026-08), which its loops unroll to about a million,
was never seen to finish; it took hours and more than 40 GB. A tenth of it in proportion is several minutes and 4 GB,
which a small instance has. No figure of AWS between these is published."""


@dataclass(frozen=True)
class Float8:
    """8-bit floats for the products that the tensor engine computes at twice the rate of 16 bits.

    ``ranges``: the largest magnitude of each value in calibration data, by name; others stay as they are. ``narrow``:
    "faster" takes the layers that are estimated to be faster so, but the first and the last one; "all" takes each layer
    that has a kernel for it.
    """

    dtype: str
    ranges: tuple[tuple[str, float], ...] = ()
    narrow: str = "faster"

    def __post_init__(self) -> None:
        if self.narrow not in NARROW:
            raise OptionError(f"unknown choice of layers {self.narrow!r}", hint=f"it is {' or '.join(NARROW)}")
        if self.dtype not in EIGHT_BITS:
            raise OptionError(f"unknown 8-bit dtype {self.dtype!r}", hint=f"it is one of {', '.join(EIGHT_BITS)}")


@dataclass(frozen=True)
class PlanOptions:
    """The target and the dtype to plan for, and the user's choices.

    ``choices`` override the planner's own. With ``effort`` 1 it compares predicted times wherever that can gain; with 0
    it estimates. ``fallback`` names what runs the nodes that the device can't; without it such a model is refused.
    ``shapes``: sizes left open in the model's file, by input. ``max_instructions``: the most in a kernel, NO_BUDGET for
    any number, None for DEFAULT_BUDGET if that can be met. ``lnc``: physical cores of a logical one; with 2 they divide
    the work where that is predicted to be faster. ``float8``: of a bfloat16 session, whose weights and activations stay
    in 16 bits where that gains nothing. Raises OptionError for an invalid value.
    """

    target: str = DEFAULT_TARGET
    dtype: str = "float32"
    choices: Choices = DEFAULT
    effort: int = 0
    fallback: str | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    max_instructions: int | None = None
    lnc: int = 1
    float8: Float8 | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise OptionError(f"unknown dtype {self.dtype!r}", hint=f"dtypes are {', '.join(DTYPES)}")
        if self.float8 is not None:
            self._check_float8(self.float8)
        if self.fallback is not None and self.fallback not in FALLBACKS:
            raise OptionError(f"unknown fallback {self.fallback!r}", hint=f"it is {', '.join(FALLBACKS)}, or None")
        if self.effort not in EFFORTS:
            raise OptionError(f"effort is {self.effort!r}", hint=f"it is one of {', '.join(map(str, EFFORTS))}")
        if self.max_instructions is not None and self.max_instructions < 0:
            raise OptionError(
                f"max_instructions is {self.max_instructions}", hint="it is 1 or more, or 0 for kernels of any size"
            )
        if not 1 <= self.lnc <= get_target(self.target).device.most_lnc:
            raise OptionError(
                f"--lnc {self.lnc}: {self.target} has no logical cores of {self.lnc}", hint=_lnc_hint(self.target)
            )

    def _check_float8(self, float8: Float8) -> None:
        if self.dtype != "bfloat16":
            raise OptionError(f"{float8.dtype} in a session of {self.dtype}", hint="the other numbers are bfloat16")
        if not get_target(self.target).has_double_rows:
            raise OptionError(
                f"--dtype {float8.dtype}: {self.target} multiplies 8-bit floats no faster than 16 bits",
                hint="use --dtype bfloat16 there, or --target trn2",
            )

    def in_dtype(self, dtype: str) -> PlanOptions:
        """The same for a session of another dtype, without 8-bit floats."""
        return replace(self, dtype=dtype, float8=None)

    @property
    def shown_dtype(self) -> str:
        """The dtype as a user gives it: of 8 bits, if some numbers have so few."""
        return self.dtype if self.float8 is None else self.float8.dtype

    @property
    def budget(self) -> int:
        """The most instructions of a kernel; NO_BUDGET for any number."""
        return DEFAULT_BUDGET if self.max_instructions is None else self.max_instructions


def _lnc_hint(target: str) -> str:
    most = get_target(target).device.most_lnc
    return "use --lnc 1: there, LNC is always 1" if most == 1 else f"use --lnc 1 or {most}"
