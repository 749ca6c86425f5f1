"""The instances that have NeuronCores, from ``instances.toml``, and how many of them a number of cores needs."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from trnrt.errors import OptionError


@dataclass(frozen=True)
class Instance:
    """One type: its chips, physical NeuronCores, virtual CPUs and host memory, and where that is said."""

    name: str
    target: str
    chips: int
    cores: int
    vcpus: int
    memory_gib: int
    source: str


@dataclass(frozen=True)
class Fleet:
    """How many instances of a type there must be, for their cores and for their vCPUs."""

    instance: Instance
    for_cores: int
    for_host: int

    @property
    def count(self) -> int:
        """Instances."""
        return max(self.for_cores, self.for_host)

    @property
    def rented(self) -> int:
        """Their cores, used or not."""
        return self.count * self.instance.cores

    @property
    def limited_by(self) -> Literal["cores", "host"]:
        """What of an instance is used up first."""
        return "host" if self.for_host > self.for_cores else "cores"


@cache
def instances() -> dict[str, Instance]:
    """Name -> instance, of all targets."""
    text = (files("trnrt.capacity") / "instances.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    chips: dict[str, dict[str, Any]] = table["chips"]
    return {
        name: Instance(
            name,
            entry["target"],
            entry["chips"],
            entry["chips"] * chips[entry["target"]]["cores"],
            entry["vcpus"],
            entry["memory_gib"],
            f"{entry['source']}; {chips[entry['target']]['source']}",
        )
        for name, entry in table["instances"].items()
    }


def offered(target: str, name: str | None = None) -> list[Instance]:
    """The instances of a target, or the one of this name. OptionError where it is none of the target's."""
    known = [instance for instance in instances().values() if instance.target == target]
    if name is None:
        return known
    found = [instance for instance in known if instance.name == name]
    if not found:
        other = instances().get(name)
        what = f"{name} has {other.target}" if other else f"there is no instance {name!r}"
        raise OptionError(what, hint=f"those with {target} are {', '.join(instance.name for instance in known)}")
    return found


def fleets(known: Iterable[Instance], cores: int, cpu_s: float, utilisation: float) -> list[Fleet]:
    """For each type how many it takes: ``cores`` cores, and a host that is busy ``cpu_s`` CPU seconds a second.

    The best is the first: the fewest cores rented, and of those the fewest instances.
    """
    found = [
        Fleet(instance, math.ceil(cores / instance.cores), math.ceil(cpu_s / (utilisation * instance.vcpus)))
        for instance in known
    ]
    return sorted(found, key=lambda fleet: (fleet.rented, fleet.count))
