"""How far trnrt's outputs are from onnxruntime's, on seeded random inputs: the files of the zoo have random weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.listing import Entry
from trnrt.cache.code import PLANS, code_version
from trnrt.errors import InputError
from trnrt.session import InferenceSession
from trnrt.validate import open_onnxruntime, run_onnxruntime

Array = NDArray[Any]
SEED = 0
RUNS = (*PLANS, "backends", "inputs", "running", "session.py", "validate")
"""The rooms of trnrt that plan and run a model, and compare its outputs."""
_TINY, _WRONG = 1e-30, 1e30


@dataclass(frozen=True)
class Accuracy:
    """How close the outputs of ``items`` random inputs are to onnxruntime's.

    ``difference``: the largest absolute difference over the output's largest magnitude, of the worst output.
    ``rank``: Spearman's rank correlation, of the worst output. ``cosine``: of an item's outputs, the worst item's.
    ``top_1``: the number of items whose first output has its largest element at the same place; None if that output
    isn't one row of scores an item. ``between``: the difference of two items in onnxruntime's own outputs, as
    ``difference``; the least over pairs of neighbours. It says whether the inputs matter to the outputs at all.
    ``version``: of the code that ran and compared them, as ``code_version`` gives it.
    """

    items: int
    seed: int
    difference: float
    rank: float
    cosine: float
    top_1: int | None
    between: float | None
    version: str = ""


def measure_accuracy(session: InferenceSession, entry: Entry, items: int) -> Accuracy:
    """Run ``items`` rows on the simulator and in onnxruntime. Raises the session's errors."""
    feeds = draw_inputs(session, entry, items)
    theirs = run_onnxruntime(session, feeds, reference=open_onnxruntime(session, threads=1))
    ours = session.run(None, feeds)
    if session.model.batch is None:  # one item, which has no dimension of its own
        ours, theirs = ([np.asarray(output)[None] for output in outputs] for outputs in (ours, theirs))
    return replace(compare_outputs(ours, theirs), version=code_version(RUNS))


def draw_inputs(session: InferenceSession, entry: Entry, items: int) -> dict[str, Array]:
    """Seeded inputs: the session's own, but integers up to the list's ``largest``."""
    feeds = session.random_inputs(items, seed=SEED)
    generator = np.random.default_rng(SEED)
    for name, most in entry.largest.items():
        feeds[name] = generator.integers(0, most + 1, feeds[name].shape).astype(feeds[name].dtype)
    return feeds


def compare_outputs(ours: Sequence[Array], theirs: Sequence[Array]) -> Accuracy:
    """Compare the outputs that hold floats, (N, ...) each, of the same items. Ours that aren't finite count as +-1e30.

    InputError if onnxruntime's aren't finite, or none holds floats: then nothing can be compared.
    """
    pairs = [
        (
            np.nan_to_num(np.asarray(one, np.float64), nan=_WRONG, posinf=_WRONG, neginf=-_WRONG),
            np.asarray(other, np.float64),
        )
        for one, other in zip(ours, theirs, strict=True)
        if np.asarray(other).dtype.kind in "fV" and np.size(other)
    ]
    if not pairs or not all(np.isfinite(other).all() for _, other in pairs):
        raise InputError("onnxruntime gives no finite numbers for random inputs", hint="set `largest` in the list")
    items = len(pairs[0][1])
    between = [_differ(one[1:], one[:-1], one) for _, one in pairs] if items > 1 else []
    return Accuracy(
        items=items,
        seed=SEED,
        difference=max(float(_differ(one, other, other).max()) for one, other in pairs),
        rank=min(rank_correlation(one, other) for one, other in pairs),
        cosine=min(_cosines(pairs)),
        top_1=_agree(*pairs[0]) if pairs[0][1].ndim == 2 and pairs[0][1].shape[1] > 1 else None,
        between=float(np.max(between, axis=0).min()) if between else None,
    )


def _differ(one: Array, other: Array, whole: Array) -> Array:
    """The largest difference of each item, over the largest magnitude in ``whole``."""
    differences = np.abs(one - other).reshape(len(one), -1).max(axis=1)
    return np.asarray(differences / max(float(np.abs(whole).max()), _TINY))


def rank_correlation(one: Array, other: Array) -> float:
    """Spearman's: the correlation of the elements' ranks, over all items; equal elements share their mean rank."""
    first, second = rank_elements(one.ravel()), rank_elements(other.ravel())
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second / max(np.sqrt((first @ first) * (second @ second)), _TINY))


def rank_elements(values: Array) -> Array:
    """The rank of each element, from 0; equal ones have the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts + 1) / 2)[places])


def _cosines(pairs: Iterable[tuple[Array, Array]]) -> list[float]:
    """The cosine of each item of each output."""
    found: list[float] = []
    for one, other in pairs:
        a, b = one.reshape(len(one), -1), other.reshape(len(other), -1)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        found += [float(cosine) for cosine in (a * b).sum(axis=1) / np.maximum(lengths, _TINY)]
    return found


def _agree(one: Array, other: Array) -> int:
    """The number of items whose largest element is at the same place."""
    return int((one.argmax(axis=1) == other.argmax(axis=1)).sum())
