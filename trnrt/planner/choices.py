"""A user's choices, which override the planner's: nodes kept apart, tensors in HBM, weights not prefetched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ASKED = "it was asked for"
"""The reason given for everything that a user has chosen."""


@dataclass(frozen=True)
class Choices:
    """The user's choices; the planner chooses everything else.

    ``no_fuse``: nodes that are never computed in one step with the nodes before them. ``in_hbm``: step outputs that
    live in HBM. ``own_weights``: steps that load their weights while they run. ``options``: (step, option, value) for
    arguments of kernel calls; see ``Step.tunable``.
    """

    no_fuse: frozenset[str] = frozenset()
    in_hbm: frozenset[str] = frozenset()
    own_weights: frozenset[str] = frozenset()
    options: frozenset[tuple[str, str, int | str]] = frozenset()

    def step_options(self, step: str) -> dict[str, int | str]:
        """The options of a step's kernel."""
        return {option: value for name, option, value in sorted(self.options, key=str) if name == step}

    def __or__(self, other: Choices) -> Choices:
        """The union of both choices."""
        return Choices(
            self.no_fuse | other.no_fuse,
            self.in_hbm | other.in_hbm,
            self.own_weights | other.own_weights,
            self.options | other.options,
        )

    @property
    def document(self) -> dict[str, list[Any]]:
        """The names in order, as JSON."""
        return {
            "no_fuse": sorted(self.no_fuse),
            "in_hbm": sorted(self.in_hbm),
            "own_weights": sorted(self.own_weights),
            "options": sorted(([*option] for option in self.options), key=repr),
        }

    @staticmethod
    def from_document(document: Mapping[str, Sequence[Any]]) -> Choices:
        """The choices saved in ``document``."""
        names = {key: frozenset(document.get(key, ())) for key in ("no_fuse", "in_hbm", "own_weights")}
        options = frozenset((step, option, value) for step, option, value in document.get("options", ()))
        return Choices(**names, options=options)

    @property
    def request(self) -> dict[str, str]:
        """The choices as a part of the cache's key: each set as one text."""
        return {key: json.dumps(names) for key, names in self.document.items()}


DEFAULT = Choices()
