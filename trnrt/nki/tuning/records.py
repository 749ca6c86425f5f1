"""The file of results: a line of JSON for each candidate, written as soon as it is known.

A run that was killed resumes from it. Each line has the key of its run (``run_key``), so results of another source,
call, target or version are not taken; they stay in the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from trnrt.nki.calls import describe
from trnrt.nki.errors import OptionError
from trnrt.nki.machine.targets import get_target
from trnrt.nki.sim.kernel import default_target
from trnrt.nki.tuning.timing import Task, Trial

_Key = tuple[tuple[str, str], ...]


def run_key(task: Task, sources: Iterable[Path], version: str) -> str:
    """A digest of all that a candidate's time depends on: the sources, the call, the target with all of its numbers,
    the release of NKI, the capacity check, and trnrt's own code (``version``)."""
    digest = hashlib.sha256()
    target = get_target(task.target or default_target())
    call = f"{task.call.kernel}[{task.call.cores}]({describe(task.call.args, task.call.kwargs)})"
    for text in (version, call, repr(target), task.level.value, str(task.capacity)):
        digest.update(f"{text}\0".encode())
    for path in sources:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Records:
    """The results of one run in a file; ``known`` are those that it had."""

    def __init__(self, path: Path, key: str) -> None:
        """Read the file, and open it for more.

        Raises:
            OptionError: if it can't be read or written, or has other content.
        """
        self.path, self.key = path, key
        try:
            self.known = _read(path, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = path.open("a", encoding="utf-8")
            if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                self._file.write("\n")  # a killed run's last line
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"can't keep results in {str(path)!r}: {error}", hint="name another file") from None

    def find(self, values: Mapping[str, str]) -> Trial | None:
        """The result of a candidate, if it is known."""
        return self.known.get(_key(values))

    def add(self, trial: Trial) -> None:
        """Keep a result, on disk at once."""
        self.known[_key(trial.values)] = trial
        line = {"key": self.key, "values": dict(trial.values), "us": trial.us, "reason": trial.reason}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _key(values: Mapping[str, str]) -> _Key:
    """A candidate, in whatever order its arguments are named."""
    return tuple(sorted(values.items()))


def _read(path: Path, key: str) -> dict[_Key, Trial]:
    """The results of a run in a file; {} if there is none. A line cut short, as of a killed run, is left out."""
    found: dict[_Key, Trial] = {}
    if not path.exists():
        return found
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line) if line.strip() else {}
        except ValueError:
            if number == 0 and not line.startswith("{"):
                raise OptionError(
                    f"{str(path)!r} is no file of results: its first line is no JSON", hint="name another file"
                ) from None
            continue
        if isinstance(entry, dict) and entry.get("key") == key:
            found[_key(entry["values"])] = Trial(entry["values"], entry["us"], entry["reason"])
    return found
