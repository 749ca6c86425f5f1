"""Attention against numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import (
    DTYPES,
    FUNCTION,
    ROUNDING,
    TARGETS,
    Array,
    Tensor,
    call,
    drawn,
    features_in_sbuf,
    features_to_hbm,
    hbm,
    rows_in_sbuf,
    sbuf_features,
)

from trnrt.kernels.attention import LATE_KEYS, attend


@dataclass(frozen=True)
class Case:
    """``items`` of ``heads``, each of ``queries`` x ``width`` and ``keys`` x ``size``; ``mask``: the first three
    dimensions of what is added, if anything."""

    items: int
    heads: int
    queries: int
    keys: int
    width: int
    size: int
    mask: tuple[int, int, int] | None = None
    on_chip: str = ""
    scale: float = 0.25
    empty_is_zero: bool = False
    target: str = "trn2"

    def body(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """The kernel; the tensors that ``on_chip`` names, dst as d, are in SBUF."""
        sources = [features_in_sbuf(x) if name in self.on_chip else x for name, x in zip("qkv", (q, k, v), strict=True)]
        if "r" in self.on_chip:
            sources[2] = rows_in_sbuf(v)
        rows, columns = self.items * self.queries, self.heads * self.size
        dst = sbuf_features(rows, columns, v.dtype) if "d" in self.on_chip else hbm((rows, columns), v.dtype)
        attend(
            dst,
            sources[0],
            sources[1],
            sources[2],
            mask,
            self.items,
            self.heads,
            self.width,
            self.size,
            self.scale,
            self.empty_is_zero,
            by_rows="r" in self.on_chip,
        )
        return features_to_hbm(dst, columns) if "d" in self.on_chip else dst


def compare(case: Case, dtype: str = "float32", *, hide: bool = False) -> None:
    """Run a case on random numbers; ``hide``: the mask hides half of the keys, all of some items'."""
    shapes = (case.queries, case.width), (case.keys, case.width), (case.keys, case.size)
    given = [drawn((case.items * n, case.heads * d), seed, dtype) for seed, (n, d) in enumerate(shapes)]
    mask = None if case.mask is None else drawn((*case.mask, case.keys), 3)
    if mask is not None and hide:
        mask = np.where(mask < 0, -np.inf, mask).astype(np.float32)
        mask[0, :, 0] = -np.inf
    got = call(case.body, *given, *(() if mask is None else (mask,)), target=case.target)
    q, k, v = (
        x.astype(np.float64).reshape(case.items, n, case.heads, d).transpose(0, 2, 1, 3)
        for x, (n, d) in zip(given, shapes, strict=True)
    )
    expected, bound = reference(case, q, k, v, mask, dtype)
    same = np.isnan(got) & np.isnan(expected)
    assert got.shape == expected.shape
    with np.errstate(invalid="ignore"):
        assert (same | (np.abs(got - expected) <= bound)).all(), np.nanmax(np.abs(got - expected) / bound)


def reference(case: Case, q: Array, k: Array, v: Array, mask: Array | None, dtype: str) -> tuple[Array, Array]:
    """What float64 gives, in rows, and how far roundings may lead from it.

    They are those of the scores' sums, of exponentials to the dtype, and of the result."""
    scores = case.scale * q @ k.swapaxes(-1, -2)
    magnitude = case.scale * np.abs(q) @ np.abs(k).swapaxes(-1, -2)
    if mask is not None:
        index = np.arange(case.items) % mask.shape[0]
        scores = scores + mask[index]
        magnitude = magnitude + np.abs(np.where(np.isfinite(mask), mask, 0))[index]
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
    total = e.sum(-1, keepdims=True)
    weights = e / total
    if case.empty_is_zero:
        weights = np.nan_to_num(weights)
    off = (case.width + 4) * 2.0**-24 * magnitude.max(-1, keepdims=True)
    relative = 2 * off + ROUNDING[dtype] * 1.01 + FUNCTION + case.keys * 2.0**-24
    expected = weights @ v
    bound = 2 * relative * (np.nan_to_num(weights) @ np.abs(v)) + ROUNDING[dtype] * 1.01 * np.abs(expected) + 1e-37
    rows = (case.items * case.queries, case.heads * case.size)
    return expected.transpose(0, 2, 1, 3).reshape(rows), bound.transpose(0, 2, 1, 3).reshape(rows)


TABLE = {
    "one key": Case(1, 1, 1, 1, 1, 1),
    "small heads": Case(3, 5, 7, 9, 6, 4),
    "an encoder": Case(2, 4, 128, 128, 64, 64),
    "odd lengths": Case(2, 3, 197, 197, 64, 64),
    "long heads": Case(1, 2, 130, 140, 128, 128),
    "heads that no block holds whole": Case(2, 5, 20, 33, 48, 40),
    "more keys than a bank": Case(1, 2, 40, 700, 32, 32),
    "most keys": Case(1, 1, 3, 4096, 32, 32),
    "wide values": Case(1, 1, 9, 10, 16, 512),
    "a row for all queries": Case(3, 4, 60, 50, 32, 32, (3, 1, 1)),
    "a matrix for all heads": Case(2, 4, 60, 50, 32, 32, (1, 1, 60)),
    "a matrix for each head, and for each of two windows": Case(4, 3, 49, 49, 32, 32, (2, 3, 49)),
    "a mask over more keys than a bank": Case(1, 3, 140, 600, 32, 32, (1, 3, 140)),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_kind(name: str) -> None:
    compare(TABLE[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["odd lengths", "a row for all queries", "heads that no block holds whole"])
def test_dtypes_and_targets(name: str, target: str, dtype: str) -> None:
    compare(replace(TABLE[name], target=target), dtype)


@pytest.mark.parametrize("on_chip", ["q", "k", "v", "d", "qkvd"])
@pytest.mark.parametrize("name", ["an encoder", "odd lengths", "more keys than a bank", "a row for all queries"])
def test_features_stay_on_chip(name: str, on_chip: str) -> None:
    compare(replace(TABLE[name], on_chip=on_chip), "bfloat16")


def test_values_in_rows() -> None:
    case = Case(3, 5, 70, 256, 64, 64, on_chip="qkrd")
    compare(case, "bfloat16")
    compare(replace(case, mask=(3, 1, 70), size=48))


@pytest.mark.parametrize("empty_is_zero", [False, True])
@pytest.mark.parametrize("name", ["a row for all queries", "a mask over more keys than a bank"])
def test_hidden_keys(name: str, empty_is_zero: bool) -> None:
    compare(replace(TABLE[name], empty_is_zero=empty_is_zero), hide=True)


@pytest.mark.parametrize("on_chip", ["", "qkd"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("keys", [LATE_KEYS - 1, LATE_KEYS, 300])
def test_few_and_many_keys_with_hidden_ones_of_16_bits(keys: int, target: str, on_chip: str) -> None:
    case = Case(2, 4, 140, keys, 64, 64, (2, 1, 140), on_chip, empty_is_zero=True, target=target)
    compare(case, "bfloat16", hide=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("keys", [150, 300])
def test_groups_that_end_within_a_block_of_features(keys: int, target: str, dtype: str) -> None:
    compare(Case(1, 9, 20, keys, 32, 32, on_chip="d", target=target), dtype)
