"""The ledger of a load's requests: who got an answer, when, and whether its numbers were right.

Answers are judged after the load, by what the client knew beforehand: the request's id, and the numbers that
onnxruntime gives for its row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.serve.wire import Answer

Array = NDArray[Any]

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header with the size of the JSON before binary tensors, in bytes."""
TOLERANCE = 2e-4
"""The allowed error of an output, relative to the largest number of its row: float32, summed in another order."""


class Verdict(IntEnum):
    """The outcome of a request."""

    RIGHT = 0
    WRONG_NUMBERS = 1
    WRONG_ID = 2
    UNREADABLE = 3
    """Neither an answer nor an error of the protocol."""
    REJECTED = 4
    """A 503, or a 429 with a time to retry, with the protocol's error."""
    ERROR = 5
    """Any other status, with the protocol's error."""
    CUT = 6
    """The connection ended before the answer."""
    LOST = 7
    """No answer, on a connection that stayed open."""


def id_of(index: int) -> str:
    """The id of a load's ``index``-th request, of fixed length, so that all requests have the same length."""
    return f"load-{index:08d}"


@dataclass(frozen=True)
class Expected:
    """The expected answer to a request: model, output, and the numbers of its row, or of its rows."""

    model: str
    output: str
    numbers: Array


def judge(answer: Answer, request_id: str, expected: Expected) -> Verdict:
    """The verdict on an answer to this request."""
    size = answer.header(HEADER_LENGTH.lower())
    try:
        length = len(answer.body) if size is None else int(size)
        document = json.loads(answer.body[:length])
    except ValueError:
        return Verdict.UNREADABLE
    if not isinstance(document, dict) or answer.header("x-request-id") is None:
        return Verdict.UNREADABLE
    if answer.header("x-request-id") != request_id:
        return Verdict.WRONG_ID
    if answer.status != 200:
        if not isinstance(document.get("error"), str):
            return Verdict.UNREADABLE
        told = answer.status == 503 or (answer.status == 429 and answer.header("retry-after") is not None)
        return Verdict.REJECTED if told else Verdict.ERROR
    if document.get("id") != request_id:
        return Verdict.WRONG_ID
    return _judge_numbers(document, answer.body[length:], expected)


def _judge_numbers(document: dict[str, Any], binary: bytes, expected: Expected) -> Verdict:
    outputs = {output["name"]: output for output in document.get("outputs", ())}
    if document.get("model_name") != expected.model or expected.output not in outputs:
        return Verdict.UNREADABLE
    data = outputs[expected.output].get("data")
    if data is None and len(binary) % 4:
        return Verdict.UNREADABLE
    numbers = np.frombuffer(binary, "<f4").astype(np.float64) if data is None else np.asarray(data, np.float64)
    if numbers.shape != (expected.numbers.size,):
        return Verdict.WRONG_NUMBERS
    limits = TOLERANCE * np.abs(expected.numbers).max(axis=-1, keepdims=True)
    errors = np.abs(numbers.reshape(expected.numbers.shape) - expected.numbers)
    return Verdict.RIGHT if (errors <= limits).all() else Verdict.WRONG_NUMBERS


@dataclass(frozen=True)
class Ledger:
    """One line per request, in the order sent: times on the machine's monotonic clock, NaN for no answer.

    ``duplicated``: further answers with the same id; ``unasked``: answers without a pending request. ``refused``:
    connections that could not be made.
    """

    sent: Array
    answered: Array
    status: Array
    verdict: Array
    duplicated: int = 0
    unasked: int = 0
    refused: int = 0

    def write(self, path: Path) -> None:
        """Write a file for ``read``."""
        arrays: dict[str, Any] = vars(self)
        np.savez(path, **arrays)

    @staticmethod
    def read(path: Path) -> Ledger:
        """Read the output of ``write``."""
        with np.load(path) as held:
            counts = {name: int(held[name]) for name in ("duplicated", "unasked", "refused")}
            return Ledger(held["sent"], held["answered"], held["status"], held["verdict"], **counts)

    def count(self, *verdicts: Verdict) -> int:
        """The number of requests with one of these verdicts."""
        return int(np.isin(self.verdict, verdicts).sum())

    def told(self) -> str:
        """The verdicts and the statuses in words, for a row's note."""
        verdicts = Counter(Verdict(int(v)).name.lower().replace("_", " ") for v in self.verdict)
        codes = Counter(int(status) for status in self.status if status not in (0, 200))
        named = ", ".join(f"{number:,} {name}" for name, number in sorted(verdicts.items(), key=lambda item: -item[1]))
        return named + "".join(f"; {number:,} of status {code}" for code, number in sorted(codes.items()))

    @property
    def rate(self) -> float:
        """Right answers per second, between the first answer and the last."""
        right = self.answered[self.verdict == Verdict.RIGHT]
        return (len(right) - 1) / float(right.max() - right.min()) if len(right) > 1 else 0.0

    @property
    def latencies(self) -> Array:
        """Seconds from sending to the whole answer, for the right ones."""
        right = self.verdict == Verdict.RIGHT
        found: Array = self.answered[right] - self.sent[right]
        return found

    def window(self, start: float, end: float) -> int:
        """Right answers that came in this span of time."""
        right = self.verdict == Verdict.RIGHT
        return int((right & (self.answered >= start) & (self.answered < end)).sum())

    def before(self, moment: float) -> Ledger:
        """Only the requests sent before this."""
        kept = self.sent < moment
        return Ledger(self.sent[kept], self.answered[kept], self.status[kept], self.verdict[kept])

    def since(self, moment: float) -> Ledger:
        """Only the requests sent at this moment or later."""
        kept = self.sent >= moment
        return Ledger(self.sent[kept], self.answered[kept], self.status[kept], self.verdict[kept])


def quantile(values: Sequence[float] | Array, share: float) -> float:
    """The smallest value that at least this share of them doesn't exceed; ValueError if there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values to take a quantile of")
    return float(ordered[max(0, int(np.ceil(share * len(ordered))) - 1)])


def duplicates(ids: Iterable[str | None]) -> int:
    """Answers beyond the first with the same id."""
    return sum(number - 1 for name, number in Counter(ids).items() if name is not None)
