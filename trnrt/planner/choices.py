"""Everything that can be chosen about a plan: by the user, whose choices stay, and by the search for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_Number = TypeVar("_Number", int, float)

ASKED = "it was asked for"
"""The reason given for everything that a user has chosen."""


@dataclass(frozen=True)
class Choices:
    """The choices that were made; the planner makes all others.

    ``no_fuse``: nodes that are never computed in one step with the nodes before them. ``in_hbm``: step outputs that
    live in HBM. ``own_weights``: steps that load their weights while they run. ``options``: (step, option, value) for
    arguments of kernel calls; see ``Step.tunable``. ``sweeps``: (first step, last step, images), for steps that take
    some images at a time; one that the plan's steps or its batch don't allow is ignored. ``rows``: rows of the batch
    that the plan takes in a pass; if it divides the batch, the planner looks for no other passes and sweeps.
    ``share``: the most of SBUF's room that prefetched weights and resident tensors take, 0 to 1.
    """

    no_fuse: frozenset[str] = frozenset()
    in_hbm: frozenset[str] = frozenset()
    own_weights: frozenset[str] = frozenset()
    options: frozenset[tuple[str, str, int | str]] = frozenset()
    sweeps: frozenset[tuple[str, str, int]] = frozenset()
    rows: int | None = None
    share: float | None = None

    def step_options(self, step: str) -> dict[str, int | str]:
        """The options of a step's kernel."""
        return {option: value for name, option, value in sorted(self.options, key=str) if name == step}

    def __or__(self, other: Choices) -> Choices:
        """The union of both choices; of two numbers that differ, neither."""
        return Choices(
            self.no_fuse | other.no_fuse,
            self.in_hbm | other.in_hbm,
            self.own_weights | other.own_weights,
            self.options | other.options,
            self.sweeps | other.sweeps,
            _join(self.rows, other.rows),
            _join(self.share, other.share),
        )

    @property
    def document(self) -> dict[str, Any]:
        """The names in order, as JSON."""
        return {
            "no_fuse": sorted(self.no_fuse),
            "in_hbm": sorted(self.in_hbm),
            "own_weights": sorted(self.own_weights),
            "options": sorted(([*option] for option in self.options), key=repr),
            "sweeps": sorted([*sweep] for sweep in self.sweeps),
            "rows": self.rows,
            "share": self.share,
        }

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Choices:
        """The choices saved in ``document``."""
        names = {key: frozenset(document.get(key, ())) for key in ("no_fuse", "in_hbm", "own_weights")}
        options = frozenset((step, option, value) for step, option, value in document.get("options", ()))
        sweeps = frozenset((first, last, images) for first, last, images in document.get("sweeps", ()))
        rows, share = document.get("rows"), document.get("share")
        return Choices(**names, options=options, sweeps=sweeps, rows=rows, share=share)

    @property
    def request(self) -> dict[str, str]:
        """The choices as a part of the cache's key: each set as one text."""
        return {key: json.dumps(names) for key, names in self.document.items()}


def _join(one: _Number | None, other: _Number | None) -> _Number | None:
    """The number that either has; None if they differ."""
    if one is None or other is None:
        return one if other is None else other
    return one if one == other else None


DEFAULT = Choices()
