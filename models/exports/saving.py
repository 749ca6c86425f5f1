"""Shared by the scripts of this folder: their command line, and the list of the files that they made.

A script writes its files into DIR, and an entry for each into a list of that folder: `exports.json`, which
`try_exports.py` reads, or `zoo.json`, which `benchmarks/zoo` reads.
"""

from __future__ import annotations

import json
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Export:
    """One file: ``kind`` groups the table's rows, ``title`` says what the model is and how large."""

    file: str
    kind: str
    title: str
    exporter: str


@dataclass(frozen=True)
class ZooModel(Export):
    """A model of the zoo: an export, and what else its row of the table needs.

    ``parameters`` are the network's own count. ``shapes`` are the arguments of ``--shape``, for inputs whose sizes the
    file leaves open. ``largest`` holds the highest value to draw for an input of integers: a vocabulary's last id.
    """

    parameters: int
    shapes: tuple[str, ...] = ()
    largest: dict[str, int] = field(default_factory=dict)


Entry = Export | ZooModel
LISTS: dict[type, str] = {Export: "exports.json", ZooModel: "zoo.json"}
"""The list that an entry goes into, in the folder of the files."""

Make = Callable[[Path], None]
"""Writes one model to a path."""


def run_exports(about: str | None, exports: Iterable[tuple[Entry, Make]]) -> None:
    """The command line of a script: make its files in DIR, or those that are named, and list them."""
    parser = ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("files", nargs="*", metavar="FILE", help="make only these; by default all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = [
        export.file
        for export, make in exports
        if (not options.files or export.file in options.files) and not try_export(options.out, export, make)
    ]
    sys.exit(f"not exported: {', '.join(failed)}" if failed else 0)


def try_export(out: Path, export: Entry, make: Make) -> bool:
    """Make one file and list it; return False if the exporter failed, whose traceback goes to stderr."""
    try:
        make(out / export.file)
    except Exception:  # an exporter may raise anything, and the other files are still wanted
        traceback.print_exc()
        return False
    add_export(out, export)
    print(f"{export.file}: {(out / export.file).stat().st_size:,} bytes", flush=True)
    return True


def add_export(out: Path, export: Entry) -> None:
    """Put the file into the list of its folder, in place of an older entry."""
    path = out / LISTS[type(export)]
    known = {entry["file"]: entry for entry in json.loads(path.read_text())} if path.exists() else {}
    known[export.file] = asdict(export)
    path.write_text(json.dumps([known[file] for file in sorted(known)], indent=1) + "\n")
