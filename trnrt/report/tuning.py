"""The outcome of ``trnrt nki tune``: the page on a terminal, and the JSON document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from trnrt.nki.ordering import Certainty
from trnrt.report.documents import SCHEMA_VERSION, Document, prediction_document
from trnrt.report.pairs import agreement_line, order_document, order_lines
from trnrt.report.tables import plain_table
from trnrt.text import count_text, ends_text, name_text, one_line, range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.nki.tuning.timing import Trial
    from trnrt.nki.tuning.tuner import Ranked, Tuned
    from trnrt.report.layout import Grid

REASONS_SHOWN = 8
"""The most reasons of refused candidates to show, the most frequent first."""

_AGAINST_BEST = {
    Certainty.TIE: "tie",
    Certainty.CERTAIN: "slower, for sure",
    Certainty.LIKELY: "slower, ranges overlap",
    Certainty.OPEN: "open",
}


def tuned_document(tuned: Tuned, file: str, target: str, level: str, seed: int, *, version: str) -> Document:
    """``nki tune``: the best and the default as in ``nki profile``, and every candidate. Times are microseconds."""
    return {
        "schema_version": SCHEMA_VERSION,
        "trnrt_version": version,
        "file": file,
        "target": target,
        "nki": level,
        "kernel": tuned.kernel,
        "space": {name: list(values) for name, values in tuned.space.values.items()},
        "space_size": tuned.space.size,
        "seed": seed,
        "complete": tuned.complete,
        "stopped": tuned.stopped,
        "resumed": tuned.resumed,
        "best": None if tuned.best is None else {"call": tuned.best_call} | prediction_document(tuned.best),
        "default": {"call": tuned.default_call, "reason": tuned.default_reason or None}
        | ({} if tuned.default is None else prediction_document(tuned.default)),
        "order": None if tuned.order is None else order_document(tuned.order),
        "numbers": {
            "compared": tuned.agreements is not None,
            "problem": tuned.unchecked or None,
            "results": [asdict(a) | {"problem": a.problem or None} for a in tuned.agreements or []],
        },
        "top": [_ranked_document(ranked) for ranked in tuned.top],
        "wrong": [asdict(trial) for trial in tuned.wrong],
        "candidates": [asdict(trial) | {"reason": trial.reason or None} for trial in tuned.trials],
    }


def _ranked_document(ranked: Ranked) -> Document:
    found = ranked.range
    ends = {"predicted_us": found.us, "low_us": found.least_us, "high_us": found.most_us}
    return {"values": ranked.values, "call": ranked.call, **ends, "against_best": ranked.certainty.value}


def tuned_parts(tuned: Tuned, file: str, target: str) -> list[RenderableType]:
    """The whole page, from top to bottom."""
    timed = len(tuned.trials) - len(tuned.refusals)
    whole = "all of them" if tuned.complete else f"of {tuned.space.size:,}"
    counts = f"{count_text(len(tuned.trials), 'candidate')} ({whole}), {timed:,} timed, {len(tuned.refusals):,} refused"
    parts: list[RenderableType] = [Text(f"{name_text(file)}: {tuned.kernel} on {target}: {counts}", "bold"), ""]
    parts += _best_parts(tuned)
    if tuned.top:
        parts += ["", top_table(tuned)]
    if tuned.wrong:
        parts += ["", Text("Faster, but wrong:", "bold"), _trials_table(tuned.wrong)]
    if tuned.refusals:
        parts += ["", reasons_table(tuned.refusals)]
    return parts


def _best_parts(tuned: Tuned) -> list[RenderableType]:
    """The best candidate and the default, how sure their order is, and whether the numbers agree."""
    if tuned.best is None:
        return [Text("No candidate runs with the right numbers.", "bold red")]
    rows = [("best", range_text(tuned.best.benchmark), name_text(tuned.best_call))]
    default = "can't run" if tuned.default is None else range_text(tuned.default.benchmark)
    rows.append(("default", default, name_text(tuned.default_call)))
    parts: list[RenderableType] = [plain_table(("", "predicted", "call"), rows, right=(1,), whole=(1, 2)), ""]
    if tuned.order is not None:
        same = tuned.best_call == tuned.default_call
        parts += [Text("The default is the best.", "bold")] if same else order_lines(tuned.order, ("default", "best"))
    parts += _doubts(tuned.top[1:])
    return [*parts, *map(agreement_line, tuned.agreements or [])]


def _doubts(others: Sequence[Ranked]) -> list[Text]:
    """A line that counts the next candidates which may be as fast as the best, or faster."""
    ties, unsure = (
        sum(ranked.certainty is certainty for ranked in others) for certainty in (Certainty.TIE, Certainty.OPEN)
    )
    texts = [f"{ties:,} can't be told from the best (tie)"] if ties else []
    texts += [f"{unsure:,} may be faster (open)"] if unsure else []
    return [Text(f"Of the next {len(others)}, {', and '.join(texts)}.")] if texts else []


def top_table(tuned: Tuned) -> Grid:
    """A line for each of the fastest candidates: its arguments, its time, and its order with the best."""
    names = list(tuned.space.values)
    best = tuned.top[0].range.us
    rows = []
    for rank, ranked in enumerate(tuned.top, 1):
        found = ranked.range
        order = "best" if rank == 1 else _AGAINST_BEST[ranked.certainty]
        cells = [name_text(ranked.values[name]) for name in names]
        times = (f"{found.us:,.2f}", ends_text(found), f"{100 * (found.us / best - 1):+.1f} %")
        rows.append((str(rank), *cells, *times, order))
    columns = ("", *map(name_text, names), "us", "range", "over the best", "against the best")
    numbers = [0, *range(1, len(names) + 4)]
    return plain_table(columns, rows, right=numbers)


def reasons_table(refused: Iterable[Trial]) -> Grid:
    """A line for each kind of reason, whatever its numbers: how many candidates it refused, and the first of them."""
    groups: dict[str, list[Trial]] = {}
    for trial in refused:
        groups.setdefault(re.sub(r"\d+", "N", trial.reason), []).append(trial)
    most = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [
        (f"{len(trials):,}", _values_text(trials[0]), one_line(trials[0].reason)) for _, trials in most[:REASONS_SHOWN]
    ]
    rest = sum(len(trials) for _, trials in most[REASONS_SHOWN:])
    if rest:
        rows.append((f"{rest:,}", "...", f"{len(most) - REASONS_SHOWN} more reasons; --json has all"))
    return plain_table(("refused", "for example", "why"), rows, right=(0,))


def _trials_table(trials: Iterable[Trial]) -> Grid:
    rows = [(_values_text(trial), f"{trial.us or 0:,.2f}", one_line(trial.reason)) for trial in trials]
    return plain_table(("candidate", "us", "why"), rows, right=(1,))


def _values_text(trial: Trial) -> str:
    return name_text(", ".join(f"{name}={value}" for name, value in trial.values.items()))
