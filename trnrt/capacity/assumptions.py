"""Assumptions beside predicted latencies, from ``assumptions.toml``: each value with its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trnrt.planner.parts.crossing import HostLink, host_link

DEFAULT_MOST = 32
"""The default limit of a batch's rows, as in ``trnrt serve``."""
QUEUE = 256
"""Requests that may wait for a worker, as by default in ``trnrt serve``."""
WORKERS = 64
"""The most workers of one ``trnrt serve``."""


@dataclass(frozen=True)
class Host:
    """The host's times for a request: microseconds, and microseconds per megabyte of its input.

    ``request_us`` and ``read_us_per_mb`` are spent in the event loop; ``batch_us``, once per batch, and
    ``merge_us_per_mb``, for a batch of several requests, in the model's thread. ``cold_us`` and ``cooling_us``: the
    extra time after a pause (``queueing.Worker``). ``link`` leads to the device and back.
    """

    request_us: float
    batch_us: float
    read_us_per_mb: float
    merge_us_per_mb: float
    cold_us: float
    cooling_us: float
    link: HostLink


def host(target: str, request_us: float | None = None) -> Host:
    """The assumptions for a target. ``request_us``: the host's whole time for a request, if known."""
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
    """The largest planned load of a core or a vCPU, a share of 1."""
    return assumptions()["utilisation"][0]
