"""Another order of the tests: ``pytest --order-seed N`` shuffles the files, and the tests of each file.

A seed gives the same order in each process of a parallel run. What fails under one seed only shares something with a
test before it: a cache, an environment variable, an object of a library.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")


def shuffled(items: Iterable[tuple[Hashable, T]], seed: int) -> list[T]:
    """The items of (group, item), in another order: groups stay together, and change places as a whole."""
    draw = random.Random(seed)
    groups: dict[Hashable, list[T]] = {}
    for group, item in items:
        groups.setdefault(group, []).append(item)
    found = list(groups.values())
    draw.shuffle(found)
    for members in found:
        draw.shuffle(members)
    return [item for members in found for item in members]


def reorder(items: list[pytest.Item], seed: int) -> None:
    """Shuffle collected tests in place."""
    items[:] = shuffled([(item.path, item) for item in items], seed)
