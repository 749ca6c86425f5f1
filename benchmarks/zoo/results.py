"""The results: a row for each model, in a JSON file from which both pages are made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.zoo.accuracy import Accuracy
from benchmarks.zoo.listing import Entry
from benchmarks.zoo.predicting import Prediction
from trnrt.errors import OptionError
from trnrt.nki.breakdown import Holder
from trnrt.nki.machine.timing import Range
from trnrt.report.files import write_text

RESULTS = Path(__file__).with_name("results.json")
ZOO_SCHEMA_VERSION = 1
Document = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A model's row. ``size``: bytes of its files. ``accuracy``: by dtype.

    ``tried``: the batches among which the best was chosen, by target. ``refused``: why it can't be planned, by target;
    empty if it can.
    """

    entry: Entry
    size: int
    digest: str
    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    predictions: tuple[Prediction, ...] = ()
    tried: dict[str, tuple[int, ...]] = field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def has_numbers(self) -> bool:
        """False as long as nothing was measured."""
        return bool(self.predictions or self.refused or self.accuracy)

    def with_predictions(self, target: str, found: Iterable[Prediction], tried: tuple[int, ...]) -> Result:
        """With these predictions, and the batches tried, in place of the target's older ones."""
        others = [one for one in self.predictions if one.target != target]
        refused = {name: why for name, why in self.refused.items() if name != target}
        predictions = tuple(sorted([*others, *found], key=_place))
        return replace(self, predictions=predictions, tried={**self.tried, target: tried}, refused=refused)

    def with_accuracy(self, dtype: str, found: Accuracy) -> Result:
        """With the accuracy in a dtype, in place of an older one."""
        return replace(self, accuracy={**self.accuracy, dtype: found})

    def with_refusal(self, target: str, why: Sequence[str]) -> Result:
        """Without the target's predictions: it can't be planned there."""
        others = tuple(one for one in self.predictions if one.target != target)
        tried = {name: batches for name, batches in self.tried.items() if name != target}
        return replace(self, predictions=others, tried=tried, refused={**self.refused, target: tuple(why)})

    def prediction(self, target: str, dtype: str, batch: int) -> Prediction | None:
        """The prediction of a batch, if it was made."""
        wanted = (target, dtype, batch)
        return next((one for one in self.predictions if _place(one) == wanted), None)

    def best(self, target: str, dtype: str) -> Prediction | None:
        """The prediction with the most items a second; of equal ones the smallest batch."""
        found = [one for one in self.predictions if (one.target, one.dtype) == (target, dtype)]
        return max(found, key=lambda one: (one.items_per_second, -one.batch), default=None)


def _place(found: Prediction) -> tuple[str, str, int]:
    return found.target, found.dtype, found.batch


class Results:
    """The rows of a results file, which is written after each change."""

    def __init__(self, path: Path = RESULTS) -> None:
        self.path = path
        self._rows = {row.entry.file: row for row in read_results(path)}

    @property
    def rows(self) -> list[Result]:
        """Sorted by kind, then title."""
        return sorted(self._rows.values(), key=lambda row: (row.entry.kind, row.entry.title))

    def row(self, entry: Entry, size: int, digest: str) -> Result:
        """The kept row of a model, empty if its file is another one now, or its inputs have other sizes or numbers."""
        kept = self._rows.get(entry.file)
        asked = (digest, entry.shapes, entry.largest)
        if kept is None or (kept.digest, kept.entry.shapes, kept.entry.largest) != asked:
            return Result(entry, size, digest)
        return replace(kept, entry=entry)

    def keep(self, row: Result) -> None:
        """Put the row in place of the model's older one, and write the file."""
        self._rows[row.entry.file] = row
        write_text(self.path, json.dumps(results_document(self.rows), indent=1) + "\n")


def read_results(path: Path = RESULTS) -> list[Result]:
    """The rows of a results file, none if there is no file. OptionError if it holds something else."""
    if not path.exists():
        return []
    try:
        return [_row_of(one) for one in json.loads(path.read_text(encoding="utf-8"))["models"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"{type(error).__name__}: {error}"
        hint = "name a new file, and measure into it"
        raise OptionError(f"{path} holds no results of the zoo ({reason})", hint=hint) from None


def results_document(rows: Iterable[Result]) -> Document:
    """The rows as JSON: times in microseconds, sizes in bytes."""
    return {
        "schema_version": ZOO_SCHEMA_VERSION,
        "benchmark": "zoo",
        "models": [{**asdict(row.entry), **_without_entry(row)} for row in rows],
    }


def _without_entry(row: Result) -> Document:
    document = asdict(row)
    del document["entry"]
    return document


def _row_of(document: Document) -> Result:
    given = dict(document)
    entry = {name: given.pop(name) for name in Entry.__dataclass_fields__}
    return Result(
        entry=Entry(**{**entry, "shapes": tuple(entry["shapes"])}),
        size=given["size"],
        digest=given["digest"],
        accuracy={dtype: Accuracy(**one) for dtype, one in given["accuracy"].items()},
        predictions=tuple(prediction_of(one) for one in given["predictions"]),
        tried={target: tuple(batches) for target, batches in given["tried"].items()},
        refused={target: tuple(why) for target, why in given["refused"].items()},
    )


def prediction_of(document: Document) -> Prediction:
    """A prediction from its JSON."""
    given = dict(document)
    given["predicted"] = Range(**given["predicted"])
    given["held"] = tuple(Holder(**one) for one in given["held"])
    given["on_host"] = tuple(given["on_host"])
    return Prediction(**given)
