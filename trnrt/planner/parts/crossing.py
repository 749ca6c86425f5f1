"""What it costs to leave the device for the CPU and to come back: the bytes each way, and a fixed latency."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ASSUMPTIONS = Path(__file__).with_name("host_link.toml")


@dataclass(frozen=True)
class HostLink:
    """The link between the host and a NeuronCore: GB/s, and microseconds that a transfer takes beside its bytes."""

    gbps: float
    latency_us: float

    def transfer_us(self, size: int) -> float:
        """One way, all tensors of it together; nothing where nothing moves."""
        return self.latency_us + size / (self.gbps * 1000) if size else 0.0


@dataclass(frozen=True)
class Crossing:
    """The round trip of a part that runs on the CPU.

    ``to_host`` are the bytes that the device part before it hands over, ``to_device`` those that the device part after
    it takes, ``predicted_us`` the predicted cost. ``open_shapes``: whether values cross whose size is known at run time
    only; they are not counted.
    """

    to_host: int
    to_device: int
    predicted_us: float
    open_shapes: bool = False

    @classmethod
    def over(cls, link: HostLink, to_host: int, to_device: int, *, open_shapes: bool = False) -> Crossing:
        """The crossing of so many bytes."""
        cost = link.transfer_us(to_host) + link.transfer_us(to_device)
        return cls(to_host, to_device, cost, open_shapes)


@cache
def host_link(target: str) -> HostLink:
    """The link of a target, from ``host_link.toml``, which says where each value comes from."""
    table = tomllib.loads(ASSUMPTIONS.read_text(encoding="utf-8"))[target]
    return HostLink(float(table["gbps"]["value"]), float(table["latency_us"]["value"]))


def told(target: str) -> str:
    """How crossings are predicted, in one line."""
    link = host_link(target)
    return (
        f"crossings: {link.gbps:g} GB/s and {link.latency_us:g} us each way, which are assumptions "
        "(trnrt/planner/parts/host_link.toml); the CPU's own time is not predicted"
    )
