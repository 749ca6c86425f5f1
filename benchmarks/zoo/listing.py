"""The list of the zoo's models, as the scripts of ``models/exports`` write it beside the files: ``zoo.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trnrt.errors import OptionError
from trnrt.planner.sizes import parse_shape

LIST = "zoo.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A model of the list; the fields are those of ``ZooModel`` in ``models/exports/saving.py``.

    ``parameters``: the network's own count. ``shapes``: the arguments of ``--shape`` for sizes that the file leaves
    open. ``largest``: the highest value to draw for an input of integers.
    """

    file: str
    kind: str
    title: str
    exporter: str
    parameters: int
    shapes: tuple[str, ...]
    largest: dict[str, int]

    @property
    def name(self) -> str:
        """The file's name without its ending: what the command line takes."""
        return Path(self.file).stem

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """``shapes`` as a session takes them."""
        return dict(parse_shape(text) for text in self.shapes)


def read_list(folder: Path) -> list[Entry]:
    """The models of a folder, in the list's order. OptionError if there is no list, or it has other fields."""
    path = folder / LIST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [_entry(one) for one in found]
    except OSError as error:
        hint = "the scripts models/exports/zoo_*.py write it: --out DIR"
        raise OptionError(f"can't read {path}: {error.strerror}", hint=hint) from None
    except (ValueError, TypeError, KeyError) as error:
        raise OptionError(f"{path} is no list of models: {error}", hint="make it again: --out DIR") from None


def _entry(given: dict[str, Any]) -> Entry:
    entry = Entry(**{field.name: given[field.name] for field in fields(Entry)})
    return Entry(**{**vars(entry), "shapes": tuple(entry.shapes), "largest": dict(entry.largest)})


def choose_entries(entries: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """The entries with these names (or file names), all if none is named. OptionError for an unknown one."""
    known = {name: entry for entry in entries for name in (entry.name, entry.file)}
    for name in names:
        if name not in known:
            hint = f"there are {', '.join(entry.name for entry in entries)}"
            raise OptionError(f"there is no model {name!r} in the list", hint=hint)
    chosen = {known[name].file for name in names}
    return [entry for entry in entries if not names or entry.file in chosen]


def files_of(path: Path) -> list[Path]:
    """The model's file, and those beside it that hold its external data. ModelFileError if it is no model."""
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    from trnrt.importer.reading.model_file import parse
    from trnrt.importer.reading.protos import all_tensors

    tensors = all_tensors(parse(path.read_bytes(), str(path)))
    outside = {ExternalDataInfo(tensor).location for tensor in tensors if uses_external_data(tensor)}
    return [path, *(path.parent / name for name in sorted(outside))]


def digest_of(paths: Iterable[Path]) -> str:
    """The SHA-256 of the files' contents, in order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
