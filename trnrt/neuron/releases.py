"""The versions that work together, from ``releases.json``, which names the SDK's page for each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("releases.json")


@dataclass(frozen=True)
class Range:
    """The versions of a package that trnrt was written to.

    ``newer``: the state of versions from ``below`` on; ``beyond``: a remark on them.
    """

    name: str
    at_least: str
    below: str
    newer: str
    sources: tuple[str, ...]
    install: str = ""
    needed: bool = True
    beyond: str = ""

    def state(self, version: str) -> str:
        """The state of a version: "ok", "wrong" if it is too old, ``newer`` if it is too new."""
        if numbers(version) < numbers(self.at_least):
            return "wrong"
        return "ok" if numbers(version) < numbers(self.below) else self.newer

    @property
    def text(self) -> str:
        """The range, for messages."""
        return f">={self.at_least}, <{self.below}"


@dataclass(frozen=True)
class Releases:
    """The data file. ``driver_needs_runtime``: from this driver on, only this runtime or a later one starts."""

    sdk: str
    index: str
    driver_needs_runtime: tuple[str, str]
    python: Range
    packages: tuple[Range, ...]
    system: tuple[Range, ...]
    releases: dict[str, dict[str, str]]
    sources: dict[str, str]

    def release_of(self, package: str, version: str) -> str | None:
        """The SDK release of a package, by its first three numbers; None if no listed release has it."""
        return next(
            (sdk for sdk, has in self.releases.items() if numbers(has.get(package, ""))[:3] == numbers(version)[:3]),
            None,
        )

    @property
    def pip_command(self) -> str:
        """The command that installs the Python packages: exact versions, so that pip can't take PyPI's placeholders."""
        pins = " ".join(f"{p.name}=={p.install}" for p in self.packages if p.needed and p.install)
        return f"pip install --extra-index-url {self.index} {pins}"


def numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: "2.9.0.2.15+abc" -> (2, 9, 0, 2, 15)."""
    found = re.match(r"\d+(?:\.\d+)*", version.strip())
    return tuple(int(part) for part in found[0].split(".")) if found else ()


@cache
def load_releases() -> Releases:
    """The data, read once."""
    data = json.loads(_FILE.read_text(encoding="utf-8"))
    return Releases(
        data["sdk"],
        data["index"],
        (data["driver_needs_runtime"]["driver"], data["driver_needs_runtime"]["runtime"]),
        _range({"name": "python", **data["python"]}),
        tuple(_range(row) for row in data["packages"]),
        tuple(_range(row) for row in data["system"]),
        data["releases"],
        data["sources"],
    )


def _range(row: dict[str, Any]) -> Range:
    return Range(**{**row, "sources": tuple(row["sources"])})
