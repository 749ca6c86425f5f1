"""Kept measurements: a killed run resumes, and a second one takes seconds.

A measurement's key has all that it depends on: the files' digest, the code that plans, times, runs and compares, and
the settings. So nothing that is found in the folder is ever out of date, and it may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnrt.cache import default_directory
from trnrt.report.files import write_text

Document = dict[str, Any]


def default_folder() -> Path:
    """``zoo`` in trnrt's cache directory."""
    return default_directory() / "zoo"


class Kept:
    """Measurements in a folder, a JSON file each. ``made``: the number that were measured, and not found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def measurement(self, key: Document, measure: Callable[[], Document]) -> Document:
        """The measurement with this key: found, or made and kept."""
        path = self.folder / f"{_name_of(key)}.json"
        found = _read(path)
        if found is None:
            found = measure()
            self.made += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({"key": key, "found": found}))
            found = _read(path)
            assert found is not None, f"{path} was just written"
        return found


def _read(path: Path) -> Document | None:
    """The measurement that a file holds; None if there is no file, or it was cut short."""
    try:
        found: Document = json.loads(path.read_text(encoding="utf-8"))["found"]
    except (OSError, ValueError, KeyError):
        return None
    return found


def _name_of(key: Document) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
