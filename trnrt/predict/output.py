"""The directory of a batch prediction: its lock, the job that it belongs to, and the parts that are done.

    _manifest.json       the job's identity; when all is done, also every part, with digests, and "state": "finished"
    _progress.jsonl      until then: a line for each part, appended after the part is on the disk
    part-00000.parquet   the parts
    _quarantine/         bad rows, one file for each part that has any
    .lock                held by the process that writes
    .parts-*             the workshop of a run: its processes write parts there, the one with the lock moves them

Each run has a workshop of its own, deleted when the run ends or the next one begins. So a process of Ray that outlives
its driver can't add to the parts of another job.

Programs that read a folder of Parquet files as one table ignore names that begin with "_" or ".". The files hold no
times and no paths: two runs of one job leave the same bytes.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, TypeGuard

from trnrt.errors import OptionError, TooManyBadError
from trnrt.predict.job import Job, changes
from trnrt.predict.part import QUARANTINE, PartDone, bad_file, digest_of, part_file
from trnrt.report.files import sync_directory, write_text
from trnrt.text import count_text, escape_text, list_text, quote

SCHEMA_VERSION = 1
MANIFEST = "_manifest.json"
PROGRESS = "_progress.jsonl"
LOCK = ".lock"
_HALF_WRITTEN = (".parts-", f".{MANIFEST}.", f".{PROGRESS}.")
"""Prefixes of a killed process's leftovers: its workshop, and incomplete files."""


@dataclass(frozen=True)
class MostBad:
    """The limit of bad rows: a ``count``, or a ``share`` of all rows, rounded down."""

    count: int | None = None
    share: float = 0.1

    def limit(self, rows: int) -> int:
        """The limit as a number, of ``rows`` rows."""
        # Rounded first: 29 % of 100 rows are 28.999999999999996 in floats.
        return self.count if self.count is not None else math.floor(round(self.share * rows, 6))

    def __str__(self) -> str:
        return f"{self.count:,}" if self.count is not None else f"{self.share * 100:.6g}%"


def parse_most_bad(text: str) -> MostBad:
    """Parse ``20`` rows, or a share of all: ``5%``, ``0.05``. OptionError for anything else."""
    plain = text.strip()
    try:
        if plain.isascii() and plain.isdigit():
            return MostBad(int(plain))
        share = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise OptionError(f"--max-bad {text!r}", hint="say a number of rows, 20, or a share of all rows: 5% or 0.05")
    return MostBad(share=share)


@dataclass
class Output:
    """A directory that this process alone writes to, from ``open_output`` until ``close``.

    ``workshop``: where ``make_part`` writes. ``done``: parts that match their recorded digests. ``notes``: for the
    user. ``finished``: everything was done before. ``bad``: rows set aside so far.
    """

    job: Job
    most_bad: MostBad
    lock: IO[bytes]
    workshop: Path
    done: dict[int, PartDone] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    finished: bool = False
    bad: int = 0

    @property
    def directory(self) -> Path:
        """Its path."""
        return Path(self.job.request.directory)

    @property
    def parts(self) -> list[PartDone]:
        """The parts that are done, in order."""
        return [part for _, part in sorted(self.done.items())]

    @property
    def missing(self) -> list[int]:
        """The numbers of the parts still to be made, in order."""
        return [number for number in range(self.job.parts) if number not in self.done]

    def add(self, part: PartDone) -> None:
        """Move a part from the workshop to its place, and record it.

        TooManyBadError if there are now too many bad rows; the part is kept.
        """
        with _writing_errors(self.directory):
            self._place(part)
        with _writing_errors(self.directory / PROGRESS), (self.directory / PROGRESS).open("ab") as file:
            file.write(_progress_line(part).encode())
            file.flush()
            os.fsync(file.fileno())
        self.done[part.number] = part
        self.bad += part.bad
        self.check_bad()

    def _place(self, part: PartDone) -> None:
        """Move the bad rows first: if the part is in its place, they are, too."""
        bad, path = bad_file(self.job, part.number), part_file(self.job, part.number)
        if part.bad_sha256 is None:
            bad.unlink(missing_ok=True)
        else:
            bad.parent.mkdir(exist_ok=True)
            (self.workshop / bad.name).replace(bad)
            sync_directory(bad.parent)
        (self.workshop / path.name).replace(path)
        sync_directory(path.parent)

    def check_bad(self) -> None:
        """TooManyBadError if there are too many bad rows."""
        limit = self.most_bad.limit(self.job.rows)
        if self.bad > limit:
            rows = sum(part.rows for part in self.done.values())
            reasons = [reason for part in self.parts for reason in part.reasons]
            raise TooManyBadError(
                f"{self.bad:,} of {count_text(rows, 'row')} so far are bad, and --max-bad {self.most_bad} allows "
                f"{limit:,}: {'; '.join(reasons[:3])}",
                hint=f"all of them are in {self.directory / QUARANTINE}; the same command with a higher --max-bad "
                "continues where it stopped",
            )

    def finish(self) -> None:
        """Record in the manifest that all is done."""
        if self.finished:
            return
        with _writing_errors(self.directory):
            _remove(self.workshop)
        totals = {
            "predicted": sum(part.predicted for part in self.parts),
            "bad": self.bad,
            "parts": [asdict(part) for part in self.parts],
        }
        _write_manifest(self.job, "finished", totals)
        with _writing_errors(self.directory / PROGRESS):
            (self.directory / PROGRESS).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the directory."""
        with self.lock, suppress(OSError):  # the next run deletes it
            _remove(self.workshop)


def open_output(
    job: Job, most_bad: MostBad, *, overwrite: bool = False, checked: Callable[[int], None] | None = None
) -> Output:
    """Lock the job's directory, which is made if need be, and find out which of its parts are done.

    A part is done if its files match the digests recorded when it was made; ``checked`` is called with the rows of each
    part that was compared. ``overwrite``: delete another job's parts.

    Raises:
        OptionError: if the directory has another job's parts or other files, or another process writes to it.
    """
    directory = Path(job.request.directory)
    with _writing_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _check_ours(directory)  # before the lock is made in it
        lock = _lock_directory(directory)
    output = Output(job, most_bad, lock, directory / f".parts-{secrets.token_hex(8)}")
    try:
        with _writing_errors(directory):
            _sweep(directory)
            if overwrite:
                _clear(directory)
            found = _read_manifest(directory)
            if found is not None and found["state"] == "running" and not any(_recorded_parts(directory, found)):
                # Nothing is lost: a run that ended before its first part does not fix the job.
                _clear(directory)
                found = None
            if found is not None:
                _check_same(job, found, directory)
            _take_over(output, found, checked or (lambda rows: None))
            if not output.finished:
                output.workshop.mkdir()
    except BaseException:
        output.close()
        raise
    return output


def _take_over(output: Output, found: dict[str, Any] | None, checked: Callable[[int], None]) -> None:
    """Find the whole parts among those recorded, and record them again."""
    job, directory = output.job, output.directory
    broken = []
    for part in [part for part in _recorded_parts(directory, found) if part.number < job.parts]:
        if _is_whole(job, part):
            output.done[part.number] = part
        else:
            broken.append(part_file(job, part.number).name)
        checked(part.rows)
    output.bad = sum(part.bad for part in output.done.values())
    if broken:
        output.notes.append(f"changed since they were written, and made again: {list_text(broken)}")
    if found is not None and found["state"] == "finished" and not output.missing:
        output.finished = True
        (directory / PROGRESS).unlink(missing_ok=True)
        return
    if found is None:  # first of all, so that the directory is ours from its first file on
        _write_manifest(job, "running")
    # Before the manifest, which may have had the parts: at every moment one of the two has them.
    write_text(directory / PROGRESS, "".join(map(_progress_line, output.parts)), durable=True)
    _write_manifest(job, "running")


def _progress_line(part: PartDone) -> str:
    return f"{json.dumps(asdict(part))}\n"


def _write_manifest(job: Job, state: str, totals: Mapping[str, Any] | None = None) -> None:
    document = {"schema_version": SCHEMA_VERSION, "state": state, "job": dict(job.identity), "rows": job.rows}
    text = json.dumps(document | dict(totals or {}), indent=1)
    write_text(Path(job.request.directory) / MANIFEST, f"{text}\n", durable=True)


def _read_manifest(directory: Path) -> dict[str, Any] | None:
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
        is_known = found["schema_version"] == SCHEMA_VERSION and found["state"] in ("running", "finished")
        if not is_known or not isinstance(found["job"], dict):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OptionError(
            f"{quote(str(path))} is no manifest that this version of trnrt can read",
            hint="name another directory, or start over with --overwrite",
        ) from None
    return dict(found)


def _recorded_parts(directory: Path, found: dict[str, Any] | None) -> Iterable[PartDone]:
    """The parts in the manifest of a finished job, or in the progress of an unfinished one."""
    lines: Iterable[Any] = []
    if found is not None and found["state"] == "finished":
        parts = found.get("parts")
        lines = parts if isinstance(parts, list) else []
    elif found is not None and (directory / PROGRESS).exists():
        # The last line may be incomplete: its part is made again.
        lines = map(_parse_line, (directory / PROGRESS).read_bytes().splitlines())
    for line in lines:
        if _is_part(line):
            yield PartDone(**{**line, "reasons": tuple(line["reasons"])})


def _is_part(line: object) -> TypeGuard[dict[str, Any]]:
    """True if this is a part as ``asdict`` writes it, or trnrt 0.1 did, and not something that was edited."""
    names = {item.name for item in fields(PartDone)}
    if not isinstance(line, dict) or not names - {"odd", "first_odd"} <= line.keys() <= names:
        return False
    counts = [line[name] for name in ("number", "rows", "predicted", "bad", "size")] + [line.get("odd", 0)]
    return (
        all(type(count) is int and count >= 0 for count in counts)  # bool is an int, too
        and isinstance(line["sha256"], str)
        and isinstance(line["bad_sha256"], str | None)
        and isinstance(line.get("first_odd"), int | None)
        and isinstance(line["reasons"], list)
        and all(isinstance(reason, str) for reason in line["reasons"])
    )


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_whole(job: Job, part: PartDone) -> bool:
    """True if a part's files match their record."""
    try:
        path = part_file(job, part.number)
        if path.stat().st_size != part.size or digest_of(path) != part.sha256:
            return False
        return part.bad_sha256 is None or digest_of(bad_file(job, part.number)) == part.bad_sha256
    except OSError:
        return False


def _check_same(job: Job, found: dict[str, Any], directory: Path) -> None:
    if changed := changes({str(key): str(value) for key, value in found["job"].items()}, dict(job.identity)):
        raise OptionError(
            f"{quote(str(directory))} holds another prediction; the differences: {'; '.join(changed)}",
            hint="name another directory, or delete the other prediction with --overwrite",
        )


def _lock_directory(directory: Path) -> IO[bytes]:
    file = (directory / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise OptionError(
            f"another trnrt predict is writing into {quote(str(directory))}",
            hint="wait for it, or name another directory",
        ) from None
    return file


def _check_ours(directory: Path) -> None:
    """OptionError if the directory has no manifest, but has files of something else."""
    names = [path.name for path in directory.iterdir()]
    others = [name for name in names if name != LOCK and not name.startswith(_HALF_WRITTEN)]
    if others and MANIFEST not in names:
        raise OptionError(
            f"{quote(str(directory))} has files that are not from a batch prediction: "
            f"{list_text(sorted(map(quote, others)))}",
            hint="name a new or an empty directory",
        )


def _sweep(directory: Path) -> None:
    """Delete the leftovers of a killed process."""
    for path in [path for path in directory.iterdir() if path.name.startswith(_HALF_WRITTEN)]:
        _remove(path) if path.is_dir() else path.unlink(missing_ok=True)


def _remove(workshop: Path) -> None:
    """Delete a workshop if it exists. Rename it first, so that a process that still writes doesn't find it."""
    gone = workshop.with_name(f".parts-{secrets.token_hex(8)}")
    try:
        workshop.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone)


def _clear(directory: Path) -> None:
    """Delete a batch prediction, and nothing else. The manifest goes last: parts without one belong to no job."""
    if not (directory / MANIFEST).exists():
        return
    (directory / PROGRESS).unlink(missing_ok=True)
    shutil.rmtree(directory / QUARANTINE, ignore_errors=True)
    for path in directory.glob("part-[0-9]*.*"):
        if path.suffix in (".parquet", ".npz"):
            path.unlink()
    (directory / MANIFEST).unlink()
    sync_directory(directory)


@contextmanager
def _writing_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into OptionError."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(f"can't write {quote(str(path))}: {escape_text(reason)}") from error
