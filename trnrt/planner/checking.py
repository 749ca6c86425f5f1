"""Check that a user's choices name steps, nodes and values of the plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from trnrt.errors import OptionError
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.plan import NodeReport, StepReport
from trnrt.text import name_text, names_text, quote


def check_choices(choices: Choices, nodes: Iterable[NodeReport], steps: Sequence[StepReport]) -> None:
    """Raise OptionError for a name in the choices that the plan made with them doesn't have.

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
            f"no_fuse: node {quote(name)} is in no step that it could be kept out of: {reports[name].reason}",
            hint=f"name a node that is fused into a step; {names_text(sorted(computed))} are in steps",
        )
    outputs = [step.output for step in steps]
    for name in sorted(choices.in_hbm.difference(outputs)):
        raise unknown("in_hbm", "tensor between steps", name, outputs)
    loading = [step.name for step in steps if step.weights != "none"]
    for name in sorted(choices.own_weights.difference(loading)):
        if name in {step.name for step in steps}:
            raise OptionError(
                f"own_weights: step {quote(name)} has no weights",
                hint=f"steps with weights: {names_text(loading) or 'none'}",
            )
        raise unknown("own_weights", "step", name, loading)
    _check_options(choices, steps)


def _check_options(choices: Choices, steps: Sequence[StepReport]) -> None:
    """Raise OptionError for an option that a step doesn't have, or a value that it doesn't offer."""
    known = {step.name: step for step in steps}
    for name, option, value in sorted(choices.options, key=repr):
        if name not in known:
            raise unknown("options", "step", name, list(known))
        if (option, value) not in known[name].options:
            offered = [f"{key} {', '.join(map(str, values))}" for key, values in known[name].offered]
            raise OptionError(
                f"options: step {quote(name)} can't have {name_text(option)} {name_text(str(value))}",
                hint=f"it offers {'; '.join(offered) or 'none: it takes too little time'}",
            )


def unknown(what: str, kind: str, name: str, known: Sequence[str]) -> OptionError:
    """The error for a name that isn't among the ``known`` ones."""
    close = get_close_matches(name[:200], [one for one in known if len(one) <= 200][:1000], n=1)
    meant = f"did you mean {quote(close[0])}? " if close else ""
    return OptionError(
        f"{what}: no {kind} is called {quote(name)}",
        hint=f"{meant}there are {names_text(known) or 'none'}; `trnrt inspect` shows them",
    )
