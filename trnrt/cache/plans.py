"""Plans from the cache, or made and kept there, for a session's new input shapes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trnrt.cache import KernelCache
from trnrt.cache.code import PLANS, code_version
from trnrt.cache.entries import COMPILED, Entries, Times
from trnrt.errors import OptionError
from trnrt.nki.machine.targets import cache_name

if TYPE_CHECKING:
    from trnrt.importer import ImportedModel
    from trnrt.planner.options import Float8, PlanOptions
    from trnrt.planner.parts.partition import Partition

Array = NDArray[Any]

LIMIT_VARIABLE = "TRNRT_CACHE_LIMIT"
DEFAULT_LIMIT = "8GiB"
_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size_limit() -> int:
    """The cache's limit in bytes: ``$TRNRT_CACHE_LIMIT`` ("500MiB", "8GiB"; 0 keeps nothing), else 8 GiB."""
    text = os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS:
        raise OptionError(f"{LIMIT_VARIABLE}={text!r} is no size", hint="write 500MiB or 8GiB; 0 keeps nothing")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _float8(float8: Float8) -> list[Any]:
    return [float8.dtype, dict(float8.ranges), float8.narrow]


def request_for(
    model: ImportedModel,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Array],
    options: PlanOptions,
) -> dict[str, Any]:
    """Everything that a plan depends on, as JSON."""
    batched = {name for name in shapes if model.batch is not None and name not in values and shapes[name]}
    rows = {shapes[name][0] for name in batched}
    return {
        "name": model.name,
        "model": model.digest,
        "version": code_version(PLANS),
        "target": cache_name(options.target),
        "dtype": options.dtype,
        "fallback": options.fallback,
        "batch": rows.pop() if len(rows) == 1 else None,
        "shapes": {name: list(shape[1:] if name in batched else shape) for name, shape in shapes.items()},
        "values": {name: _digest(array) for name, array in values.items()},
        "choices": options.choices.request,
        "effort": options.effort,
        "max_instructions": options.max_instructions,
        "lnc": options.lnc,
        **({} if options.float8 is None else {"float8": _float8(options.float8)}),
    }


def _digest(array: Array) -> str:
    described = f"{array.dtype.name} {array.shape} ".encode()
    return hashlib.sha256(described + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


class PlanCache(KernelCache):
    """A directory of kernel modules and saved plans."""

    def __init__(self, directory: Path | None = None, *, enabled: bool = True) -> None:
        super().__init__(directory)
        self.limit = size_limit()
        self.enabled = enabled and self.limit > 0

    @property
    def compiled_directory(self) -> Path | None:
        """The directory for device programs; None if nothing is kept."""
        return self.directory / COMPILED if self.enabled else None

    @property
    def entries(self) -> Entries:
        """The saved plans."""
        return Entries(self.directory, self.limit)

    def time(self, request: Mapping[str, Any], predict: Callable[[], Times]) -> Times:
        """A request's predicted latency, from the cache or from ``predict``, whose result is kept."""
        if not self.enabled:
            return predict()
        known = self.entries.time(request)
        if known is None:
            known = predict()
            if not self.prepare():
                self.entries.put_time(request, known)
        return known

    def partition(self, request: Mapping[str, Any], make: Callable[[], Partition]) -> tuple[Partition, str]:
        """A request's partition, from the cache or from ``make``, whose result is kept; and a note, or "".

        CacheError if the directory is not private to the owner.
        """
        if not self.enabled:
            return make(), ""
        full = self.prepare()
        kept, reason = read_partition(self.entries, request)
        if kept is not None:
            return kept, ""
        partition = make()
        if full:
            return partition, full
        note = keep_partition(self.entries, request, partition)
        return partition, "; ".join(part for part in (reason, note) if part)


def read_partition(entries: Entries, request: Mapping[str, Any]) -> tuple[Partition | None, str]:
    """A request's partition, or None and why there is none."""
    from trnrt.planner.saving.partitions import NotSaved, decode

    found = entries.look_up(request)
    if found.saved is None:
        return None, found.reason
    try:
        return decode(found.saved, found.arrays), ""
    except NotSaved as damaged:
        return None, str(damaged)


def keep_partition(entries: Entries, request: Mapping[str, Any], partition: Partition) -> str:
    """Keep a partition; return why it can't be kept, or ""."""
    from trnrt.planner.saving.partitions import NotSaved, encode

    try:
        saved, arrays = encode(partition)
    except NotSaved as strange:
        return str(strange)
    return entries.put(request, saved, arrays)
