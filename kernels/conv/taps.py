"""The taps of a convolution's kernel, one product each, and the results for which a tap sees loaded input."""

from trnrt.kernels.common import Pair, ceil_div
from trnrt.kernels.conv.packing import Packing


def list_taps(kernel: Pair, pack: Packing, lead: Pair) -> list[tuple[int, int, int]]:
    """(number, kernel row, kernel column) of each product, that of tap ``lead`` first."""
    taps: list[tuple[int, int, int]] = []
    product = 0
    for u in range(0, kernel[0], pack[0]):
        for v in range(0, kernel[1], pack[1]):
            if (u, v) == lead:
                taps = [(product, u, v)] + taps
            else:
                taps.append((product, u, v))
            product += 1
    return taps


def visible_range(start: int, count: int, step: int, low: int, high: int) -> Pair:
    """(first, end) of the results that see any of ``low`` to ``high``; result i looks at start + i*step."""
    return (max(0, ceil_div(low - start, step)), min(count, ceil_div(high - start, step)))
