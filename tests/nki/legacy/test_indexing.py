"""Index expressions, masks and the windows that they select, against numpy's own advanced indexing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_kernels import nl, numbers, run

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Index, Mask, regions
from trnrt.nki.legacy.launching import jit
from trnrt.nki.legacy.windows import select
from trnrt.nki.machine.dtypes import Array, float32
from trnrt.nki.machine.program import MemoryRegion, Source, Storage
from trnrt.nki.sim.tensor import NkiTensor

HBM, SBUF = MemoryRegion.shared_hbm, MemoryRegion.sbuf


def tensor(shape: tuple[int, ...], buffer: MemoryRegion = HBM) -> NkiTensor:
    storage = Storage(0, shape, float32, buffer, "t", Source("kernel.py", 1, "kernel"))
    return NkiTensor(storage, shape, storage.strides, 0)


def elements(view: NkiTensor) -> Array:
    """The numbers of a view's elements in its storage."""
    found: Array = np.asarray(view.offset)
    for size, stride in zip(view.shape, view.strides, strict=True):
        found = np.add.outer(found, np.arange(size) * stride)
    return found


def all_elements(shape: tuple[int, ...]) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape)


# -- Expressions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(5,), (2, 9), (0, 20, 3), (9, 0, -2), (1,)], ids=str)
def test_arange(bounds: tuple[int, ...]) -> None:
    made = nl.arange(*bounds)
    assert made.values.tolist() == list(range(*bounds))
    assert made[:, None].shape == (made.shape[0], 1)
    assert made[None, :, None].shape == (1, made.shape[0], 1)


def test_mgrid() -> None:
    grid = nl.mgrid[0:4, 2:8:2, 0:3]
    wanted = np.mgrid[0:4, 2:8:2, 0:3]
    for one, other in zip(grid, wanted, strict=True):
        np.testing.assert_array_equal(np.broadcast_to(one.values, other.shape), other)
    assert grid.p is grid[0]
    assert grid.x is grid[1] and grid.y is grid[2]
    with pytest.raises(AttributeError, match=r"this nl\.mgrid has 3 dimensions, and no \.z"):
        _ = grid.z
    with pytest.raises(KernelError, match="takes slices with an end"):
        nl.mgrid[0:4, 3]


STEPS: list[Callable[[Any, Any, int], Any]] = [
    lambda x, y, number: x + y,
    lambda x, y, number: x * number - y,
    lambda x, y, number: number - x,
    lambda x, y, number: x // number,
    lambda x, y, number: x % number,
    lambda x, y, number: -x,
]


@given(st.data())
def test_expressions_compute_as_arrays_do(data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 5)) for _ in range(3)]
    made: list[Any] = list(nl.mgrid[0 : sizes[0], 0 : sizes[1], 0 : sizes[2]])
    arrays: list[Any] = [one.values for one in made]
    for _ in range(data.draw(st.integers(1, 6))):
        a, b = (data.draw(st.integers(0, len(made) - 1)) for _ in range(2))
        step, number = data.draw(st.sampled_from(STEPS)), data.draw(st.integers(1, 4))
        made.append(step(made[a], made[b], number))
        arrays.append(step(arrays[a], arrays[b], number))
    np.testing.assert_array_equal(made[-1].values, arrays[-1])
    for relation in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
        mask, wanted = getattr(made[-1], relation)(made[0]), getattr(arrays[-1], relation)(arrays[0])
        np.testing.assert_array_equal(mask.values, wanted)
        np.testing.assert_array_equal((~mask | (made[1] < 2)).values, ~wanted | (arrays[1] < 2))
        np.testing.assert_array_equal((mask & (made[1] < 2)).values, wanted & (arrays[1] < 2))


def test_wholes_of_an_expression_keep_constant_steps() -> None:
    i = nl.arange(8)[:, None]
    assert (2 * i + 1).steps == (2, 0)
    assert ((4 * i) // 2).steps == (2, 0)
    assert (i % 3).steps is None
    assert (i // 2).steps is None
    with pytest.raises(ZeroDivisionError):
        _ = i % 0


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda i: list(i), "is no Python range"),
        (lambda i: range(i), "is not one integer"),
        (lambda i: i + 0.5, "can't be combined with a float; only with integers"),
        (lambda i: i < "a", "can't be combined with a str"),
        (lambda i: (i < 2) & 1.5, "a mask can't be combined with a float"),
        (lambda i: bool(i < 2), "is no Python condition"),
        (lambda i: nl.arange(4, 4), "no integer lies between these bounds"),
        (lambda i: i.__setitem__((0, 0), 1), "can't be assigned to"),
    ],
)
def test_mistakes_of_expressions_are_refused(use: Callable[[Index], Any], says: str) -> None:
    with pytest.raises((KernelError, TypeError, AttributeError), match=says):
        use(nl.arange(6)[:, None])


# -- Masks -------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_regions_cover_a_mask_once(rows: int, columns: int, data: st.DataObject) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    values = np.array(bits).reshape(rows, columns)
    covered = np.zeros((rows, columns), int)
    for bounds in regions(Mask(values), (rows, columns)):
        covered[... if bounds is None else tuple(slice(first, end) for first, end in bounds)] += 1
    np.testing.assert_array_equal(covered, values)


def test_masks_may_be_bools_and_know_their_limit() -> None:
    assert regions(None, (4, 4)) == regions(True, (4, 4)) == [None]
    assert regions(False, (4, 4)) == regions(nl.arange(4)[:, None] > 9, (4, 4)) == []
    i, j = nl.arange(64)[:, None], nl.arange(64)[None, :]
    with pytest.raises(KernelError, match="mask has 2048 rectangles of elements; 1024 are possible"):
        regions((i + j) % 2 < 1, (64, 64))
    with pytest.raises(
        KernelError,
        match="mask is a tile, whose numbers only the device knows; it must be a condition on index expressions",
    ):
        run(lambda x: nl.exp(x, mask=x > 1), numbers(0, 4, 4))


# -- Windows -----------------------------------------------------------------------------------------------


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Integers, and index expressions within the dimensions, each along some of the dimensions of a grid."""
    grid = [draw(st.integers(1, 3)) for _ in range(3)]
    axes = [nl.arange(size)[tuple(slice(None) if k == at else None for k in range(3))] for at, size in enumerate(grid)]
    found: list[Any] = []
    for size in shape[: draw(st.integers(1, len(shape)))]:
        if draw(st.booleans()):
            found.append(draw(st.integers(-size, size - 1)))
            continue
        expression, room = None, size - 1
        for axis, count in zip(axes, grid, strict=True):
            step = draw(st.integers(0, room // (count - 1) if count > 1 else 2))
            room -= step * (count - 1)
            expression = axis * step if expression is None else expression + axis * step
        assert expression is not None
        found.append(expression + draw(st.integers(0, room)))
    return tuple(found)


def of_numpy(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.values if isinstance(one, Index) else one for one in key)


@given(st.data())
def test_windows_in_hbm_are_those_of_numpy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    key = data.draw(keys(shape))
    found, beyond = select(tensor(shape), key)
    wanted = all_elements(shape)[of_numpy(key)]
    assert beyond == ()
    assert elements(found).ravel().tolist() == np.asarray(wanted).ravel().tolist()
    if any(isinstance(one, Index) for one in key):
        assert found.shape == wanted.shape


@given(st.data())
def test_windows_on_chip_keep_their_partitions_first(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(2, 8), min_size=2, max_size=4)))
    first, end = sorted(data.draw(st.lists(st.integers(0, shape[0]), min_size=2, max_size=2, unique=True)))
    rest = data.draw(keys(shape[1:]))
    rows = nl.arange(first, end)[:, None, None, None]
    rest = tuple(one[None] if isinstance(one, Index) else one for one in rest)
    found, _ = select(tensor(shape, SBUF), (rows, *rest))
    wanted = all_elements(shape)[of_numpy((rows, *rest))]
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(elements(found), wanted)


@given(st.data())
def test_slices_are_those_of_numpy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    key: list[Any] = []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        key.append(
            data.draw(st.sampled_from([slice(start, size), slice(start, start + 1), slice(None, None, 2), start]))
        )
    found, _ = select(tensor(shape), tuple(key))
    assert elements(found).ravel().tolist() == np.asarray(all_elements(shape)[tuple(key)]).ravel().tolist()


P, F = nl.arange(4)[:, None], nl.arange(6)[None, :]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ((P, F, 0), "3 indices for a tensor of 2 dimensions"),
        ((F, P), "partitions of .* are indexed along dimension 1 or later"),
        ((nl.arange(4), 0), r"is an nl\.arange of one dimension; a tile has two or more"),
        ((P, slice(0, 3)), "are slices and index expressions at once"),
        ((slice(None), F), "are slices and index expressions at once"),
        ((P, F % 4), "does not grow by constant steps"),
        ((P, 9), "index 9 is outside dimension 1, which has 6 elements"),
        ((slice(0, 4, -1), 0), "in steps of -1 is outside dimension 0"),
        ((P, 1.5), "is not an integer"),
    ],
)
def test_mistakes_of_windows_are_refused(key: Any, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        select(tensor((4, 6), SBUF), key)


def test_indices_that_leave_a_tensor_are_refused_unless_a_mask_cuts_them_off() -> None:
    x = numbers(0, 6, 10)
    rows, columns = nl.arange(8)[:, None], nl.arange(4)[None, :] * 3 - 2

    def read(mask: Any) -> Any:
        @jit
        def kernel(t: Any) -> Any:
            out = nl.ndarray((8, 4), dtype=t.dtype, buffer=nl.shared_hbm)
            nl.store(out, nl.load(t[rows, columns], mask=mask))
            return out

        return kernel(x)

    with pytest.raises(KernelError, match=r"indices 0 to 7 of dimension 0 leave .*: it has 6 elements"):
        read(columns >= 0)
    with pytest.raises(KernelError, match=r"indices -2 to 7 of dimension 1 leave .*: it has 10 elements"):
        read(rows < 6)
    got = read((rows < 6) & (columns >= 0))
    np.testing.assert_array_equal(got[:6, 1:], x[:, [1, 4, 7]])
    assert np.isnan(got[6:]).all() and np.isnan(got[:, 0]).all()


def test_parts_of_a_window_that_leaves_its_tensor() -> None:
    x = numbers(0, 6, 10)

    @jit
    def kernel(t: Any) -> Any:
        out = nl.ndarray((8, 4), dtype=t.dtype, buffer=nl.shared_hbm)
        rows, columns = nl.arange(8)[:, None], nl.arange(4)[None, :]
        window = t[rows, columns]
        nl.store(out, nl.load(window[...], mask=rows < 6))
        return window[0:6]

    with pytest.raises(KernelError, match="indices 0 to 7 of dimension 0 leave"):
        kernel(x)


def test_a_window_that_leaves_its_tensor_is_not_turned_around() -> None:
    @jit
    def kernel(t: Any) -> Any:
        out = nl.ndarray((6, 4), dtype=t.dtype, buffer=nl.shared_hbm)
        rows, columns = nl.arange(6)[:, None], nl.arange(4)[None, :]
        window, inside = nl.load(t)[rows, columns + 7], (columns > 0) & (columns < 3)
        nl.store(out[rows, columns], nl.copy(window[rows, 3 - columns], mask=inside), mask=inside)
        return out

    with pytest.raises(KernelError, match="indices 7 to 10 of dimension 1 leave"):
        kernel(numbers(0, 6, 10))


def test_block_dimensions() -> None:
    x = numbers(1, 3, 2, 16, 6)

    @jit
    def kernel(t: Any) -> Any:
        out = nl.ndarray((3, 2, 16, 6), dtype=t.dtype, buffer=nl.shared_hbm)
        blocks = nl.ndarray((3, 2, nl.par_dim(16), 6), dtype=t.dtype)
        rows, columns = nl.mgrid[0:16, 0:3]
        assert blocks.shape == (3, 2, 16, 6) and blocks[1].shape == (2, 16, 6) and blocks[1, 0].shape == (16, 6)
        for i in nl.affine_range(3):
            for k in nl.affine_range(2):
                blocks[i, k, rows, columns] = nl.load(t[i, k, rows, columns])
                blocks[i, k][:, 3:6] = nl.load(t[i, k, 0:16, 3:6])
        blocks[2] = 0.5
        for i in range(3):
            for k in range(2):
                nl.store(out[i, k], blocks[i, k])
        return out

    wanted = x.copy()
    wanted[2] = 0.5
    np.testing.assert_array_equal(kernel(x), wanted)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ((3, 0), "index 3 is outside block dimension 0, which has 3 blocks"),
        ((P, 0), "blocks are separate tiles: give an integer"),
        ((0, 0, P, slice(0, 2)), "are slices and index expressions at once"),
    ],
)
def test_mistakes_of_blocks_are_refused(key: Any, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        run(lambda x: nl.copy(nl.zeros((3, 2, nl.par_dim(4), 6), nl.float32)[key]), numbers(0, 4, 6))
