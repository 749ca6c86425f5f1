"""How large a model may be. A file is untrusted: what it asks for must stay in bounds."""

from __future__ import annotations

LARGEST_MODEL = 2**31 - 1
"""Bytes of a model file, and of a model file and its external data together (protobuf's own limit)."""

MOST_NODES = 100_000
"""Nodes of a model after its functions are expanded."""

LARGEST_CONSTANT = 64 * 2**20
"""Bytes of a constant that folding may make where there was less before."""

MOST_FOLDED = 2**31 - 1
"""Bytes of all constants together that folding may make of one model."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def in_words(size: int) -> str:
    """A number of bytes for a person: "64.0 MiB"."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} bytes"
