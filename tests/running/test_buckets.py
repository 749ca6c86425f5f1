"""Buckets: how rows are covered, how they are chosen, and what is refused."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnrt.errors import OptionError
from trnrt.running.buckets import (
    DEFAULT_BUCKETS,
    check_buckets,
    choose,
    cover,
    divide,
    parse_buckets,
    parse_distribution,
    slices_note,
    worker_buckets,
)


@given(st.integers(1, 5000), st.sets(st.integers(1, 300), min_size=1, max_size=6))
def test_rows_are_covered_once(rows: int, sizes: set[int]) -> None:
    buckets = check_buckets(sizes)
    slices = cover(rows, buckets)
    assert [row for s in slices for row in range(s.start, s.start + s.rows)] == list(range(rows))
    assert all(s.bucket in buckets and s.rows <= s.bucket for s in slices)
    assert all(s.rows == s.bucket == buckets[-1] for s in slices[:-1])
    smaller = [size for size in buckets if size < slices[-1].bucket]
    assert not smaller or smaller[-1] < slices[-1].rows


@pytest.mark.parametrize(("rows", "workers", "sizes"), [(8, 4, [2] * 4), (7, 4, [2] * 4), (3, 8, [1] * 3)])
def test_workers_get_as_much_as_each_other(rows: int, workers: int, sizes: list[int]) -> None:
    assert [s.bucket for s in cover(rows, worker_buckets(rows, DEFAULT_BUCKETS, workers))] == sizes


@given(st.integers(1, 2000), st.sets(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 4))
def test_parts_of_a_batch_are_divided_as_the_whole(rows: int, sizes: set[int], workers: int) -> None:
    """So that a server that computes a large request in parts gives the numbers of one run."""
    buckets = check_buckets(sizes)
    unit = buckets[-1] * workers
    parts = [divide(min(unit, rows - start), buckets, workers) for start in range(0, rows, unit)]
    whole = divide(rows, buckets, workers)
    assert [(s.rows, s.bucket) for part in parts for s in part] == [(s.rows, s.bucket) for s in whole]
    assert [row for s in whole for row in range(s.start, s.start + s.rows)] == list(range(rows))
    if workers == 1:
        assert whole == cover(rows, buckets)


def test_a_rest_is_shared_by_all_workers() -> None:
    slices = divide(70, DEFAULT_BUCKETS[:6], 2)
    assert [(s.start, s.rows, s.bucket) for s in slices] == [(0, 32, 32), (32, 32, 32), (64, 4, 4), (68, 2, 4)]
    assert slices_note(slices) == "70 rows ran in 4 slices (2 of 32, 2 of 4), the last one padded with 2 rows"


def test_one_worker_and_few_buckets() -> None:
    assert worker_buckets(5, DEFAULT_BUCKETS, 1) == DEFAULT_BUCKETS
    assert [s.bucket for s in cover(1000, worker_buckets(1000, (4, 128), 2))] == [128] * 8


def test_default_buckets() -> None:
    assert [s.bucket for s in cover(5, DEFAULT_BUCKETS)] == [8]
    assert [(s.rows, s.bucket) for s in cover(300, DEFAULT_BUCKETS)] == [(128, 128), (128, 128), (44, 64)]


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-1,4", "1.5"])
def test_what_is_no_bucket(text: str) -> None:
    with pytest.raises(OptionError, match="bucket"):
        parse_buckets(text)


@pytest.mark.parametrize("text", ["", "1:x", "0:1", "1:0", "1:-2", "1:inf", "1:nan"])
def test_what_is_no_distribution(text: str) -> None:
    with pytest.raises(OptionError, match="expected batches"):
        parse_distribution(text)


def test_parsing() -> None:
    assert parse_buckets("8,1,4,1") == (1, 4, 8)
    assert parse_distribution("1:0.5,8,1:0.25") == {1: 0.75, 8: 1.0}


def linear(size: int) -> float:
    return 20.0 + 3.0 * size


def expected_us(buckets: tuple[int, ...], expected: dict[int, float]) -> float:
    weight = sum(expected.values())
    return sum(w * linear(min(b for b in buckets if b >= size)) for size, w in expected.items()) / weight


@given(st.dictionaries(st.integers(1, 100), st.floats(0.1, 10), min_size=1, max_size=6), st.integers(1, 4))
def test_no_other_buckets_are_better(expected: dict[int, float], most: int) -> None:
    chosen = choose(expected, linear, most=most, least_gain=0.0)
    assert len(chosen) <= most and max(expected) in chosen
    for count in range(1, len(chosen) + 1):
        for other in combinations(sorted(expected), count):
            if max(expected) in other:
                assert expected_us(chosen, expected) <= expected_us(other, expected) * (1 + 1e-9)


def test_a_bucket_that_saves_little_is_left_out() -> None:
    assert choose({63: 1.0, 64: 1.0}, linear) == (64,)
    assert choose({1: 1.0, 64: 1.0}, linear) == (1, 64)


def test_a_larger_batch_may_be_faster() -> None:
    assert choose({3: 1.0}, lambda size: 10.0 if size == 4 else 12.0) == (4,)


def test_each_size_is_timed_once() -> None:
    asked: list[int] = []

    def latency(size: int) -> float:
        asked.append(size)
        return linear(size)

    choose(dict.fromkeys(range(1, 20), 1.0), latency)
    assert len(asked) == len(set(asked))
