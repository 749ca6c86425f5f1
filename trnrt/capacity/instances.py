"""Instance types with NeuronCores, from the targets' files, and the number of instances for a number of cores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from trnrt.errors import OptionError
from trnrt.nki.machine.targets import Target, get_target, known_targets


@dataclass(frozen=True)
class Instance:
    """An instance type: its chips, physical NeuronCores, virtual CPUs and host memory, with their source."""

    name: str
    target: str
    chips: int
    cores: int
    vcpus: int
    memory_gib: int
    source: str


@dataclass(frozen=True)
class Fleet:
    """The number of instances of a type that cores and vCPUs need. ``hourly``: one's price in dollars, if known."""

    instance: Instance
    for_cores: int
    for_host: int
    hourly: float | None = None

    @property
    def count(self) -> int:
        """Instances."""
        return max(self.for_cores, self.for_host)

    @property
    def rented_cores(self) -> int:
        """All cores of the instances, used or not."""
        return self.count * self.instance.cores

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all instances; None if it isn't known."""
        return None if self.hourly is None else self.count * self.hourly

    @property
    def limited_by(self) -> Literal["cores", "host"]:
        """The resource that runs out first."""
        return "host" if self.for_host > self.for_cores else "cores"


def instances() -> dict[str, Instance]:
    """Name -> instance type of all known targets; trnrt's own wins over a user's of the same name."""
    found: dict[str, Instance] = {}
    for one in (one for target in known_targets() for one in _instances_of(target)):
        found.setdefault(one.name, one)
    return found


def find_instances(target: str, name: str | None = None) -> list[Instance]:
    """The instance types of a target, or the one called ``name``; OptionError if the target has none so called."""
    known = _instances_of(get_target(target))
    if name is None:
        return known
    found = [instance for instance in known if instance.name == name]
    if not found:
        other = instances().get(name)
        what = f"{name} has {other.target}" if other else f"there is no instance {name!r}"
        raise OptionError(what, hint=f"instances with {target} are {', '.join(instance.name for instance in known)}")
    return found


def _instances_of(target: Target) -> list[Instance]:
    """The instance types in a target's file, in order."""
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


def fleets(
    known: Iterable[Instance], cores: int, cpu_s: float, utilisation: float, hourly: Mapping[str, float] | None = None
) -> list[Fleet]:
    """A fleet of each type with ``cores`` cores and a host for ``cpu_s`` CPU seconds per second.

    The best comes first: the cheapest of those with a price in ``hourly`` (dollars, by type), then the fewest rented
    cores, then the fewest instances.
    """
    prices = hourly or {}
    found = [
        Fleet(
            instance,
            math.ceil(cores / instance.cores),
            math.ceil(cpu_s / (utilisation * instance.vcpus)),
            prices.get(instance.name),
        )
        for instance in known
    ]
    return sorted(found, key=lambda fleet: (_cost_of(fleet), fleet.rented_cores, fleet.count))


def _cost_of(fleet: Fleet) -> float:
    return math.inf if fleet.usd_per_hour is None else fleet.usd_per_hour
