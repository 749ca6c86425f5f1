"""The bars of the kernels under the present timing model, as data, each with its reason.

They stand beside a case's older ones (``Case.limit_us``, ``target_us``, ``share_target`` and ``factor``), and may be by
another clock than the case's. A bar below the floor can't be met under this model: it is missed, and the table says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trnrt.calibration.cases import Clock

Kind = Literal["us", "share of the tensor engine", "x floor"]
_ONE_PASS = "conv 256->256 3x3 224x224"
_SMALL = "conv 256->256 3x3 32x16"


@dataclass(frozen=True)
class Bar:
    """A limit by a clock, and why it is this one.

    ``us``: the most microseconds; ``share of the tensor engine``: the least share of the time that the columns take at
    full clock; ``x floor``: the most multiples of the floor.
    """

    kind: Kind
    limit: float
    clock: Clock
    reason: str

    def most_us(self, columns_us: float, floor_us: float) -> float:
        """The longest allowed time of a kernel with these columns and this floor, by the bar's clock."""
        if self.kind == "us":
            return self.limit
        return columns_us / self.limit if self.kind == "share of the tensor engine" else self.limit * floor_us


_HALF = Bar("us", 778.0, "profiler", "the fastest public profiles are 782.8 us, and 781.0 with pooling")
_FULL = Bar("share of the tensor engine", 0.96, "profiler", "the fastest public profile is 3020 us: 97.9 %")
_NEAR_FLOOR = Bar("x floor", 1.10, "profiler", "the least traffic decides it, and fixed costs are in the floor")

BARS: Mapping[tuple[str, str, str], Bar] = {
    ("vector addition 256,000", "trn2", "float32"): _NEAR_FLOOR,
    ("transpose 1024x1024", "trn2", "float32"): _NEAR_FLOOR,
    ("matmul [2048,2048]x[2048,2048]", "trn2", "bfloat16"): Bar(
        "share of the tensor engine", 0.909, "profiler", "awslabs/nki-autotune: 90.9 % of the peak, hand-tuned"
    ),
    (_ONE_PASS, "trn2", "float16"): _HALF,
    (f"{_ONE_PASS}, 2x2 pool", "trn2", "float16"): _HALF,
    (_ONE_PASS, "trn2", "float32"): _FULL,
    (f"{_ONE_PASS}, 2x2 pool", "trn2", "float32"): _FULL,
    (_SMALL, "trn2", "float16"): Bar("us", 32.0, "profiler", "20 % less than a student's 40 us"),
    (_SMALL, "trn2", "float32"): Bar("us", 45.4, "profiler", "20 % less than a student's 56.8 us"),
}
"""By case, target and dtype."""

_GAP_BOUND = Bar(
    "x floor", 1.02, "benchmark", "every published kernel stops at 85 to 87 % of the peak: the gap between passes"
)


def bar_of(name: str, target: str, dtype: str) -> Bar | None:
    """A case's bar; on trn1 all have the one of the gap between passes."""
    return _GAP_BOUND if target == "trn1" else BARS.get((name, target, dtype))
