"""Measure the models of a list, and keep each number as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.zoo.accuracy import SEED, Accuracy, measure_accuracy
from benchmarks.zoo.keeping import Document, Kept
from benchmarks.zoo.listing import Entry, digest_of, files_of
from benchmarks.zoo.predicting import Prediction, Sessions, batches_of, predict
from benchmarks.zoo.results import Result, Results, prediction_of
from trnrt.cache.code import PLANS, code_version
from trnrt.errors import OptionError, TrnrtError, UnsupportedModelError
from trnrt.nki.sim.kernel import default_target
from trnrt.report.console import note

BATCHES = (1, 4, 8, 16)
TARGETS = ("trn1", "trn2", "trn3")
DTYPES = ("float32", "bfloat16")
PREDICTED_DTYPE = "bfloat16"
RUNS = (*PLANS, "backends", "inputs", "running", "session.py", "validate")
"""What an accuracy depends on, beside the model: plans, and what runs and compares them."""
CHOOSING = "trn2"
"""The target whose best batch is taken for all, if it is among them: planning every batch for each takes hours."""
_QUICK = 0


@dataclass(frozen=True)
class Wanted:
    """What to measure. ``batches``: among which the best is chosen, ascending. ``effort``: of the predictions; the
    best batch is chosen with 0. ``items``: rows to measure accuracy with; 0 measures none."""

    targets: Sequence[str]
    batches: tuple[int, ...] = BATCHES
    effort: int = 1
    predicts: bool = True
    items: int = 4
    dtypes: Sequence[str] = DTYPES

    @property
    def steps(self) -> int:
        """Calls of ``done`` for a model."""
        return self.predicts * (1 + len(self.targets)) + bool(self.items) * len(self.dtypes)


@dataclass(frozen=True)
class _Model:
    """A model of a folder, with what its measurements are kept under."""

    entry: Entry
    digest: str
    kept: Kept
    sessions: Sessions

    def key(self, what: str, rooms: tuple[str, ...]) -> Document:
        asked = {"shapes": self.entry.shapes, "largest": self.entry.largest}
        return {"what": what, "model": self.digest, "code": code_version(rooms), **asked}


def measure_models(
    folder: Path, entries: Sequence[Entry], wanted: Wanted, kept: Kept, results: Results, done: Callable[[int], None]
) -> None:
    """Measure each model and put its row into ``results``; ``done`` is called with 1 after each step."""
    for entry in entries:
        paths = _check_files(folder, entry)
        digest = digest_of(paths)
        model = _Model(entry, digest, kept, Sessions(folder / entry.file, entry))
        kept_row = results.row(entry, sum(path.stat().st_size for path in paths), digest)
        for row in _rows_of(model, kept_row, wanted):
            if row.has_numbers:
                results.keep(row)
            done(1)


def _check_files(folder: Path, entry: Entry) -> list[Path]:
    """The model's files. OptionError if one is missing."""
    path = folder / entry.file
    try:
        paths = files_of(path)
    except OSError as error:
        raise OptionError(f"can't read {path}: {error.strerror}", hint="make the file again: --out DIR") from None
    missing = [str(one) for one in paths if not one.is_file()]
    if missing:
        raise OptionError(f"{path} needs {', '.join(missing)}", hint="make the file again: --out DIR")
    return paths


def _rows_of(model: _Model, row: Result, wanted: Wanted) -> Iterator[Result]:
    """The row after each step."""
    if wanted.predicts:
        best = _choose_batch(model, wanted)
        yield row
        for target in wanted.targets:
            row = _with_predictions(model, row, target, (min(wanted.batches), best), wanted.effort)
            yield row
    if wanted.items:
        for dtype in wanted.dtypes:
            row = _with_accuracy(model, row, dtype, wanted.items)
            yield row


def _choose_batch(model: _Model, wanted: Wanted) -> int:
    """The batch with the most items a second, by plans that are made quickly; the smallest if none can be.

    Larger batches are tried until one gives no more: the largest take the most time to plan.
    """
    target = CHOOSING if CHOOSING in wanted.targets else wanted.targets[0]
    best: Prediction | None = None
    try:
        for batch in _batches(model, target, wanted.batches):
            one = _predict(model, target, batch, _QUICK)
            if best is not None and one.items_per_second <= best.items_per_second:
                break
            best = one
    except TrnrtError:
        pass
    return min(wanted.batches) if best is None else best.batch


def _batches(model: _Model, target: str, batches: tuple[int, ...]) -> tuple[int, ...]:
    key = {**model.key("batches", PLANS), "wanted": batches}
    found = model.kept.measurement(
        key, lambda: {"batches": batches_of(model.sessions.session(target, PREDICTED_DTYPE), batches)}
    )
    return tuple(found["batches"])


def _with_predictions(model: _Model, row: Result, target: str, batches: tuple[int, ...], effort: int) -> Result:
    """The row with the target's predictions, or with why there are none."""
    try:
        own = dict.fromkeys(_batches(model, target, batches))
        found = [_predict(model, target, batch, effort) for batch in own]
    except UnsupportedModelError as error:
        return row.with_refusal(target, list(dict.fromkeys(f"{one.op}: {one.reason}" for one in error.blockers)))
    except TrnrtError as error:
        return row.with_refusal(target, [str(error)])
    return row.with_predictions(target, found, code_version(PLANS))


def _predict(model: _Model, target: str, batch: int, effort: int) -> Prediction:
    asked = {"target": target, "dtype": PREDICTED_DTYPE, "batch": batch, "effort": effort}
    key = {**model.key("prediction", PLANS), **asked}
    found = model.kept.measurement(
        key, lambda: asdict(predict(model.sessions.session(target, PREDICTED_DTYPE, effort), batch))
    )
    return prediction_of(found)


def _with_accuracy(model: _Model, row: Result, dtype: str, items: int) -> Result:
    """The row with the accuracy in this dtype, on the default target; as it was, with a note, if that fails."""
    key = {**model.key("accuracy", RUNS), "dtype": dtype, "items": items, "seed": SEED}

    def measure() -> Document:
        return asdict(measure_accuracy(model.sessions.session(default_target(), dtype), model.entry, items))

    try:
        found = model.kept.measurement(key, measure)
    except TrnrtError as error:
        note(f"{model.entry.name}: no accuracy in {dtype}: {str(error).splitlines()[0]}")
        return row
    return row.with_accuracy(dtype, Accuracy(**found))
