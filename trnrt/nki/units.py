"""Times and sizes as text: the one rule of reports, tables and errors. The report's page has the same in format.js."""

from __future__ import annotations

import math

_TIMES = ((1e-3, "ns"), (1.0, "us"), (1e3, "ms"), (1e6, "s"))


def time_text(us: float) -> str:
    """Microseconds with three significant digits: ``889 ns``, ``4.12 us``, ``16.5 us``, ``1.23 ms``, ``12.0 s``."""
    if not math.isfinite(us):
        return "-"
    if us == 0:
        return "0 us"
    size = float(f"{us:.3g}")
    scale, unit = next(((s, u) for s, u in reversed(_TIMES) if abs(size) >= s), _TIMES[0])
    return f"{significant_text(size / scale)} {unit}"


def significant_text(value: float) -> str:
    """A number with at least three digits: ``0.05``, ``4.12``, ``16.5``, ``624``, ``12,345``."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    decimals = 0 if size >= 99.95 or size == 0 else 1 if size >= 9.995 else 2
    return f"{value:,.{decimals}f}"


def size_text(size: float) -> str:
    """Bytes for a person: ``148 bytes``, ``4.0 GiB``."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.1f} {unit}" if unit != "bytes" else f"{amount:,.0f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"
