"""What a user asks of the planner against its own choice: nodes kept apart, tensors in HBM, weights not prefetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from trnrt.errors import OptionError
from trnrt.planner.naming import printable

if TYPE_CHECKING:
    from trnrt.planner.plan import NodeReport, StepReport

ASKED = "it was asked for"
"""The reason of everything that a user has chosen."""


@dataclass(frozen=True)
class Choices:
    """What the planner must do; of all else it chooses itself.

    ``no_fuse``: nodes that are computed in no step with what comes before them. ``in_hbm``: tensors between steps
    (outputs of steps) that live in HBM. ``own_weights``: steps that load their weights while they run. ``options``:
    (step, option, value) of arguments with which kernels are called: see ``Step.tunable``.
    """

    no_fuse: frozenset[str] = frozenset()
    in_hbm: frozenset[str] = frozenset()
    own_weights: frozenset[str] = frozenset()
    options: frozenset[tuple[str, str, int | str]] = frozenset()

    def tuned(self, step: str) -> dict[str, int | str]:
        """The options of a step's kernel."""
        return {option: value for name, option, value in sorted(self.options, key=str) if name == step}

    def __or__(self, other: Choices) -> Choices:
        """What both ask for."""
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
    def of(document: Mapping[str, Sequence[Any]]) -> Choices:
        """The choices that ``document`` was."""
        names = {key: frozenset(document.get(key, ())) for key in ("no_fuse", "in_hbm", "own_weights")}
        options = frozenset((step, option, value) for step, option, value in document.get("options", ()))
        return Choices(**names, options=options)

    @property
    def request(self) -> dict[str, str]:
        """What distinguishes these choices from others, as the cache keeps it: each set as one text."""
        return {key: json.dumps(names) for key, names in self.document.items()}


DEFAULT = Choices()


def check_choices(choices: Choices, nodes: Iterable[NodeReport], steps: Sequence[StepReport]) -> None:
    """OptionError for a name that a plan, made with these choices, has no place for.

    ``nodes`` are the reports of all nodes of the model, ``steps`` all steps of its parts.
    """
    if choices == DEFAULT:
        return
    reports = {report.name: report for report in nodes}
    computed = {node for step in steps for node in step.nodes}
    for name in sorted(choices.no_fuse - computed):
        if name not in reports:
            raise unknown("no_fuse", "node of the model", name, [name for name in reports if name in computed])
        raise OptionError(
            f"no_fuse: node '{printable(name)}' is in no step that it could be kept out of: {reports[name].reason}",
            hint=f"name a node that is fused into a step; {_list(sorted(computed))} are in steps",
        )
    outputs = [step.output for step in steps]
    for name in sorted(choices.in_hbm.difference(outputs)):
        raise unknown("in_hbm", "tensor between steps", name, outputs)
    loading = [step.name for step in steps if step.weights != "none"]
    for name in sorted(choices.own_weights.difference(loading)):
        if name in {step.name for step in steps}:
            raise OptionError(
                f"own_weights: step '{printable(name)}' has no weights",
                hint=f"steps with weights: {_list(loading) or 'none'}",
            )
        raise unknown("own_weights", "step", name, loading)
    _check_options(choices, steps)


def _check_options(choices: Choices, steps: Sequence[StepReport]) -> None:
    """OptionError for an option that a step does not have, or a value that it does not offer."""
    known = {step.name: step for step in steps}
    for name, option, value in sorted(choices.options, key=repr):
        if name not in known:
            raise unknown("options", "step", name, list(known))
        if (option, value) not in known[name].options:
            offered = [f"{key} {', '.join(map(str, values))}" for key, values in known[name].offered]
            raise OptionError(
                f"options: step '{printable(name)}' can't have {printable(option)} {printable(str(value))}",
                hint=f"it offers {'; '.join(offered) or 'none: it takes too little time'}",
            )


def unknown(what: str, kind: str, name: str, known: Sequence[str]) -> OptionError:
    """The error for a name that is none of the ``known``."""
    close = get_close_matches(name[:200], [one for one in known if len(one) <= 200][:1000], n=1)
    meant = f"did you mean '{printable(close[0])}'? " if close else ""
    return OptionError(
        f"{what}: no {kind} is called '{printable(name)}'",
        hint=f"{meant}there are {_list(known) or 'none'}; `trnrt inspect` shows them",
    )


def _list(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(printable(name, 60) for name in names[:most]) + more
