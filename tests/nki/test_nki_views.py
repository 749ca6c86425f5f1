"""``NkiTensor``: every view against the numpy view of the same operations on an array of element numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import Array, tile, traced

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl, trace
from trnrt.nki.machine.binding import view_array
from trnrt.nki.machine.dtypes import float32
from trnrt.nki.machine.program import MemoryRegion, Source, Storage, contiguous_strides
from trnrt.nki.sim.tensor import NkiTensor

Pair = tuple[NkiTensor, Array]
SBUF, HBM = MemoryRegion.sbuf, MemoryRegion.shared_hbm


def tensor(*shape: int, buffer: MemoryRegion = SBUF) -> NkiTensor:
    storage = Storage(0, shape, float32, buffer, "t", Source("kernel.py", 1, "kernel"))
    return NkiTensor(storage, shape, contiguous_strides(shape), 0)


def numbers(view: NkiTensor) -> Array:
    """Which elements of the storage a view shows."""
    return view_array(view, np.arange(view.storage.size))


# One step of a chain of views: (tensor, array) -> (tensor, array).
def sliced(data: st.DataObject, view: NkiTensor, array: Array) -> Pair:
    keys: list[Any] = []
    for dim, size in enumerate(view.shape):
        start = data.draw(st.integers(0, size - 1))
        stop = data.draw(st.integers(start + 1, size))
        step = data.draw(st.integers(1, 3))
        whole = slice(None) if dim else slice(0, size)
        keys.append(data.draw(st.sampled_from([slice(start, stop, step), slice(start - size, None), whole])))
    length = data.draw(st.integers(1, len(keys)))
    key = (*keys[:length], ...) if data.draw(st.booleans()) else tuple(keys[:length])
    return view[key], array[key]


def indexed(data: st.DataObject, view: NkiTensor, array: Array) -> Pair:
    """An integer, which leaves at least two dimensions on chip and one in HBM, and there the partitions."""
    dim = data.draw(st.integers(0, view.ndim - 1))
    at = data.draw(st.integers(-view.shape[dim], view.shape[dim] - 1))
    on_chip = view.buffer is SBUF
    keeps = (on_chip and dim == 0) or view.ndim == (2 if on_chip else 1)
    key = (slice(None),) * dim
    kept = at % view.shape[dim]
    got = view.select(dim, at) if data.draw(st.booleans()) else view[(*key, at)]
    return got, array[(*key, slice(kept, kept + 1) if keeps else at)]


def permuted(data: st.DataObject, view: NkiTensor, array: Array) -> Pair:
    first = 1 if view.buffer is SBUF else 0
    order = [*range(first), *data.draw(st.permutations(range(first, view.ndim)))]
    return view.permute(order), array.transpose(order)


def broadcast(data: st.DataObject, view: NkiTensor, array: Array) -> Pair:
    dim = data.draw(st.integers(1, view.ndim))
    times = data.draw(st.integers(1, 3))
    shape = (*view.shape[:dim], times, *view.shape[dim:])
    return view.expand_dim(dim).broadcast(dim - len(shape), times), np.broadcast_to(
        array[(slice(None),) * dim + (None,)], shape
    )


def squeezed(data: st.DataObject, view: NkiTensor, array: Array) -> Pair:
    ones = [dim for dim in range(2, view.ndim) if view.shape[dim] == 1]
    if not ones:
        return view, array
    dim = data.draw(st.sampled_from(ones))
    return view.squeeze_dim(dim), array.squeeze(dim)


def split(data: st.DataObject, view: NkiTensor, array: Array) -> Pair:
    dim = data.draw(st.integers(1, view.ndim - 1)) if view.ndim > 1 else 0
    if dim == 0 and view.buffer is SBUF:
        return view, array
    size = view.shape[dim]
    inner = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    shape = (*view.shape[:dim], size // inner, inner, *view.shape[dim + 1 :])
    return view.reshape_dim(dim, data.draw(st.sampled_from([(size // inner, inner), (-1, inner)]))), array.reshape(
        shape
    )


def reshaped(data: st.DataObject, view: NkiTensor, array: Array) -> Pair:
    """Legal where, and only where, numpy needs no copy."""
    first = 1 if view.buffer is SBUF else 0
    left, shape = math.prod(view.shape[first:]), list(view.shape[:first])
    while left > 1 and len(shape) < 5:
        size = data.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
        shape.append(size)
        left //= size
    shape.append(left)
    wanted = array.reshape(shape)
    if np.may_share_memory(wanted, array):
        return view.reshape(tuple(shape)), wanted
    with pytest.raises(KernelError, match="without a copy"):
        view.reshape(tuple(shape))
    return view, array


def flattened(data: st.DataObject, view: NkiTensor, array: Array) -> Pair:
    start = data.draw(st.integers(min(1, view.ndim - 1), view.ndim - 1))
    end = data.draw(st.integers(start, view.ndim - 1))
    if start == 0 and view.buffer is SBUF:
        return view, array
    wanted = array.reshape((*array.shape[:start], -1, *array.shape[end + 1 :]))
    if np.may_share_memory(wanted, array):
        return view.flatten_dims(start, end - view.ndim), wanted
    with pytest.raises(KernelError, match="not contiguous"):
        view.flatten_dims(start, end)
    return view, array


STEPS: list[Callable[[st.DataObject, NkiTensor, Array], Pair]] = [
    sliced,
    indexed,
    permuted,
    broadcast,
    squeezed,
    split,
    reshaped,
    flattened,
]


@settings(max_examples=400)
@given(st.data())
@pytest.mark.parametrize("buffer", [SBUF, HBM])
def test_chains_of_views_show_what_numpy_shows(buffer: MemoryRegion, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple))
    view = tensor(*shape, buffer=buffer)
    array = np.arange(view.size).reshape(shape)
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=5)):
        if view.ndim < 6 and view.size:
            view, array = step(data, view, array)
    assert view.shape == array.shape
    assert view.size == array.size
    assert view.ndim == array.ndim
    np.testing.assert_array_equal(numbers(view), array)
    for size, stride, step_bytes in zip(array.shape, view.strides, array.strides, strict=True):
        assert size <= 1 or stride == step_bytes // array.itemsize
    assert view.get_pattern() == [list(pair) for pair in zip(view.strides, view.shape, strict=True)]
    assert not view.is_indirect()
    first = 1 if buffer is SBUF else 0
    assert view.is_contiguous() == array[(0,) * first].flags.c_contiguous


@settings(max_examples=300)
@given(st.data())
@pytest.mark.parametrize("buffer", [SBUF, HBM])
def test_access_patterns_show_what_as_strided_shows(buffer: MemoryRegion, data: st.DataObject) -> None:
    parent = tensor(4, 5, 6, buffer=buffer)[1:, 1:]
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    strides = data.draw(st.lists(st.integers(-8, 8), min_size=len(counts), max_size=len(counts)))
    if buffer is SBUF:
        strides[0] = 30
    offset = data.draw(st.one_of(st.none(), st.integers(-40, 60)))
    pattern = [list(pair) for pair in zip(strides, counts, strict=True)]
    start = parent.offset + (offset or 0)
    elements = np.full(counts, start)
    for dim, (stride, count) in enumerate(pattern):
        elements += (np.arange(count) * stride).reshape([-1 if d == dim else 1 for d in range(len(counts))])
    legal = elements.min() >= 0 and elements.max() < 120
    if buffer is SBUF:
        legal = legal and all(row.min() // 30 == row.max() // 30 for row in elements)
    if not legal:
        with pytest.raises(KernelError, match=r"memset: dst, .* from element"):
            parent.ap(pattern, offset).check_bounds("memset", "dst")
        return
    view = parent.ap(pattern, offset)
    np.testing.assert_array_equal(numbers(view), elements)
    assert view.offset == start
    assert view.get_pattern() == pattern


def test_the_guide_s_examples() -> None:
    """nki-language-guide, Tensor Indexing, and nki-aps."""
    t = tensor(64, 64, 64)
    assert t[0, 0, 10].shape == (1, 1)
    assert t[:, 0].shape == (64, 64)
    assert t[:, 0, 10].shape == (64, 1)
    assert t[0:64, 0, 0:64].shape == (64, 64)
    assert t[:, :, ::2].shape == (64, 64, 32)
    assert t[...].shape == (64, 64, 64)
    assert t[0, ..., :].shape == (1, 64, 64)
    assert t[0, ...][:, 0:32, :].shape == (1, 32, 64)
    assert tensor(4, 128, 32, buffer=HBM)[0, :, :].shape == (128, 32)
    u = tensor(128, 64).slice(dim=1, start=8, end=24)
    assert u.get_pattern() == [[64, 128], [1, 16]]
    assert u.offset == 8
    v = tensor(128, 64).ap(pattern=[[64, 128], [1, 16]], offset=8)
    assert (v.get_pattern(), v.offset) == (u.get_pattern(), u.offset)
    w = tensor(128, 256)
    assert w.ap([[256, 128], [2, 128]]).ap([[256, 128], [1, 64]]).get_pattern() == [[256, 128], [1, 64]]


def test_attributes() -> None:
    t = tensor(128, 64)
    assert (t.shape, t.strides, t.offset, t.ndim, t.size, t.name) == ((128, 64), (64, 1), 0, 2, 8192, "t")
    assert t.dtype == nl.float32
    assert t.buffer == nl.sbuf
    assert str(t) == "(128, 64) float32 sbuf view of 't'"


def test_zero_length_slices_exist() -> None:
    assert tensor(4, 6)[:, 3:3].shape == (4, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[0:5], "slice 0:5 in steps of 1 is outside dimension 0, which has 4 elements"),
        (lambda t: t[:, 4:2], "slice 4:2 in steps of 1 is outside dimension 1"),
        (lambda t: t[:, ::-1], "slice : in steps of -1"),
        (lambda t: t[:, 0.5:2], "float"),
        (lambda t: t[4], "index 4 is outside dimension 0, which has 4 elements"),
        (lambda t: t[:, -6], "index -6 is outside dimension 1"),
        (lambda t: t[:, None], "index None of dimension 1 is not an integer"),
        (lambda t: t[0, 0, 0, 0], "4 indices for a tensor of 3 dimensions"),
        (lambda t: t.slice(1, 2, 2), r"slice\(1, 2, 2, 1\) is outside dimension 1"),
        (lambda t: t.slice(3, 0, 1), r"slice\(\): there is no dimension 3"),
        (lambda t: t.select(-4, 0), r"select\(\): there is no dimension -4"),
        (lambda t: t.permute((0, 1)), r"permute\(\(0, 1\)\) is not an order of the 3 dimensions"),
        (lambda t: t.permute((1, 0, 2)), "moves the partition dimension"),
        (lambda t: t.broadcast(1, 2), "dimension 1 is 5, not 1"),
        (lambda t: t[0].broadcast(0, 2), "works on free dimensions"),
        (lambda t: t.expand_dim(0), "works on free dimensions"),
        (lambda t: t.expand_dim(5), r"expand_dim\(\): there is no dimension 5"),
        (lambda t: t.squeeze_dim(1), "dimension 1 is 5, not 1"),
        (lambda t: t[0].squeeze_dim(-3), "works on free dimensions"),
        (lambda t: t.reshape_dim(0, (2, 2)), "works on free dimensions"),
        (lambda t: t.reshape_dim(1, (2, 2)), r"shape \(2, 2\) does not hold the 5 elements"),
        (lambda t: t.reshape((4, -1, -1)), r"shape \(4, -1, -1\) does not hold the 120 elements"),
        (lambda t: t.reshape((4, -5, -6)), r"shape \(4, -5, -6\) does not hold"),
        (lambda t: t.reshape((2, 60)), "the partition dimension must stay 4"),
        (lambda t: t.permute((0, 2, 1)).reshape((4, 30)), "does not allow it without a copy"),
        (lambda t: t.flatten_dims(0, 1), "works on free dimensions"),
        (lambda t: t.flatten_dims(2, 1), "not contiguous"),
        (lambda t: t.permute((0, 2, 1)).flatten_dims(1, 2), "not contiguous"),
        (lambda t: t.ap([[15, 4], [1, 15]]), r"partition stride 15 .* it must be 30"),
        (lambda t: t.ap([[30, 4], [1, 0]]), "counts must be at least 1"),
    ],
)
def test_views_that_do_not_exist(change: Callable[[NkiTensor], Any], words: str) -> None:
    with pytest.raises((KernelError, TypeError), match=words):
        change(tensor(4, 5, 6))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [([[30, 4], [1, 31]], "ends outside"), ([[30, 3], [1, 31]], "runs from one partition into the next")],
)
def test_patterns_beyond_the_storage_fail_where_they_are_used(pattern: list[list[int]], words: str) -> None:
    def body(use: bool) -> None:
        far = tile(4, 30).ap(pattern)
        nisa.memset(dst=far[0:3, 0:30], value=0.0)
        if use:
            nisa.memset(dst=far, value=0.0)

    assert len(traced(lambda: body(False)).instructions) == 1
    with pytest.raises(KernelError, match=f"memset: dst, .* from element 0 on, {words}"):
        traced(lambda: body(True))


def test_a_result_beyond_its_storage() -> None:
    with pytest.raises(KernelError, match=r"its result, .* from element 0 on, ends outside"):
        trace(lambda: tile(4, 6, buffer=nl.shared_hbm).ap([[6, 5], [1, 6]]), target="trn2")


def test_negative_dimensions_count_from_the_end() -> None:
    t = tensor(4, 5, 6)
    assert t.select(-1, 0).shape == (4, 5)
    assert t.slice(-1, 1, 3).shape == (4, 5, 2)
    assert t.expand_dim(-1).shape == (4, 5, 6, 1)
    assert t[:, :, 0:1].squeeze_dim(-1).shape == (4, 5)
    assert t.reshape_dim(-1, (2, 3)).shape == (4, 5, 2, 3)
    assert t.flatten_dims(1, -1).shape == (4, 30)


def test_a_trivial_split_of_the_partitions_is_none() -> None:
    assert tensor(4, 5).reshape_dim(0, (4,)).shape == (4, 5)
    assert tensor(4, 5).reshape_dim(0, (-1,)).shape == (4, 5)
    assert tensor(4, 6, buffer=HBM).reshape_dim(0, (2, 2)).shape == (2, 2, 6)


def test_what_covers_its_storage() -> None:
    t = tensor(4, 5, 6)
    for whole in (t, t.permute((0, 2, 1)), t.reshape((4, 30)), t.reshape((4, 1, 2, 15)), t.ap([[30, 4], [1, 30]])):
        assert whole.covers_storage()
    overlapping = t.ap([[30, 4], [5, 5], [1, 6]])  # as many elements, but some twice
    for part in (t[:, 1:], t[0:3], overlapping, t[:, 0:1, :].squeeze_dim(1).expand_dim(1).broadcast(1, 5)):
        assert not part.covers_storage()


@pytest.mark.parametrize("dtype", ["float32", nl.float32, "int32", nl.bfloat16], ids=str)
def test_a_view_of_the_storages_own_dtype_is_a_plain_view(dtype: Any) -> None:
    """Reading a tile as another dtype and back, or as what it is, is no cast: it costs and orders as the slice does."""
    whole = tensor(128, 64)
    part = whole[:, 8:24]
    there = [part.view(dtype).view(float32), part.ap([[64, 128], [1, 16]], dtype=float32)]
    wide = part.view(dtype)
    there.append(wide.ap([[64, 128], [1, 16]], dtype=float32))
    for view in there:
        assert (view.cast, view.shape, view.strides, view.offset) == (None, part.shape, part.strides, part.offset)
    assert whole.ap([[64, 128], [1, 64]], dtype=float32).covers_storage()
