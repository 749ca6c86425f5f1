"""Limits of a model's size. A file is untrusted: it may ask for any amount of work and memory."""

from __future__ import annotations

LARGEST_MODEL = 2**31 - 1
"""Bytes of a model file, and of a model file and its external data together (protobuf's own limit)."""

MOST_NODES = 20_000
"""Nodes of a model after its functions are expanded. Each costs about half a millisecond until it is planned."""

MOST_VALUES = 1_000
"""Tensors that one node may read, or make."""

LARGEST_CONSTANT = 64 * 2**20
"""Bytes of a constant that folding may make, unless its inputs have as many."""

MOST_FOLDED = 2**31 - 1
"""Bytes of all constants together that folding may make for one model."""

MOST_FILLED = 2**30
"""The most bytes of all constants together that repeat one value (the networks that onnx ships without weights have
half)."""

LARGEST_TENSOR = 2**31 - 1
"""Bytes of a tensor between nodes."""

MOST_ACTIVATIONS = 64 * 2**30
"""Bytes of all tensors between nodes together."""

MOST_AXES = 32
"""Dimensions of a tensor (numpy has 64, and some rewrites need twice as many as a tensor has)."""

LARGEST_WINDOW = 2**16
"""Elements under a pooling operator's kernel, and how far it reaches along an axis."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def in_words(size: int) -> str:
    """A number of bytes as text: "64.0 MiB"."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} bytes"
