"""Views against numpy's own strides, and regions of element numbers against the arrays they describe."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from trnrt.operators.arranging import affine_regions
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.views import View, merge_dims

Array = NDArray[Any]
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def elements(view: View) -> Array:
    """What the view shows of a stored tensor that holds its own element numbers."""
    stored = np.arange(view.size, dtype=np.int64)
    return as_strided(stored[view.offset :], view.shape, tuple(8 * s for s in view.strides))


def change(data: st.DataObject, view: View, array: Array) -> tuple[View, Array]:
    """One change that both know, drawn."""
    kind = data.draw(st.sampled_from(["permute", "slice", "broadcast", "reshape"]))
    rank = len(view.shape)
    if kind == "permute":
        order = tuple(data.draw(st.permutations(range(rank))))
        return view.permute(order), array.transpose(order)
    if kind == "slice":
        axis = data.draw(st.integers(0, rank - 1))
        chosen = data.draw(st.slices(view.shape[axis]))
        start, stop, step = chosen.indices(view.shape[axis])
        count = len(range(start, stop, step))
        if not count:
            return view, array
        index = [slice(None)] * rank
        index[axis] = chosen
        return view.slice(axis, start, count, step), array[tuple(index)]
    if kind == "broadcast":
        shape = (2, *(data.draw(st.integers(1, 3)) if n == 1 else n for n in view.shape))
        return view.broadcast(shape), np.broadcast_to(array, shape)
    shape = tuple(data.draw(st.permutations([*view.shape, 1])))
    other = view.reshape(shape)
    return (view, array) if other is None else (other, array.reshape(shape))


@given(st.data(), SIZES)
def test_changes_are_numpys(data: st.DataObject, shape: tuple[int, ...]) -> None:
    view = View.whole("x", shape)
    array = np.arange(prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(0, 4))):
        view, array = change(data, view, array)
    assert view.shape == array.shape
    np.testing.assert_array_equal(elements(view), array)
    in_order = array.size == view.size and bool(np.all(array.reshape(-1) == np.arange(array.size)))
    assert view.is_whole == in_order
    order = view.order
    if order is not None:
        stored = [view.shape[order.index(k)] for k in range(len(order))]
        np.testing.assert_array_equal(np.arange(view.size).reshape(stored).transpose(order), array)


@given(SIZES, st.data())
def test_a_dense_tensor_takes_any_shape(shape: tuple[int, ...], data: st.DataObject) -> None:
    wanted = tuple(data.draw(st.permutations(shape)))
    assert View.whole("x", shape).reshape(wanted) == View.whole("x", wanted) or 1 in wanted


def test_a_transposed_matrix_has_no_other_shape() -> None:
    assert View.whole("x", (3, 4)).permute((1, 0)).reshape((12,)) is None


@pytest.mark.parametrize(
    ("shape", "strides", "merged"),
    [
        ((2, 3, 4), (12, 4, 1), ((24,), ((1,),))),
        ((2, 3, 4), (24, 4, 1), ((2, 12), ((24, 1),))),
        ((2, 1, 4), (4, 99, 1), ((8,), ((1,),))),
        ((1, 1), (7, 7), ((), ((),))),
    ],
)
def test_merge_dims(shape: tuple[int, ...], strides: tuple[int, ...], merged: object) -> None:
    assert merge_dims(shape, (strides,)) == merged


@pytest.mark.parametrize(
    "numbers",
    [
        weights.conv_weight(np.arange(1, 1 + 7 * 130 * 6, dtype=np.float32).reshape(7, 130, 2, 3)),
        weights.conv_weight(np.arange(1, 1 + 8 * 3 * 4, dtype=np.float32).reshape(8, 3, 2, 2), groups=2, together=2),
        weights.linear_weight(np.arange(1, 1 + 300 * 5, dtype=np.float32).reshape(300, 5)),
        weights.columns(np.arange(1, 1 + 129, dtype=np.float32)),
        np.zeros((3, 2), np.float32),
    ],
)
def test_regions_are_the_array(numbers: Array) -> None:
    numbers = numbers.astype(np.int64)
    built = np.zeros_like(numbers)
    stored = np.arange(1, max(2, int(numbers.max()) + 1))
    for corner, shape, offset, strides in affine_regions(numbers):
        region = tuple(slice(c, c + n) for c, n in zip(corner, shape, strict=True))
        assert not built[region].any()
        built[region] = as_strided(stored[offset:], shape, tuple(8 * s for s in strides))
    np.testing.assert_array_equal(built, numbers)
