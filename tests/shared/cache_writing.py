"""Requests and arrays of cache entries, and a writer of them that other processes can import: tests they can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trnrt.cache.entries import Array, Entries

LARGE = 2**30
REQUEST = {
    "name": "digits",
    "model": "a" * 40,
    "version": "0.1.0+" + "b" * 40,
    "target": "trn2",
    "dtype": "float32",
    "shapes": {"image": [1, 1, 8, 8]},
}


def request(**changes: Any) -> dict[str, Any]:
    return REQUEST | changes


def weights(seed: int, size: int = 100) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.random(size, np.float32), np.arange(3, dtype=np.int64)]


def write_often(folder: Path, seed: int, count: int) -> None:
    cache = Entries(folder, LARGE)
    for k in range(count):
        cache.put(request(batch=k % 3), {"by": seed}, weights(k % 3, 20_000))
