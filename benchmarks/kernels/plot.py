"""The plot of docs/kernels.md: share of the hardware's limit over the size of the problem.

``python -m benchmarks.kernels.plot docs/kernels.svg``
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kernels.families import FAMILIES, Family, Trial, share_of

TARGET = "trn2"
WIDTH, HEIGHT = 800, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 230, 20, 50
COLOURS = ("#2a78d6", "#d6682a", "#2aa56b", "#8a55c8", "#c8a12a", "#555555")


@dataclass(frozen=True)
class Curve:
    """A family over sizes: ``trial`` gives the shapes of a size."""

    label: str
    family: Family
    sizes: tuple[int, ...]
    trial: Callable[[int], Trial]

    def points(self) -> list[tuple[int, float]]:
        """(size, share)."""
        return [(size, share_of(self.family, self.trial(size), TARGET)) for size in self.sizes]


def _family(name: str, dtype: str) -> Family:
    return next(family for family in FAMILIES if (family.name, family.dtype) == (name, dtype))


def _square(size: int) -> Trial:
    return Trial(((size, size),), {}, 0.0, 2 * size * size * 4)


def _matmul(size: int, item: int) -> Trial:
    return Trial(((size, size), (size, size)), {}, 2.0 * size**3, 3 * size * size * item)


def _conv(channels: int, item: int) -> Trial:
    side = 58
    flops = 2.0 * channels * channels * 9 * (side - 2) ** 2
    moved = (channels * side * side + channels * (side - 2) ** 2 + channels * channels * 9) * item
    return Trial(((1, channels, side, side), (128, -(-channels // 128), 9, channels)), {"taps": 3}, flops, moved)


_SIZES = (128, 256, 512, 1024, 2048, 4096)
CURVES: tuple[Curve, ...] = (
    Curve("transpose N x N, fp32", _family("transpose", "float32"), _SIZES, _square),
    Curve("softmax N x N, fp32", _family("softmax", "float32"), _SIZES, _square),
    Curve("matmul N x N x N, bf16", _family("matmul", "bfloat16"), _SIZES, lambda n: _matmul(n, 2)),
    Curve("matmul N x N x N, fp32", _family("matmul", "float32"), _SIZES, lambda n: _matmul(n, 4)),
    Curve("conv 3x3, N channels, 58x58, bf16", _family("conv2d", "bfloat16"), _SIZES[:3], lambda n: _conv(n, 2)),
    Curve("conv 3x3, N channels, 58x58, fp32", _family("conv2d", "float32"), _SIZES[:3], lambda n: _conv(n, 4)),
)


def svg(curves: Sequence[tuple[str, list[tuple[int, float]]]]) -> str:
    """The curves as an SVG image: sizes on a logarithmic axis, shares from 0 to 1."""
    sizes = sorted({size for _, points in curves for size, _ in points})
    low, high = math.log(sizes[0]), math.log(sizes[-1])

    def place(size: int, share: float) -> tuple[float, float]:
        x = LEFT + (math.log(size) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        return round(x, 1), round(TOP + (1 - share) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        x, y = place(sizes[0], tenth / 10)
        parts.append(f'<path d="M{x} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{tenth * 10} %</text>')
    for size in sizes:
        x, y = place(size, 0)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{size}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">N</text>')
    ends = sorted((place(*points[-1])[1], number) for number, (_, points) in enumerate(curves))
    lowest = 0.0
    for y, number in ends:
        label, points = curves[number]
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lowest = max(y + 4, lowest + 15)  # keep labels from overlapping
        x = place(*points[-1])[0]
        parts.append(f'<text x="{max(x, WIDTH - RIGHT) + 6}" y="{lowest}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(path: Path) -> None:
    """Compute the curves and write the image."""
    path.write_text(svg([(curve.label, curve.points()) for curve in CURVES]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
