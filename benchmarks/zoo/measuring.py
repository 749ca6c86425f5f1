"""Measure the models of a list, and keep each number as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.zoo.accuracy import RUNS, SEED, Accuracy, measure_accuracy
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
CHOOSING = "trn2"
"""The target whose best batch is taken for all, if it is among them: planning every batch for each takes hours."""
_QUICK = 0
_OWN = ("accuracy.py", "predicting.py")


@dataclass(frozen=True)
class Wanted:
    """The measurements to make.

    ``batches``: the best one is chosen among these, in ascending order. ``effort``: of the predictions; the best batch
    is chosen with 0. ``items``: rows to measure accuracy with; 0 measures none.
    """

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
    """A model of a folder, its sessions, and where its measurements are kept."""

    entry: Entry
    digest: str
    kept: Kept
    sessions: Sessions

    def key(self, what: str, rooms: tuple[str, ...]) -> Document:
        """The key of a measurement by these rooms of trnrt, and by this folder's own code."""
        asked = {"shapes": self.entry.shapes, "largest": self.entry.largest}
        code = {"code": code_version(rooms), "measured_by": code_version(_OWN, Path(__file__).parent)}
        return {"what": what, "model": self.digest, **code, **asked}


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
        tried = _try_batches(model, wanted)
        yield row
        for target in wanted.targets:
            row = _with_predictions(model, row, target, tried, wanted.effort)
            yield row
    if wanted.items:
        for dtype in wanted.dtypes:
            row = _with_accuracy(model, row, dtype, wanted.items)
            yield row


def _try_batches(model: _Model, wanted: Wanted) -> dict[int, float]:
    """Batch -> items a second, by plans that are made quickly; the smallest with 0 if it can't be planned.

    Larger batches are tried until one gives no more: the largest take the most time to plan.
    """
    target = CHOOSING if CHOOSING in wanted.targets else wanted.targets[0]
    tried: dict[int, float] = {}
    try:
        for batch in _batches(model, target, wanted.batches):
            rate = _predict(model, target, batch, _QUICK).items_per_second
            is_best = rate > max(tried.values(), default=0.0)
            tried[batch] = rate
            if not is_best:
                break
    except TrnrtError:
        pass
    return tried or {min(wanted.batches): 0.0}


def _batches(model: _Model, target: str, batches: tuple[int, ...]) -> tuple[int, ...]:
    key = {**model.key("batches", PLANS), "wanted": batches}
    found = model.kept.measurement(
        key, lambda: {"batches": batches_of(model.sessions.session(target, PREDICTED_DTYPE), batches)}
    )
    return tuple(found["batches"])


def _with_predictions(model: _Model, row: Result, target: str, tried: dict[int, float], effort: int) -> Result:
    """The row with the target's predictions of the smallest and the best batch, or with why there are none."""
    try:
        own = dict.fromkeys(_batches(model, target, (min(tried), max(tried, key=lambda batch: tried[batch]))))
        found = [_predict(model, target, batch, effort) for batch in own]
    except UnsupportedModelError as error:
        return row.with_refusal(target, list(dict.fromkeys(f"{one.op}: {one.reason}" for one in error.blockers)))
    except TrnrtError as error:
        return row.with_refusal(target, [str(error)])
    return row.with_predictions(target, found, tuple(tried))


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
