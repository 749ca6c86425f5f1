"""What is assumed beside predicted latencies, from ``assumptions.toml``: each value with what it rests on."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trnrt.planner.parts.crossing import HostLink, host_link

DEFAULT_MOST = 32
"""Rows of a batch at most, by default: ``trnrt serve``'s own default."""
QUEUE = 256
"""Requests that a worker lets wait: ``trnrt serve``'s default."""
WORKERS = 64
"""Workers of one server at most: ``trnrt serve`` takes no more."""


@dataclass(frozen=True)
class Host:
    """What the host takes for a request: microseconds, and microseconds a megabyte of its input.

    ``request_us`` and ``read_us_per_mb`` are the event loop's; ``batch_us``, once a batch, and ``merge_us_per_mb``,
    where it has several requests, are the model's thread's. ``cold_us`` and ``cooling_us``: what a request takes more
    after a pause (``queueing.Worker``). ``link`` is the way to the device and back.
    """

    request_us: float
    batch_us: float
    read_us_per_mb: float
    merge_us_per_mb: float
    cold_us: float
    cooling_us: float
    link: HostLink


def host(target: str, request_us: float | None = None) -> Host:
    """The assumptions for a target. ``request_us``: all that the host takes for a request, where that is known."""
    link = host_link(target)
    if request_us is not None:
        return Host(request_us, 0.0, 0.0, 0.0, 0.0, assumptions()["cooling_us"][0], link)
    values = {name: value for name, (value, _) in assumptions().items() if name != "utilisation"}
    return Host(**values, link=link)


@cache
def assumptions() -> dict[str, tuple[float, str]]:
    """Name -> (value, source)."""
    table = tomllib.loads((files("trnrt.capacity") / "assumptions.toml").read_text(encoding="utf-8"))
    return {name: (float(entry["value"]), str(entry["source"])) for name, entry in table.items()}


def default_utilisation() -> float:
    """The share of what a core or a vCPU could do that is planned with."""
    return assumptions()["utilisation"][0]
