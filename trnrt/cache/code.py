"""What trnrt's own files say: a digest of them, for the keys of all that depends on the code and its tables."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLANS = ("importer", "operators", "planner", "kernels", "nki", "running/profiler.py", "text.py")
"""What reads, plans and times models."""
_READ = (".py", ".json", ".toml")


@cache
def code_version(rooms: tuple[str, ...] | None = None, root: Path = ROOT) -> str:
    """trnrt's version, and a digest of what is in these rooms (folders and files; None for all), with its tables.

    What is installed changes with the version alone; in a checkout every edit makes another one. Some hundred small
    files: a few milliseconds, once a process.
    """
    digest = hashlib.sha256()
    for room in rooms or sorted(path.name for path in root.iterdir()):
        for name in _files(root, room):
            digest.update(f"{name}\0".encode())
            digest.update(Path(root, name).read_bytes())
    return f"{metadata.version('trnrt')}+{digest.hexdigest()[:16]}"


def _files(root: Path, room: str) -> list[str]:
    """What is read of a room, below ``root``; each room by its own name, as some of a checkout are links, into which a
    walk from above does not go."""
    walked = os.walk(root / room)
    found = [os.path.relpath(folder, root) + f"/{name}" for folder, _, names in walked for name in names]
    return sorted(name for name in [*found, room] if name.endswith(_READ))
