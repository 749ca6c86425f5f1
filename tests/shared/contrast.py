"""The contrast of two colours, as WCAG 2 defines it: 4.5 is the least for text (AA), 3 for pictures and controls."""

from __future__ import annotations


def luminance(colour: str) -> float:
    """The relative luminance of ``#rrggbb``."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(first: str, second: str) -> float:
    """From 1 (the same) to 21 (black on white)."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
