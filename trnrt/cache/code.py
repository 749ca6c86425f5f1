"""A digest of trnrt's own files, for cache keys that depend on the code and its tables."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from trnrt.version import __version__

ROOT = Path(__file__).parents[1]
PLANS = ("importer", "operators", "planner", "kernels", "nki", "running/profiler.py", "text.py")
"""The rooms that read, plan and time models."""
_READ = (".py", ".json", ".toml")


@cache
def code_version(rooms: tuple[str, ...] | None = None, root: Path = ROOT) -> str:
    """trnrt's version, and a digest of these rooms (folders and files; None for all) with their tables.

    In a checkout every edit changes it. Some hundred small files: a few milliseconds, once per process.
    """
    digest = hashlib.sha256()
    for room in rooms or sorted(path.name for path in root.iterdir()):
        for name in _files(root, room):
            digest.update(f"{name}\0".encode())
            digest.update(Path(root, name).read_bytes())
    return f"{__version__}+{digest.hexdigest()[:16]}"


def _files(root: Path, room: str) -> list[str]:
    """The files of a room, below ``root``. Each room is walked by its own name: some are links in a checkout, which a
    walk from above would not follow."""
    walked = os.walk(root / room)
    found = [os.path.relpath(folder, root) + f"/{name}" for folder, _, names in walked for name in names]
    return sorted(name for name in [*found, room] if name.endswith(_READ))
