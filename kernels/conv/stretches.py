"""Cut a band of results into stretches: boxes of images, rows and columns that each fill a PSUM bank.

Each stretch takes a pass of the tensor engine for every product. On trn1 passes are 29 ns apart (docs/timing.md), so
the fewest stretches are the fastest, whatever their form: rows of several images, or strips of columns. From trn2 on
they are 2.5 ns apart, and it is better to finish one image after the other: MobileNetV2 at batch 8 in bfloat16 takes,
predicted, 1.5 % less.
"""

from trnrt.kernels.common import Pair, Rectangle, ceil_div
from trnrt.nki import nl

# The narrowest strip of columns that is cut off: the tensor engine, and stores, would read short runs of it.
NARROWEST = 16


def stretches(images: int, rows: int, cols: int, fewest: bool) -> list[Rectangle]:
    """The stretches of a band of results, in the order of computation: the ``fewest``, or whole rows if one fits, of an
    image or of several whole images."""
    if not fewest:
        return _whole_rows(images, rows, cols)
    found: list[Rectangle] = []
    first = 0
    for width in _widths(images, rows, cols):
        room = nl.tile_size.psum_bank_fmax // width
        r0 = 0
        for high in _heights(images, rows, room):
            together = ceil_div(images, ceil_div(images, room // high))
            for n0 in range(0, images, together):
                place = (n0, min(images, n0 + together))
                found.append(Rectangle(place, (r0, r0 + high), (first, first + width)))
            r0 += high
        first += width
    return found


def _whole_rows(images: int, rows: int, cols: int) -> list[Rectangle]:
    """Stretches of whole rows, or parts of one row, about equal in size."""
    bank = nl.tile_size.psum_bank_fmax
    c_step = ceil_div(cols, ceil_div(cols, bank))
    r_step = min(rows, bank // c_step)
    r_step = ceil_div(rows, ceil_div(rows, r_step))
    n_step = min(images, bank // (c_step * r_step)) if r_step == rows and c_step == cols else 1
    n_step = ceil_div(images, ceil_div(images, n_step))
    found: list[Rectangle] = []
    for n0 in range(0, images, n_step):
        for r0 in range(0, rows, r_step):
            for c0 in range(0, cols, c_step):
                ends = (min(images, n0 + n_step), min(rows, r0 + r_step), min(cols, c0 + c_step))
                found.append(Rectangle((n0, ends[0]), (r0, ends[1]), (c0, ends[2])))
    return found


def _widths(images: int, rows: int, cols: int) -> list[int]:
    """The widths of the strips of columns: equal ones, or for one image some that fill banks and a rest, if that makes
    fewer stretches."""
    bank = nl.tile_size.psum_bank_fmax
    number = ceil_div(cols, bank)
    best = (ceil_div(cols, number), number)
    least = _count_of_strips(best, rows, cols)
    if images == 1:
        for high in range(1, min(rows, bank // NARROWEST) + 1):
            width = bank // high
            for count in range(1, cols // width + 1):
                rest = cols - count * width
                made = _count_of_strips((width, count), rows, cols)
                if made < least and (rest == 0 or NARROWEST <= rest <= bank):
                    least = made
                    best = (width, count)
    widths: list[int] = []
    left = cols
    while left > 0:
        width = best[0] if len(widths) < best[1] else left
        widths.append(min(width, left))
        left -= widths[-1]
    return widths


def _count_of_strips(strips: Pair, rows: int, cols: int) -> int:
    """The number of stretches of an image: ``strips`` is (width, count), and the rest of the columns is one more."""
    bank = nl.tile_size.psum_bank_fmax
    width, count = strips
    rest = cols - count * width
    if rest <= 0:
        # The last one may be narrower.
        return (count - 1) * ceil_div(rows, bank // width) + ceil_div(rows, bank // (width + rest))
    return count * ceil_div(rows, bank // width) + ceil_div(rows, max(1, bank // rest))


def _heights(images: int, rows: int, room: int) -> list[int]:
    """The rows of the stretches that a strip is cut into, where ``room`` rows share a bank: the fewest stretches. Low
    ones, which have more images each, come first, so that at the end the images are finished one after the other."""
    if images == 1:
        number = ceil_div(rows, room)
        step = ceil_div(rows, number)
        return [step] * (rows // step) + ([rows % step] if rows % step > 0 else [])
    least = [0]
    last = [0]
    for r in range(1, rows + 1):
        best = 1
        for high in range(2, min(r, room) + 1):
            if least[r - high] + ceil_div(images, room // high) < least[r - best] + ceil_div(images, room // best):
                best = high
        least.append(least[r - best] + ceil_div(images, room // best))
        last.append(best)
    heights: list[int] = []
    for high in range(1, min(rows, room) + 1):
        left = rows
        while left > 0:
            if last[left] == high:
                heights.append(high)
            left -= last[left]
    return heights
