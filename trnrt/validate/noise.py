"""The noise of rounding in each element of an output, by the reference alone: ``docs/validation.md`` derives it."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.operators.bounds.rounding import ONE_IN, confidence, smallest_normal, unit_roundoff

Array = NDArray[Any]
SAMPLES = 4
"""Runs of the reference with random roundings; the spread of their outputs is pooled over an element's neighbours."""

# The squared mean of the square roots of standard normal numbers' sizes.
_HALF_POWER = 0.6760


def spread(samples: Sequence[Array], centre: Array | None = None) -> Array:
    """The standard deviation of each element, by its own samples and its neighbours'.

    ``centre``: deviations are from this, by default from the samples' mean.
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
    """The size of an element's noise by the elements that share an index with it, for samples (S, ...).

    It is a product of a factor for each index of each dimension: a channel of small numbers has small noise, and so has
    a row. The mean is of square roots, so that the few elements that jumped, because a decision changed, do not set the
    size for all.
    """
    roots = np.sqrt(apart)
    mean = float(roots.mean()) if roots.size else 0.0
    made = np.full(apart.shape[1:], mean)
    if mean == 0:
        return made
    for axis in range(1, apart.ndim):
        others = tuple(d for d in range(apart.ndim) if d != axis)
        factor = roots.mean(axis=others) / mean
        factor = np.minimum(factor / np.sqrt(_chance_factor(roots.size // apart.shape[axis])), np.maximum(factor, 1.0))
        made *= factor.reshape([-1 if d == axis else 1 for d in range(1, apart.ndim)])
    return made**2 / _HALF_POWER


def _chance_factor(numbers: int) -> float:
    """The share of the standard deviation that all samples, ``numbers`` of them, are below once in ``ONE_IN``.

    One sample is below a share t with a probability of at most sqrt(2 / pi) t.
    """
    return float(min(1.0, ONE_IN ** (-1 / max(numbers, 1)) / sqrt(2 / pi)))


def allowance(noise: Array, results: int) -> Array:
    """The largest difference of ``results`` results with this noise, in all but one tensor of ``ONE_IN``."""
    return results * confidence(noise.size) * noise


def storing_error(reference: Array, dtype: str) -> Array:
    """The largest change from storing an element in a dtype; 0 for NaN and infinity."""
    size = np.abs(reference.astype(np.float64))
    moved = unit_roundoff(dtype) * np.maximum(size, smallest_normal(dtype))
    return np.where(np.isfinite(size), moved, 0.0)
