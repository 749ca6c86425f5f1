"""The directory of a batch prediction: who may write there, which job it is of, and which parts are done.

    _manifest.json       the job's identity; when all is done, also every part, with digests, and "state": "finished"
    _progress.jsonl      while it is not: a line a part that was written, appended after the part is on the disk
    part-00000.parquet   the parts
    _quarantine/         bad rows, one file a part that has any
    .lock                held by the process that writes
    .parts-*             the workshop of a run: what its processes make there, the one with the lock puts in its place

A workshop is its run's alone, and is gone when the run ends or the next one begins: a process of Ray that outlives its
driver can put nothing among the parts of another job.

Names that begin with "_" or "." are left alone by what reads a folder of Parquet files as one table. There is no
time and no path in the files: two runs of one job leave the same bytes.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
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
"""How the names begin of what a process that was killed leaves: its workshop, and a file not written to the end."""


@dataclass(frozen=True)
class MostBad:
    """How many rows may be bad: ``count`` of them, or a ``share`` of all, rounded down: never more than it."""

    count: int | None = None
    share: float = 0.1

    def limit(self, rows: int) -> int:
        """The number of rows, of so many."""
        # Rounded first: 29 % of 100 rows are 28.999999999999996 in floats.
        return self.count if self.count is not None else math.floor(round(self.share * rows, 6))

    def __str__(self) -> str:
        return f"{self.count:,}" if self.count is not None else f"{self.share * 100:.6g}%"


def parse_most_bad(text: str) -> MostBad:
    """``20`` rows, or a share of all: ``5%``, ``0.05``. OptionError for anything else."""
    plain = text.strip()
    try:
        if plain.isascii() and plain.isdigit():
            return MostBad(int(plain))
        share = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise OptionError(
            f"--max-bad {text!r}", hint="it is a number of rows, 20, or a share of all of them: 5% or 0.05"
        )
    return MostBad(share=share)


@dataclass
class Output:
    """A directory that this process alone writes to, from ``open_output`` until ``close``.

    ``workshop``: where ``make_part`` writes. ``done``: parts that are there and have the digests that were noted.
    ``notes``: what was found, for the user.
    ``finished``: all was done before. ``bad``: rows set aside so far.
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
        """Where it is."""
        return Path(self.job.request.directory)

    @property
    def missing(self) -> list[int]:
        """The parts that are still to be made, in order."""
        return [number for number in range(self.job.parts) if number not in self.done]

    def add(self, part: PartDone) -> None:
        """Put a part that was made in its place, and note it.

        TooManyBadError where there are too many bad rows now; the part is kept.
        """
        with _writing_errors(self.directory):
            self._place(part)
        with _writing_errors(self.directory / PROGRESS), (self.directory / PROGRESS).open("ab") as file:
            file.write(f"{json.dumps(asdict(part))}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        self.done[part.number] = part
        self.bad += part.bad
        self.check_bad()

    def _place(self, part: PartDone) -> None:
        """The bad rows first: where the part is, they are."""
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
        """TooManyBadError where there are too many bad rows."""
        limit = self.most_bad.limit(self.job.rows)
        if self.bad > limit:
            rows = sum(part.rows for part in self.done.values())
            reasons = [reason for _, part in sorted(self.done.items()) for reason in part.reasons]
            raise TooManyBadError(
                f"{self.bad:,} of {count_text(rows, 'row')} so far are bad, and --max-bad {self.most_bad} allows "
                f"{limit:,}: {'; '.join(reasons[:3])}",
                hint=f"all of them are in {self.directory / QUARANTINE}; with a higher --max-bad the same command goes "
                "on where it stopped",
            )

    def finish(self) -> None:
        """Say in the manifest that all is done."""
        if self.finished:
            return
        with _writing_errors(self.directory):
            _remove(self.workshop)
        parts = [self.done[number] for number in range(self.job.parts)]
        document = _manifest(self.job, "finished") | {
            "predicted": sum(part.predicted for part in parts),
            "bad": sum(part.bad for part in parts),
            "parts": [asdict(part) for part in parts],
        }
        write_text(self.directory / MANIFEST, _text(document), durable=True)
        with _writing_errors(self.directory / PROGRESS):
            (self.directory / PROGRESS).unlink(missing_ok=True)

    def close(self) -> None:
        """Let others write there."""
        with self.lock, suppress(OSError):  # the next run tries again
            _remove(self.workshop)


def open_output(
    job: Job, most_bad: MostBad, *, overwrite: bool = False, checked: Callable[[int], None] | None = None
) -> Output:
    """Take the job's directory, making it where it is not there, and find out which of its parts are done.

    A part is believed if its files have the digests that were noted when it was made; ``checked`` is called with the
    rows of each part that was looked at. ``overwrite``: another job's parts are deleted.

    Raises:
        OptionError: for a directory of another job, or with other files, or that another process writes to.
    """
    directory = Path(job.request.directory)
    with _writing_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _check_ours(directory)  # before there is a lock of ours in it
        lock = _lock_directory(directory)
    output = Output(job, most_bad, lock, directory / f".parts-{secrets.token_hex(8)}")
    try:
        with _writing_errors(directory):
            _sweep(directory)
            if overwrite:
                _clear(directory)
            found = _read_manifest(directory)
            if found is not None and found["state"] == "running" and not any(_recorded_parts(directory, found)):
                # Nothing would be lost: a first try that ended before its first part binds nobody.
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
    """Believe the parts that are whole, and note them anew."""
    job, directory = output.job, output.directory
    noted = list(_recorded_parts(directory, found))
    broken = []
    for part in noted:
        if not 0 <= part.number < job.parts:
            continue
        if _is_whole(job, part):
            output.done[part.number] = part
        else:
            broken.append(part_file(job, part.number).name)
        checked(part.rows)
    output.bad = sum(part.bad for part in output.done.values())
    if broken:
        output.notes.append(f"not as they were written, and made again: {list_text(broken)}")
    if found is not None and found["state"] == "finished" and not output.missing:
        output.finished = True
        (directory / PROGRESS).unlink(missing_ok=True)
        return
    if found is None:  # before anything else, so that the directory is known to be ours from the first file on
        write_text(directory / MANIFEST, _text(_manifest(job, "running")), durable=True)
    # Before the manifest, where that had the parts: at no moment has neither of them.
    lines = "".join(f"{json.dumps(asdict(part))}\n" for _, part in sorted(output.done.items()))
    write_text(directory / PROGRESS, lines, durable=True)
    write_text(directory / MANIFEST, _text(_manifest(job, "running")), durable=True)


def _manifest(job: Job, state: str) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "state": state, "job": dict(job.identity), "rows": job.rows}


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


def _read_manifest(directory: Path) -> dict[str, Any] | None:
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
        if found["schema_version"] != SCHEMA_VERSION or not isinstance(found["job"], dict):
            raise ValueError
        if found["state"] not in ("running", "finished"):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OptionError(
            f"{quote(str(path))} is no manifest that this trnrt can read",
            hint="name another directory, or say --overwrite to begin anew",
        ) from None
    return dict(found)


def _recorded_parts(directory: Path, found: dict[str, Any] | None) -> Iterable[PartDone]:
    """The parts that the manifest of a finished job, or the progress of another, speaks of."""
    lines: Iterable[Any] = []
    if found is not None and found["state"] == "finished":
        parts = found.get("parts")
        lines = parts if isinstance(parts, list) else []
    elif found is not None and (directory / PROGRESS).exists():
        # The last line may be half: its part is made again.
        lines = map(_parse_line, (directory / PROGRESS).read_bytes().splitlines())
    for line in lines:
        if _is_part(line):
            yield PartDone(**{**line, "reasons": tuple(line["reasons"])})


def _is_part(line: object) -> TypeGuard[dict[str, Any]]:
    """Whether this is a part as ``asdict`` writes it; what somebody changed is a part that nobody noted."""
    if not isinstance(line, dict) or line.keys() != {item.name for item in fields(PartDone)}:
        return False
    counts = (line[name] for name in ("number", "rows", "predicted", "bad", "size"))
    return (
        all(type(count) is int and count >= 0 for count in counts)  # True is no number
        and isinstance(line["sha256"], str)
        and isinstance(line["bad_sha256"], str | None)
        and isinstance(line["reasons"], list)
        and all(isinstance(reason, str) for reason in line["reasons"])
    )


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_whole(job: Job, part: PartDone) -> bool:
    """Whether a part's files are what was noted."""
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
            f"{quote(str(directory))} holds another prediction; what is not the same: {'; '.join(changed)}",
            hint="name another directory, or say --overwrite to delete what is there and begin anew",
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
    """OptionError for a directory that has no manifest, and files that are none of ours."""
    names = [path.name for path in directory.iterdir()]
    others = [name for name in names if name != LOCK and not name.startswith(_HALF_WRITTEN)]
    if others and MANIFEST not in names:
        raise OptionError(
            f"{quote(str(directory))} has files that are none of a batch prediction: "
            f"{list_text(sorted(map(quote, others)))}",
            hint="name a new or an empty directory",
        )


def _sweep(directory: Path) -> None:
    """Delete what a process that was killed had made and not put in its place."""
    for path in [path for path in directory.iterdir() if path.name.startswith(_HALF_WRITTEN)]:
        _remove(path) if path.is_dir() else path.unlink(missing_ok=True)


def _remove(workshop: Path) -> None:
    """Delete a workshop, if it is there; renamed first, so that a process that still writes finds none."""
    gone = workshop.with_name(f".parts-{secrets.token_hex(8)}")
    try:
        workshop.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone)


def _clear(directory: Path) -> None:
    """Delete a batch prediction, and nothing else; the manifest last, without which its parts are nobody's."""
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
    """Turn what the file system raises into OptionError."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(f"can't write {quote(str(path))}: {escape_text(reason)}") from error
