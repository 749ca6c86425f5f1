"""The figures that others published for models of the zoo, from ``published.json``: shown, but never compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal


@dataclass(frozen=True)
class Published:
    """A published rate, as its page states it. ``published.json`` says what the fields mean.

    ``target``: the generation of the cores, to show it beside that target's predictions.
    """

    model: str
    target: str
    items_per_second: float
    cores: int | None
    work: Literal["apart", "as one"] | None
    batch: int | None
    clock: Literal["host", "unknown"]
    what: str
    source: str
    page: str
    read: str | None

    @property
    def ms_on_a_core(self) -> float | None:
        """Milliseconds an item takes a core, if the page's cores each had their own items; else None."""
        if self.work != "apart" or self.cores is None:
            return None
        return 1e3 * self.cores / self.items_per_second

    @property
    def clock_text(self) -> str:
        """A sentence on what the time includes."""
        return (
            "the host's part is in it" if self.clock == "host" else "the page doesn't say if the host's part is in it"
        )


@cache
def list_published() -> tuple[Published, ...]:
    """All figures, in the file's order."""
    document = json.loads((files(__package__) / "published.json").read_text(encoding="utf-8"))
    return tuple(Published(**one) for one in document["figures"])


def find_published(model: str, target: str | None = None) -> list[Published]:
    """The figures of a model by its file's name without the ending, of one target's cores or of all."""
    return [one for one in list_published() if one.model == model and target in (None, one.target)]


def figure_text(one: Published) -> str:
    """The figure in a cell: the rate as stated and, where cores can be divided by, a core's time an item."""
    rate = f"{one.items_per_second:,.0f}" if one.items_per_second >= 100 else f"{one.items_per_second:.3g}"
    if one.ms_on_a_core is not None and one.cores != 1:
        return f"{rate}/s by {one.cores} cores ({one.ms_on_a_core:.3g} ms a core)"
    if one.ms_on_a_core is not None:
        return f"{rate}/s by 1 core"
    return f"{rate}/s by {one.cores} cores as one" if one.cores else f"{rate}/s"
