"""Batches of any size from a few compiled ones: a batch is padded to the next bucket, and cut beyond the largest.

Each bucket needs a compiled kernel of its own; padding wastes time. ``choose`` weighs the two for the expected batches,
by predicted latencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from trnrt.errors import OptionError
from trnrt.text import count_text

DEFAULT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
# A bucket more must save at least this share of the expected latency.
LEAST_GAIN = 0.02
MOST_BUCKETS = 8


@dataclass(frozen=True)
class Slice:
    """Rows ``start`` to ``start + rows`` of a batch, run as a batch of ``bucket``."""

    start: int
    rows: int
    bucket: int


def check_buckets(buckets: Iterable[int]) -> tuple[int, ...]:
    """The sizes in order, without duplicates; OptionError if there is none, or one is below 1."""
    sizes = tuple(sorted(set(buckets)))
    if not sizes:
        raise OptionError("there are no buckets", hint="give batch sizes, as in --buckets 1,4,16")
    if sizes[0] < 1:
        raise OptionError(f"a bucket has {sizes[0]} rows", hint="give 1 row or more")
    return sizes


def parse_buckets(text: str) -> tuple[int, ...]:
    """``1,4,16`` as sizes. OptionError for anything else."""
    try:
        return check_buckets(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"buckets {text!r} are not batch sizes", hint="write --buckets 1,4,16") from None


def parse_distribution(text: str, flag: str = "--expect", what: str = "batches") -> dict[int, float]:
    """``1:0.7,8:0.3`` as sizes with weights of any scale (1 if left out). OptionError for anything else.

    ``flag`` and ``what`` are for its message.
    """
    found: dict[int, float] = {}
    try:
        for part in text.split(","):
            size, _, weight = part.partition(":")
            found[int(size)] = found.get(int(size), 0.0) + float(weight or 1)
    except ValueError:
        found = {}
    if not found or min(found) < 1 or not all(0 < weight < float("inf") for weight in found.values()):
        raise OptionError(
            f"expected {what} {text!r} are not sizes with positive weights", hint=f"write {flag} 1:0.7,8:0.2,32:0.1"
        )
    return found


def cover(rows: int, buckets: Sequence[int]) -> list[Slice]:
    """Cover ``rows`` rows with batches of the largest bucket, and the rest with the smallest bucket that holds it."""
    largest = buckets[-1]
    slices = [Slice(start, largest, largest) for start in range(0, rows - largest + 1, largest)]
    done = len(slices) * largest
    if done < rows:
        slices.append(Slice(done, rows - done, next(size for size in buckets if size >= rows - done)))
    return slices


def worker_buckets(rows: int, buckets: Sequence[int], workers: int) -> Sequence[int]:
    """The buckets to cut ``rows`` rows into; a single one for several workers, so that all get equal shares."""
    share = -(-rows // workers)
    return buckets if workers == 1 else [next((size for size in buckets if size >= share), buckets[-1])]


def divide(rows: int, buckets: Sequence[int], workers: int) -> list[Slice]:
    """Cover ``rows`` rows with one batch of the largest bucket per worker, again and again, and share the rest.

    So the parts of a batch that is cut at a multiple of ``workers`` largest buckets are covered as the whole is.
    """
    whole = rows - rows % (buckets[-1] * workers)
    rest = cover(rows - whole, worker_buckets(rows - whole, buckets, workers)) if whole < rows else []
    return cover(whole, buckets[-1:]) + [replace(part, start=part.start + whole) for part in rest]


def slices_note(slices: Sequence[Slice]) -> str:
    """``300 rows ran in 3 slices (2 of 128, 1 of 64), the last one padded with 20 rows``."""
    rows, padding = sum(s.rows for s in slices), slices[-1].bucket - slices[-1].rows
    counts = Counter(part.bucket for part in slices).items()
    sizes = f" of {slices[0].bucket}" if len(counts) == 1 else f" ({', '.join(f'{n} of {size}' for size, n in counts)})"
    whole = f"{count_text(rows, 'row')} ran in {count_text(len(slices), 'slice')}{sizes}"
    if not padding:
        return whole
    return f"{whole}, {'the last one ' if len(slices) > 1 else ''}padded with {count_text(padding, 'row')}"


def choose(
    expected: Mapping[int, float],
    latency_us: Callable[[int], float],
    *,
    most: int = MOST_BUCKETS,
    least_gain: float = LEAST_GAIN,
    largest_size: int | None = None,
) -> tuple[int, ...]:
    """The buckets with the least expected latency for batches of these sizes and weights.

    ``latency_us`` gives the predicted latency of a batch size. There are at most ``most`` buckets, and each further one
    must save ``least_gain`` of the latency. Candidates are the expected sizes, and the next power of two of each up to
    ``largest_size``: it may be faster than a smaller odd size.
    """
    sizes = sorted(expected)
    powers = {1 << (size - 1).bit_length() for size in sizes}
    candidates = sorted({*sizes, *(size for size in powers if largest_size is None or size <= largest_size)})
    total = sum(expected.values())
    latency = cache(latency_us)

    @cache
    def best(end: int, count: int) -> tuple[float, tuple[int, ...]]:
        """The least latency of sizes up to candidates[end], with that bucket and ``count - 1`` smaller ones."""
        bucket = candidates[end]

        def padded_cost(after: int) -> float:
            return sum(expected[size] for size in sizes if after < size <= bucket) / total * latency(bucket)

        if count == 1:
            return padded_cost(0), (bucket,)
        options = [(best(start, count - 1), candidates[start]) for start in range(count - 2, end)]
        return min((before[0] + padded_cost(size), (*before[1], bucket)) for before, size in options)

    largest = [end for end, size in enumerate(candidates) if size >= sizes[-1]]
    chosen = min(best(end, 1) for end in largest)
    for count in range(2, min(most, len(sizes)) + 1):
        more = min(best(end, count) for end in largest if end >= count - 1)
        # Another bucket may pay only together with the next one, but then both gain little.
        if more[0] > chosen[0] * (1 - least_gain):
            break
        chosen = more
    return chosen[1]
