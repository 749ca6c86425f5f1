"""The cache's entries: a JSON file for each compiled model, and arrays as files that entries share.

    plans/<key>.json     the request (its digest is the key, after a digest of the model's name, so that a miss reads
                         only entries of that name), the saved plan, and the digests of its arrays
    arrays/<digest>.npy  weights, by content: the same for every batch
    times/<key>.json     the predicted latency with its range, microseconds
    models/...           models' inputs and outputs: see ``trnrt.cache.declared``
    kernels/...          kernel modules, by content
    neuron/...           the output of AWS's compiler: see ``trnrt.neuron.artefacts``
    exports/...          models that optimum exported: see ``trnrt.hf.exporting``
    usage                bytes written since the files were last counted, a number a line

Every file is written beside its place and renamed: readers see all of it or none, even if a writer is killed. Digests
are checked before use. A file that can't be written is not cached, and a damaged one is removed; a note says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Times = tuple[float, float, float]
"""A predicted latency, microseconds: least, headline, most."""

SCHEMA_VERSION = 1
COMPILED = "neuron"
EXPORTS = "exports"
USAGE = "usage"
_COUNTED = "counted "
# Then the files are counted again: others, such as compiled kernels, are not noted as they are written.
_MOST_NOTES = 256
NEW_MODEL = "this model is not in the cache"
_TIMES = ("low_us", "predicted_us", "high_us")
# Files without an entry are kept this long: another process may be about to write the entry.
_GRACE_SECONDS = 600.0
# To explain a cache miss, the request is compared with this many entries of its model: those used last.
_COMPARED = 32
# Characters of a value in such a comparison.
_LONGEST_WORD = 200


@dataclass(frozen=True)
class Entry:
    """A cached model: its request, its last use (seconds since the epoch), and its bytes on disk.

    ``size`` includes arrays that other entries share.
    """

    key: str
    request: dict[str, Any]
    used: float
    size: int
    path: Path = field(repr=False)


@dataclass(frozen=True)
class Found:
    """The result of a lookup: the saved plan with its arrays, or why there is none."""

    saved: dict[str, Any] | None
    arrays: list[Array]
    reason: str = ""


def key_of(request: Mapping[str, Any]) -> str:
    """A request's key: digests of its model's name, and of everything that the plan depends on."""
    return f"{_of_model(request)}-{_digest(_canonical(request))}"


def _of_model(request: Mapping[str, Any]) -> str:
    """The first part of a key, the same for all entries of a model's name."""
    return _digest(str(request.get("name")).encode("utf-8", "backslashreplace"))[:8]


class Entries:
    """The entries in a directory; the caller checks that it is private to the owner.

    ``frozen``: only read them; a bundle's entries stay as they were written.
    """

    def __init__(self, directory: Path, limit: int, *, frozen: bool = False) -> None:
        self.directory = directory
        self.limit = limit
        self._frozen = frozen
        self._plans = directory / "plans"
        self._arrays = directory / "arrays"
        self._times = directory / "times"
        self._models = directory / "models"

    def look_up(self, request: Mapping[str, Any]) -> Found:
        """Look up a request. A damaged entry is removed, and counts as a miss with that reason."""
        path = self._plans / f"{key_of(request)}.json"
        try:
            document = json.loads(path.read_bytes())
            if document["digest"] != _digest(_canonical(document["content"])):
                raise ValueError("its digest does not match its content")
            content = document["content"]
            if content["request"] != json.loads(_canonical(request)):
                raise ValueError("it is for another request")
            arrays = [self._read_array(digest) for digest in content["arrays"]]
        except FileNotFoundError as missing:
            if missing.filename == str(path):
                return Found(None, [], self._why_missing(request))
            return self._remove_damaged(path, "one of its arrays is gone")
        except (ValueError, KeyError, TypeError, OSError) as error:
            return self._remove_damaged(path, str(error))
        if not self._frozen:
            with contextlib.suppress(OSError):
                os.utime(path)
        return Found(content["saved"], arrays)

    def put(self, request: Mapping[str, Any], saved: Mapping[str, Any], arrays: list[Array]) -> str:
        """Keep a saved plan; return why it can't be kept, or ""."""
        from trnrt.cache import write_whole

        try:
            for folder in (self._plans, self._arrays):
                folder.mkdir(mode=0o700, exist_ok=True)
            digests, size, written = [], 0, 0
            for array in arrays:
                content = _npy(array)
                digest, size = _digest(content), size + len(content)
                digests.append(digest)
                path = self._arrays / f"{digest}.npy"
                if path.exists():
                    os.utime(path)
                else:
                    write_whole(path, content)
                    written += len(content)
            kept = {"request": dict(request), "saved": saved, "arrays": digests, "bytes": size}
            document = {"schema_version": SCHEMA_VERSION, "digest": _digest(_canonical(kept)), "content": kept}
            text = json.dumps(document).encode("utf-8")
            write_whole(self._plans / f"{key_of(request)}.json", text)
            self._grow(written + len(text))
        except OSError as error:
            return f"not cached: {error.strerror} ({self.directory})"
        return ""

    def time(self, request: Mapping[str, Any]) -> Times | None:
        """A request's cached latency; None if there is none, or it is damaged."""
        path = self._times / f"{key_of(request)}.json"
        try:
            kept = json.loads(path.read_bytes())
            least, headline, most = (float(kept[name]) for name in _TIMES)
            if kept["digest"] != _digest(_canonical([key_of(request), least, headline, most])):
                return None
            return least, headline, most
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put_time(self, request: Mapping[str, Any], predicted: Times) -> None:
        """Keep a latency; if that fails, it is predicted again, in seconds."""
        from trnrt.cache import write_whole

        digest = _digest(_canonical([key_of(request), *predicted]))
        document = {"schema_version": SCHEMA_VERSION, "digest": digest, **dict(zip(_TIMES, predicted, strict=True))}
        with contextlib.suppress(OSError):
            self._times.mkdir(mode=0o700, exist_ok=True)
            write_whole(self._times / f"{key_of(request)}.json", json.dumps(document).encode("utf-8"))

    def entries(self) -> list[Entry]:
        """All entries, the one used last first. Damaged ones are left out."""
        return sorted(self._read_entries(_entry_files(self._plans)), key=lambda entry: -entry.used)

    def clear(self) -> int:
        """Remove everything; return the bytes freed."""
        with contextlib.suppress(OSError):
            (self.directory / USAGE).unlink()
        return sum(_remove(path) for folder in self._folders for path in _files(folder))

    def size(self) -> int:
        """Bytes on disk."""
        return sum(_size(path) for folder in self._folders for path in _files(folder))

    @property
    def _folders(self) -> tuple[Path, ...]:
        return self._plans, self._arrays, self._times, *self._shared_folders

    @property
    def _shared_folders(self) -> tuple[Path, ...]:
        """Folders whose files are evicted by their own last use."""
        return self._models, *(self.directory / name for name in ("kernels", COMPILED, EXPORTS))

    def shrink(self) -> None:
        """Evict the least recently used entries, with arrays that no other entry names, until the limit is met."""
        excess = self.size() - self.limit
        if excess <= 0:
            return
        named = {path: _named_arrays(path) for path in _entry_files(self._plans)}
        excess -= self._drop_unnamed({digest for digests in named.values() for digest in digests})
        for entry in reversed(self.entries()):
            if excess <= 0:
                return
            digests = set(named.pop(entry.path, []))
            excess -= _remove(entry.path)
            for digest in digests.difference(*named.values()):
                excess -= _remove(self._arrays / f"{digest}.npy")
            excess -= _remove(self._times / entry.path.name)
            for path in (path for folder in self._shared_folders for path in _files(folder)):
                if _modified_time(path) <= entry.used:
                    excess -= _remove(path)

    def _grow(self, written: int) -> None:
        """Note bytes that were written; evict entries if the limit may be exceeded.

        The files are counted only then, or after many writes: a walk over a full cache takes longer than a small plan.
        """
        usage = self.directory / USAGE
        with usage.open("a", encoding="ascii") as file:  # short appends of several processes don't mix
            file.write(f"{written}\n")
        if _noted_bytes(usage) > self.limit:
            self.shrink()
            self._note_size()

    def _note_size(self) -> None:
        from trnrt.cache import write_whole

        write_whole(self.directory / USAGE, f"{_COUNTED}{self.size()}\n".encode("ascii"))

    def _drop_unnamed(self, named: set[str]) -> int:
        """Remove files without an entry, and leftovers of killed writers; return the bytes freed."""
        dropped, oldest, entries = 0, time.time() - _GRACE_SECONDS, set(_entry_files(self._plans))
        for path in [*_files(self._arrays), *_files(self._plans)]:
            kept = path in entries if path.parent == self._plans else path.stem in named
            if not kept and _modified_time(path) < oldest:
                dropped += _remove(path)
        return dropped

    def _read_entries(self, paths: list[Path]) -> Iterator[Entry]:
        for path in paths:
            try:
                status, content = path.stat(), json.loads(path.read_bytes())["content"]
                size = status.st_size + int(content["bytes"])
                yield Entry(path.stem, dict(content["request"]), status.st_mtime, size, path)
            except (OSError, ValueError, KeyError, TypeError):
                continue

    def _read_array(self, digest: str) -> Array:
        content = (self._arrays / f"{digest}.npy").read_bytes()
        if _digest(content) != digest:
            self._drop(self._arrays / f"{digest}.npy")
            raise ValueError("the digest of an array does not match its content")
        array: Array = np.load(io.BytesIO(content), allow_pickle=False)
        return array

    def _remove_damaged(self, path: Path, reason: str) -> Found:
        self._drop(path)
        return Found(None, [], f"the cached plan was damaged ({reason})")

    def _drop(self, path: Path) -> None:
        if not self._frozen:
            with contextlib.suppress(OSError):
                path.unlink()

    def _why_missing(self, request: Mapping[str, Any]) -> str:
        """The differences of a request from the most similar entry of the same model."""
        wanted = json.loads(json.dumps(request))  # as entries hold it, in the request's order
        paths = [path for path in _entry_files(self._plans) if path.name.startswith(_of_model(request))]
        latest = sorted(paths, key=_modified_time)[-_COMPARED:]
        others = [e.request for e in self._read_entries(latest) if e.request.get("name") == wanted.get("name")]
        if not others:
            return NEW_MODEL
        changes = sorted((list(_changes(other, wanted)) for other in others), key=len)
        return ", ".join(changes[0])


def _noted_bytes(usage: Path) -> float:
    """The bytes of the cache by its notes; infinite if the files must be counted."""
    counted, *written = usage.read_text(encoding="ascii", errors="replace").splitlines()
    try:
        if not counted.startswith(_COUNTED) or len(written) >= _MOST_NOTES:
            return math.inf
        return sum(map(int, written), int(counted.removeprefix(_COUNTED)))
    except ValueError:  # a writer was killed
        return math.inf


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """The differences of two requests in words: "target trn1 -> trn2"."""
    for name in new:
        before, after = old.get(name), new[name]
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from (f"{name} {what}" for what in _changes(before, after))
        elif name in ("model", "version") and isinstance(after, str) and len(after) > 16:
            yield f"the {name} changed" if name == "model" else f"trnrt {before} -> {after}"
        else:
            yield f"{name} {_word(before)} -> {_word(after)}"


def _word(value: Any) -> str:
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST_WORD else f"{text[: _LONGEST_WORD - 3]}..."


def _named_arrays(path: Path) -> list[str]:
    try:
        return [str(digest) for digest in json.loads(path.read_bytes())["content"]["arrays"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _files(folder: Path) -> list[Path]:
    """The files of a folder; below ``COMPILED`` and ``EXPORTS`` a compiler's or exporter's folders, too."""
    try:
        return [path for path in folder.iterdir() if path.is_file() or folder.name in (COMPILED, EXPORTS)]
    except OSError:
        return []


def _entry_files(folder: Path) -> list[Path]:
    """The entries; a leading dot marks a file still being written."""
    return [path for path in _files(folder) if path.suffix == ".json" and not path.name.startswith(".")]


def _modified_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(_size(below) for below in path.rglob("*") if below.is_file())
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _remove(path: Path) -> int:
    size = _size(path)
    with contextlib.suppress(OSError):
        if path.is_dir():
            import shutil  # and all of its archives' formats, to remove a folder of AWS's compiler

            shutil.rmtree(path)
        else:
            path.unlink()
        return size
    return 0


def _npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("utf-8")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:40]
