"""What rounding can do to each element of an output, by the reference alone: ``docs/validation.md`` derives it."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.operators.bounds.rounding import ONE_IN, confidence, smallest_normal, unit_roundoff

Array = NDArray[Any]
SAMPLES = 4
"""Runs of the reference with roundings at random: their outputs' spread is pooled over the neighbours of an element."""

# Of numbers with a normal distribution and a standard deviation of 1, the mean of the square roots, squared.
_HALF_POWER = 0.6760


def spread(samples: Sequence[Array], centre: Array | None = None) -> Array:
    """The standard deviation of each element, by its own samples and those beside it.

    ``centre``: what the samples are spread around, by default their mean.
    """
    stack = np.stack([np.asarray(sample, np.float64) for sample in samples])
    with np.errstate(all="ignore"):
        if centre is None:
            apart = (stack - stack.mean(axis=0)) * np.sqrt(len(stack) / (len(stack) - 1))
        else:
            apart = stack - np.asarray(centre, np.float64)
    apart = np.where(np.isfinite(apart), apart, 0.0)
    own: Array = np.sqrt(np.mean(apart**2, axis=0))
    return np.maximum(own, pool_noise(np.abs(apart)))


def pool_noise(apart: Array) -> Array:
    """The size of an element's noise by those that share an index with it, for samples (S, ...) of it.

    As a product of a factor for each index of each dimension: a channel of small numbers has small noise, and so has a
    row. The mean of square roots is taken, so that the few elements that jumped, because a decision fell otherwise, do
    not set the size for all.
    """
    roots = np.sqrt(apart)
    mean = float(roots.mean()) if roots.size else 0.0
    made = np.full(apart.shape[1:], mean)
    if mean == 0:
        return made
    for axis in range(1, apart.ndim):
        others = tuple(d for d in range(apart.ndim) if d != axis)
        factor = roots.mean(axis=others) / mean
        factor = np.minimum(factor / np.sqrt(_certain(roots.size // apart.shape[axis])), np.maximum(factor, 1.0))
        made *= factor.reshape([-1 if d == axis else 1 for d in range(1, apart.ndim)])
    return made**2 / _HALF_POWER


def _certain(numbers: int) -> float:
    """What so many samples may be below their standard deviation by chance, all of them, once in ``ONE_IN``: a factor.

    One sample is below a share t of it with a probability of at most sqrt(2 / pi) t.
    """
    return float(min(1.0, ONE_IN ** (-1 / max(numbers, 1)) / sqrt(2 / pi)))


def allowance(noise: Array, results: int) -> Array:
    """What ``results`` results with this noise may be apart by, in all but one tensor of ``ONE_IN``."""
    return results * confidence(noise.size) * noise


def storing_error(reference: Array, dtype: str) -> Array:
    """What storing an element in a dtype may move it by; 0 for what is no number."""
    size = np.abs(reference.astype(np.float64))
    moved = unit_roundoff(dtype) * np.maximum(size, smallest_normal(dtype))
    return np.where(np.isfinite(size), moved, 0.0)
