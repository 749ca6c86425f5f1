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
    more: tuple[int, int, int] | None = None
    shared: int = 1
    apart: str = ""
    causal: bool = False

    def body(self, q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> Tensor:
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
            masks[0] if masks else None,
            self.items,
            self.heads,
            self.width,
            self.size,
            self.scale,
            self.empty_is_zero,
            by_rows="r" in self.on_chip,
            shared=self.shared,
            ends=self.ends(),
            more=masks[1] if len(masks) > 1 else None,
        )
        return features_to_hbm(dst, columns) if "d" in self.on_chip else dst

    def ends(self) -> tuple[int, ...]:
        """The keys that each 128 queries see, if the mask is a triangle."""
        blocks = range(128, self.queries + 128, 128) if self.causal else ()
        return tuple(min(end, self.queries) + self.keys - self.queries for end in blocks)

    def masks(self, *, hide: bool) -> list[Array]:
        """What is added: random numbers, or a triangle in which each query sees the keys up to its own."""
        if self.causal:
            triangle = np.tri(self.queries, self.keys, self.keys - self.queries)
            return [np.where(triangle, 0, -np.inf).astype(np.float32)[None, None]]
        shapes = [shape for shape in (self.mask, self.more) if shape is not None]
        masks = [drawn((*shape, self.keys), 3 + k) for k, shape in enumerate(shapes)]
        if masks and hide:
            masks[0] = np.where(masks[0] < 0, -np.inf, masks[0]).astype(np.float32)
            masks[0][0, :, 0] = -np.inf
        return masks


def compare(case: Case, dtype: str = "float32", *, hide: bool = False) -> None:
    """Run a case on random numbers; ``hide``: the mask hides half of the keys, all of some items'."""
    shared = case.heads // case.shared
    shapes = (case.heads, case.queries, case.width), (shared, case.keys, case.width), (shared, case.keys, case.size)
    heads = [drawn((case.items, *shape), seed, dtype) for seed, shape in enumerate(shapes)]
    given = [
        x if name in case.apart else np.ascontiguousarray(x.swapaxes(1, 2)).reshape(case.items * x.shape[2], -1)
        for name, x in zip("qkv", heads, strict=True)
    ]
    masks = case.masks(hide=hide)
    got = call(case.body, *given, *masks, target=case.target)
    q, k, v = (x.astype(np.float64) for x in heads)
    k, v = (np.repeat(x, case.shared, 1) for x in (k, v))
    expected, bound = reference(case, q, k, v, masks, dtype)
    same = np.isnan(got) & np.isnan(expected)
    assert got.shape == expected.shape
    with np.errstate(invalid="ignore"):
        assert (same | (np.abs(got - expected) <= bound)).all(), np.nanmax(np.abs(got - expected) / bound)


def reference(case: Case, q: Array, k: Array, v: Array, masks: list[Array], dtype: str) -> tuple[Array, Array]:
    """What float64 gives, in rows, and how far roundings may lead from it.

    They are those of the scores' sums, of the mask and of exponentials to the dtype, and of the result."""
    scores = case.scale * q @ k.swapaxes(-1, -2)
    magnitude, added = case.scale * np.abs(q) @ np.abs(k).swapaxes(-1, -2), np.zeros(1)
    for mask in masks:
        index = np.arange(case.items) % mask.shape[0]
        scores = scores + mask[index]
        added = added + np.where(np.isfinite(mask), mask, 0)[index]
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
    total = e.sum(-1, keepdims=True)
    weights = e / total
    if case.empty_is_zero:
        weights = np.nan_to_num(weights)
    magnitude = magnitude + np.abs(added)
    off = (case.width + 4) * 2.0**-24 * magnitude.max(-1, keepdims=True)
    off = off + ROUNDING[dtype] / 2 * np.abs(added).max(-1, keepdims=True)
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
    "a bias for each head, and padding": Case(3, 4, 60, 50, 32, 32, (1, 4, 60), more=(3, 1, 1)),
    "padding, and a bias for each head": Case(4, 2, 30, 50, 32, 48, (4, 1, 1), more=(2, 2, 30)),
    "four heads of queries for one of keys": Case(2, 8, 40, 50, 32, 32, shared=4),
    "long heads of queries for one of keys": Case(2, 4, 40, 50, 128, 128, shared=2),
    "one head of keys for all": Case(2, 6, 40, 150, 48, 32, (2, 1, 1), shared=6),
    "heads apart": Case(2, 3, 140, 150, 32, 48, apart="qkv"),
    "heads of keys and values apart, and shared": Case(2, 6, 20, 150, 64, 64, shared=3, apart="kv"),
    "a triangle": Case(2, 3, 300, 300, 32, 32, causal=True),
    "a triangle behind a past": Case(1, 3, 150, 650, 32, 32, causal=True),
    "a mask over more keys than a bank": Case(1, 3, 140, 600, 32, 32, (1, 3, 140)),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_kind(name: str) -> None:
    compare(TABLE[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "name",
    [
        "odd lengths",
        "a row for all queries",
        "heads that no block holds whole",
        "a bias for each head, and padding",
        "one head of keys for all",
        "heads apart",
        "a triangle",
    ],
)
def test_dtypes_and_targets(name: str, target: str, dtype: str) -> None:
    compare(replace(TABLE[name], target=target), dtype)


@pytest.mark.parametrize("on_chip", ["q", "k", "v", "d", "qkvd"])
@pytest.mark.parametrize(
    "name",
    [
        "an encoder",
        "odd lengths",
        "more keys than a bank",
        "a row for all queries",
        "long heads of queries for one of keys",
        "a triangle",
    ],
)
def test_features_stay_on_chip(name: str, on_chip: str) -> None:
    compare(replace(TABLE[name], on_chip=on_chip), "bfloat16")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [(3, 300, 32), (12, 170, 32), (6, 1500, 64), (2, 4096, 64), (5, 700, 128)], ids=str)
def test_features_of_groups_that_fill_no_block(sizes: tuple[int, int, int], masked: bool) -> None:
    """Scores of as many heads as a block of partitions has do not fit PSUM."""
    heads, keys, width = sizes
    mask = (2, 1, 1) if masked else None
    compare(Case(2, heads, 20, keys, width, width, mask, on_chip="d", empty_is_zero=masked), "bfloat16", hide=masked)


def test_values_in_rows() -> None:
    compare(Case(3, 12, 70, 256, 64, 64, on_chip="rd", shared=3), "bfloat16")
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


@pytest.mark.parametrize("sizes", [(7, 2000, 40, 64), (8, 1500, 24, 32)], ids=str)
def test_features_of_values_wider_than_keys(sizes: tuple[int, int, int, int]) -> None:
    """SBUF holds the keys of some heads, which fill whole blocks of values, too."""
    heads, keys, width, size = sizes
    compare(Case(1, heads, 2, keys, width, size, on_chip="d"))
