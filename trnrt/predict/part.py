"""One part of a job: read its rows, set bad ones aside, run the others in batches, and write its file.

The files go to a folder of this run alone, ``Output.workshop``; ``Output.add`` moves them to their places.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.errors import BackendError, DeviceError, InputError, OptionError, TrnrtError
from trnrt.inputs.finite import odd_rows
from trnrt.predict.job import Job, Opened
from trnrt.predict.rows import Array, Bad, Rows
from trnrt.predict.source import json_id
from trnrt.predict.writing import write_part
from trnrt.report.files import write_text
from trnrt.report.top import rank_classes
from trnrt.text import name_text, quote

QUARANTINE = "_quarantine"
"""The folder of bad rows, a file for each part that has any. Readers of Parquet folders ignore "_" and "."."""
_REASONS_KEPT = 3
_LONGEST_REASON = 300


@dataclass(frozen=True)
class PartDone:
    """A finished part: its rows, those predicted and those set aside, and its files' digests (SHA-256).

    ``size``: bytes of the part's file. ``bad_sha256``: of the file of bad rows; None if there are none. ``reasons``: of
    the first bad rows, for messages. ``odd``: rows with a NaN or infinite input, which are predicted all the same;
    ``first_odd``: the number of the first one.
    """

    number: int
    rows: int
    predicted: int
    bad: int
    size: int
    sha256: str
    bad_sha256: str | None
    reasons: tuple[str, ...] = ()
    odd: int = 0
    first_odd: int | None = None


@dataclass
class _Collected:
    """The results of a part so far."""

    ids: list[Array] = field(default_factory=list)
    outputs: list[dict[str, Array]] = field(default_factory=list)
    top: list[dict[str, Array]] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    odd: list[int] = field(default_factory=list)


def part_file(job: Job, number: int) -> Path:
    """The path of a part."""
    return Path(job.request.directory) / f"{_stem(job, number)}.{job.request.form}"


def bad_file(job: Job, number: int) -> Path:
    """The path of a part's bad rows."""
    return Path(job.request.directory) / QUARANTINE / f"{_stem(job, number)}.jsonl"


def _stem(job: Job, number: int) -> str:
    """The file name without its ending. In alphabetical order the names are the parts in order."""
    return f"part-{number:0{max(5, len(str(job.parts - 1)))}d}"


def make_part(opened: Opened, number: int, folder: Path, after_batch: Callable[[int], None] | None = None) -> PartDone:
    """Make part ``number``, and write its files into ``folder``; they are on the disk when this returns.

    ``after_batch`` is called after each batch with the rows done, bad ones included. An exception from it discards the
    part. Another call makes the same bytes.

    Raises:
        InputError: if an input file breaks in the middle.
        OptionError: if a file can't be written, for example on a full disk.
        TrnrtError: for errors of the session that no single row causes.
    """
    job, collected = opened.job, _Collected()
    with closing(_read_ahead(opened, *job.span(number))) as blocks:
        for rows in blocks:
            collected.bad += rows.bad
            collected.odd += rows.numbers[odd_rows(rows.feeds, len(rows.numbers))].tolist()
            _run_block(opened, rows, collected, after_batch or (lambda rows: None))
    bad = sorted(collected.bad, key=lambda row: row.row)
    bad_sha256 = _write_bad(folder / bad_file(job, number).name, bad)
    path = folder / part_file(job, number).name
    write_part(path, job.request.form, _columns(opened, collected))
    predicted = sum(map(len, collected.ids))
    start, stop = job.span(number)
    reasons = tuple(f"row {row.row}: {row.reason}" for row in bad[:_REASONS_KEPT])
    size, odd = path.stat().st_size, collected.odd
    counts = number, stop - start, predicted, len(bad), size
    return PartDone(*counts, digest_of(path), bad_sha256, reasons, len(odd), min(odd, default=None))


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_ahead(opened: Opened, start: int, stop: int) -> Generator[Rows]:
    """The rows in blocks; while one runs, the next is read."""
    spans = [(first, min(first + opened.block, stop)) for first in range(start, stop, opened.block)]
    if not spans:
        return
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(opened.source.read, *spans[0])
        for span in spans[1:]:
            rows = waiting.result()
            waiting = pool.submit(opened.source.read, *span)
            yield rows
        yield waiting.result()


def _run_block(opened: Opened, rows: Rows, collected: _Collected, after_batch: Callable[[int], None]) -> None:
    good = len(rows.numbers)
    if rows.rows > good:
        after_batch(rows.rows - good)
    for start in range(0, good, opened.step):
        stop = min(start + opened.step, good)
        feeds = {name: array[start:stop] for name, array in rows.feeds.items()}
        outputs, failed = _isolate_failures(opened, feeds, stop - start)
        kept = np.array([row for row in range(stop - start) if row not in failed], np.int64)
        if outputs is not None:
            collected.outputs.append(outputs)
            # For each batch: ranking all rows of a part would take several times their memory.
            collected.top.append(_rank_rows(opened, outputs))
        collected.ids.append(rows.ids[start:stop][kept] if failed else rows.ids[start:stop])
        for row, reason in failed.items():
            at = start + row
            collected.bad.append(Bad(int(rows.numbers[at]), json_id(rows.ids[at]), None, reason))
        after_batch(stop - start)


def _isolate_failures(
    opened: Opened, feeds: Mapping[str, Array], rows: int
) -> tuple[dict[str, Array] | None, dict[int, str]]:
    """The outputs of the rows that run, in order, and why each of the others fails, found by halving.

    If no row runs, the rows may not be at fault: running zeros shows whether the session works at all.
    """
    try:
        return opened.run(feeds, rows), {}
    except (InputError, BackendError) as error:
        if isinstance(error, DeviceError):
            raise
        whole, failed = _run_halves(opened, feeds, rows, error)
        if not whole:
            opened.run(opened.zeros(rows), rows)
            return None, failed
        return _concatenate(whole), failed


def _run_halves(
    opened: Opened, feeds: Mapping[str, Array], rows: int, error: TrnrtError
) -> tuple[list[dict[str, Array]], dict[int, str]]:
    if rows == 1:
        return [], {0: f"the model fails for this row: {' '.join(str(error).split())}"}
    whole: list[dict[str, Array]] = []
    failed: dict[int, str] = {}
    for start, stop in ((0, rows // 2), (rows // 2, rows)):
        half = {name: array[start:stop] for name, array in feeds.items()}
        try:
            whole.append(opened.run(half, stop - start))
        except (InputError, BackendError) as again:
            if isinstance(again, DeviceError):
                raise
            more, reasons = _run_halves(opened, half, stop - start, again)
            whole += more
            failed |= {start + row: reason for row, reason in reasons.items()}
    return whole, failed


def _concatenate(pieces: list[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _columns(opened: Opened, collected: _Collected) -> dict[str, Array]:
    """The part's columns: ids, outputs, best classes."""
    if not collected.outputs:  # no rows, but the columns and types of all parts
        made = opened.run(opened.zeros(1), 1)
        collected.outputs, collected.top = (
            [{name: array[:0] for name, array in found.items()}] for found in (made, _rank_rows(opened, made))
        )
    outputs, extra = _concatenate(collected.outputs), _concatenate(collected.top)
    ids = np.concatenate([np.empty(0, opened.source.id_dtype), *collected.ids])
    named = {name: f"output_{name}" if name in {"id", *extra} else name for name in outputs}
    for column in named.values():
        if len(sharing := [quote(name) for name, own in named.items() if own == column]) > 1:
            raise OptionError(
                f"outputs {' and '.join(sharing)} would both be the column {quote(column)}",
                hint="rename one of them in the model",
            )
    return {"id": ids, **{named[name]: array for name, array in outputs.items()}, **extra}


def _rank_rows(opened: Opened, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The best classes of each row, their values, and their labels if the model has them."""
    request, name = opened.job.request, opened.classifier
    if name is None or request.top is None:
        return {}
    output = outputs[name]
    classes, numbers = rank_classes(output, request.top, softmax=request.logits)
    found: dict[str, Any] = {"top_class": classes, "top_number": numbers}
    if len(opened.labels) == output.shape[1]:
        found["top_label"] = np.array(opened.labels, object)[classes]
    return found


def _write_bad(path: Path, bad: list[Bad]) -> str | None:
    """Write the bad rows, if any, as JSON lines, and return the file's digest."""
    if not bad:
        return None
    lines = [
        json.dumps({"row": one.row, "id": one.id, "input": one.input, "reason": _reason_text(one.reason)})
        for one in bad
    ]
    write_text(path, "".join(f"{line}\n" for line in lines), durable=True)
    return digest_of(path)


def _reason_text(reason: str) -> str:
    return name_text(reason) if len(reason) <= 120 else reason[:_LONGEST_REASON]
