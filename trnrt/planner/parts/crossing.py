"""The cost of leaving the device for the CPU and coming back: the bytes each way, and a fixed latency."""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.nki.machine.targets import get_target, place_of


@dataclass(frozen=True)
class HostLink:
    """The link between the host and a NeuronCore: GB/s, and the fixed microseconds of each transfer."""

    gbps: float
    latency_us: float

    def transfer_us(self, size: int) -> float:
        """Time one way, all tensors together; 0 if there are none."""
        return self.latency_us + size / (self.gbps * 1000) if size else 0.0


@dataclass(frozen=True)
class Crossing:
    """The round trip of a part that runs on the CPU.

    ``to_host`` are the bytes that the preceding device part sends, ``to_device`` those that the following device part
    receives, ``predicted_us`` the predicted cost. ``open_shapes``: some crossing values have a size known only at run
    time; they aren't counted.
    """

    to_host: int
    to_device: int
    predicted_us: float
    open_shapes: bool = False

    @classmethod
    def estimate(cls, link: HostLink, to_host: int, to_device: int, *, open_shapes: bool = False) -> Crossing:
        """The crossing of these bytes each way."""
        cost = link.transfer_us(to_host) + link.transfer_us(to_device)
        return cls(to_host, to_device, cost, open_shapes)


def host_link(target: str) -> HostLink:
    """The link of a target, from its file, which also gives the sources."""
    found = get_target(target).host_link
    return HostLink(found.gbps, found.latency_us)


def crossing_note(target: str) -> str:
    """One line on how crossings are predicted."""
    link = host_link(target)
    return (
        f"crossings: {link.gbps:g} GB/s and {link.latency_us:g} us each way, which are assumptions "
        f"({place_of(target)}); the CPU's own time is not predicted"
    )
