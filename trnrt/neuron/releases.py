"""The versions that work together, from ``releases.json``, which names the SDK's page for each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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
class Needs:
    """The packages of a route: for ``compiling``, for ``running`` in trnrt's own process, and in the environment of its
    ``worker``. ``sdk``: the release whose packages to install."""

    name: str
    sdk: str
    python: Range
    compiling: tuple[Range, ...]
    running: tuple[Range, ...]
    worker: tuple[Range, ...]

    def packages(self, *, compiling: bool = True) -> tuple[Range, ...]:
        """The packages of trnrt's own environment; for running alone without ``compiling``.

        A route without a worker also compiles, or needs its compiler's versions, to run.
        """
        return () if self.worker and not compiling else (*self.compiling, *self.running)


@dataclass(frozen=True)
class Releases:
    """The data file. ``packages``: those that every route's packages need in a range of versions.
    ``driver_needs_runtime``: from this driver on, only this runtime or a later one starts."""

    sdk: str
    index: str
    driver_needs_runtime: tuple[str, str]
    routes: tuple[Needs, ...]
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

    def route(self, name: str) -> Needs:
        """The needs of a route."""
        return next(needs for needs in self.routes if needs.name == name)

    def pip_command(self, packages: Sequence[Range], program: str = "pip") -> str:
        """The command that installs packages: exact versions, so that pip can't take PyPI's placeholders."""
        pins = " ".join(f"{p.name}=={p.install}" for p in packages if p.install)
        return f"{program} install --extra-index-url {self.index} {pins}"

    def system_version(self, name: str, sdk: str) -> str:
        """The version of a system package in a release."""
        return self.releases[sdk][name]


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
        tuple(_needs(row) for row in data["routes"]),
        tuple(_range(row) for row in data["packages"]),
        tuple(_range(row) for row in data["system"]),
        data["releases"],
        data["sources"],
    )


def _needs(row: dict[str, Any]) -> Needs:
    lists = {key: tuple(_range(package) for package in row[key]) for key in ("compiling", "running", "worker")}
    return Needs(row["name"], row["sdk"], _range({"name": "python", **row["python"]}), **lists)


def _range(row: dict[str, Any]) -> Range:
    return Range(**{**row, "sources": tuple(row["sources"])})
