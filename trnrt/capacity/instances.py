"""The instances that have NeuronCores, from the targets' files, and how many of them a number of cores needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trnrt.errors import OptionError
from trnrt.nki.machine.targets import Target, get_target, known_targets


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
    def rented_cores(self) -> int:
        """Their cores, used or not."""
        return self.count * self.instance.cores

    @property
    def limited_by(self) -> Literal["cores", "host"]:
        """What of an instance is used up first."""
        return "host" if self.for_host > self.for_cores else "cores"


def instances() -> dict[str, Instance]:
    """Name -> instance, of all known targets; of several with one name the first, trnrt's own."""
    found: dict[str, Instance] = {}
    for one in (one for target in known_targets() for one in _instances_of(target)):
        found.setdefault(one.name, one)
    return found


def find_instances(target: str, name: str | None = None) -> list[Instance]:
    """The instances of a target, or the one of this name. OptionError where it is none of the target's."""
    known = _instances_of(get_target(target))
    if name is None:
        return known
    found = [instance for instance in known if instance.name == name]
    if not found:
        other = instances().get(name)
        what = f"{name} has {other.target}" if other else f"there is no instance {name!r}"
        raise OptionError(what, hint=f"those with {target} are {', '.join(instance.name for instance in known)}")
    return found


def _instances_of(target: Target) -> list[Instance]:
    """Those in a target's file, in its order."""
    device = target.device
    return [
        Instance(
            one.name,
            target.name,
            one.chips,
            one.chips * device.cores,
            one.vcpus,
            one.memory_gib,
            f"{one.source}; {device.cores_source}",
        )
        for one in target.instances
    ]


def fleets(known: Iterable[Instance], cores: int, cpu_s: float, utilisation: float) -> list[Fleet]:
    """For each type how many it takes: ``cores`` cores, and a host that is busy ``cpu_s`` CPU seconds a second.

    The best is the first: the fewest cores rented, and of those the fewest instances.
    """
    found = [
        Fleet(instance, math.ceil(cores / instance.cores), math.ceil(cpu_s / (utilisation * instance.vcpus)))
        for instance in known
    ]
    return sorted(found, key=lambda fleet: (fleet.rented_cores, fleet.count))
