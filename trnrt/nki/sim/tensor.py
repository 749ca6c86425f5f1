"""``NkiTensor``: a strided view on a piece of the simulated memory, with the view methods of NKI 0.6.

A view costs nothing on the device; all of this happens while the kernel is traced. Nothing here knows data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

from trnrt.errors import KernelError
from trnrt.nki.machine.program import View


class NkiTensor(View):
    """A tensor of a kernel: ``shape`` and ``strides`` in elements, ``offset``, ``dtype``, ``buffer``.

    On-chip tensors (SBUF, PSUM) keep the partition dimension first and have at least two dimensions.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name given to ``nl.ndarray``, or ""."""
        return self.storage.name

    @property
    def on_chip(self) -> bool:
        return self.storage.on_chip

    def is_contiguous(self) -> bool:
        """Whether the view's elements are dense in row-major order (on chip: within each partition)."""
        expected = 1
        last = 1 if self.on_chip else 0
        for size, stride in zip(reversed(self.shape[last:]), reversed(self.strides[last:]), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def is_indirect(self) -> bool:
        """Whether addresses are resolved at run time; views of this simulator never are."""
        return False

    def get_pattern(self) -> list[list[int]]:
        """The access pattern as ``[[stride, count], ...]``, in the order of ``shape``."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def __getitem__(self, key: Any) -> NkiTensor:
        """NumPy-style integers, slices and ``...``. An integer on an on-chip partition dimension keeps it at size 1."""
        keys = _expand_key(key, self.ndim)
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for dim, item in enumerate(keys):
            size, stride = self.shape[dim], self.strides[dim]
            if isinstance(item, slice):
                start, count, step = _resolve_slice(item, dim, size)
                offset += start * stride
                shape.append(count)
                strides.append(stride * step)
                continue
            offset += _resolve_index(item, dim, size) * stride
            if self._keeps_dimension(dim, keys, len(shape)):
                shape.append(1)
                strides.append(stride)
        return NkiTensor(self.storage, tuple(shape), tuple(strides), offset)

    def _keeps_dimension(self, dim: int, keys: Sequence[Any], kept: int) -> bool:
        """On-chip results stay at least 2-D (HBM: 1-D), so an integer may keep its dimension at size 1."""
        if self.on_chip and dim == 0:
            return True
        rest_kept = sum(isinstance(item, slice) for item in keys[dim + 1 :])
        return dim == self.ndim - 1 and kept + rest_kept < (2 if self.on_chip else 1)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements ``start`` to ``end`` (exclusive) of one dimension."""
        dim = self._dim(dim, "slice")
        if not 0 <= start < end <= self.shape[dim] or step < 1:
            raise KernelError(f"slice({dim}, {start}, {end}, {step}) is outside dimension {dim} of {self}")
        return self[(slice(None),) * dim + (slice(start, end, step),)]

    def select(self, dim: int, index: int) -> NkiTensor:
        """One element of a dimension, which disappears."""
        return self[(slice(None),) * self._dim(dim, "select") + (index,)]

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """The dimensions in another order; on chip the partition dimension stays first."""
        if sorted(dims) != list(range(self.ndim)):
            raise KernelError(f"permute({tuple(dims)}) is not an order of the {self.ndim} dimensions of {self}")
        if self.on_chip and dims[0] != 0:
            raise KernelError(f"permute({tuple(dims)}) moves the partition dimension of {self}; nc_transpose does that")
        return self._with([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Repeat a dimension of size 1 (stride 0)."""
        dim = self._free_dim(dim, "broadcast")
        if self.shape[dim] != 1 or size < 1:
            raise KernelError(f"broadcast({dim}, {size}) of {self}: dimension {dim} is {self.shape[dim]}, not 1")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._with(shape, strides)

    def expand_dim(self, dim: int) -> NkiTensor:
        """Insert a dimension of size 1 before ``dim``."""
        dim = self._free_dim(dim, "expand_dim", self.ndim + 1)
        shape, strides = list(self.shape), list(self.strides)
        strides.insert(dim, shape[dim] * strides[dim] if dim < self.ndim else 1)
        shape.insert(dim, 1)
        return self._with(shape, strides)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Remove a dimension of size 1."""
        dim = self._free_dim(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            raise KernelError(f"squeeze_dim({dim}) of {self}: dimension {dim} is {self.shape[dim]}, not 1")
        return self._replaced(dim, dim + 1, [], [])

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """Split one dimension; one size may be -1."""
        dim = self._dim(dim, "reshape_dim")
        sizes = _infer(tuple(shape), self.shape[dim], self)
        if len(sizes) != 1:
            self._free_dim(dim, "reshape_dim")
        strides = [self.strides[dim] * prod(sizes[k + 1 :]) for k in range(len(sizes))]
        return self._replaced(dim, dim + 1, sizes, strides)

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Merge the dimensions ``start_dim`` to ``end_dim`` (inclusive), which must be contiguous."""
        start = self._free_dim(start_dim, "flatten_dims")
        end = self._dim(end_dim, "flatten_dims") + 1
        merged = _merge(self.shape[start:end], self.strides[start:end])
        if merged is None or start >= end:
            raise KernelError(f"flatten_dims({start_dim}, {end_dim}): those dimensions of {self} are not contiguous")
        return self._replaced(start, end, merged[:1], merged[1:])

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """Another shape over the same elements; on chip the partition dimension keeps its size."""
        sizes = _infer(tuple(shape), self.size, self)
        if not self.on_chip:
            return self._with(sizes, _reshaped_strides(self.shape, self.strides, sizes, self))
        if not sizes or sizes[0] != self.shape[0]:
            raise KernelError(f"reshape({sizes}) of {self}: the partition dimension must stay {self.shape[0]}")
        free = _reshaped_strides(self.shape[1:], self.strides[1:], sizes[1:], self)
        return self._with(sizes, [self.strides[0], *free])

    def ap(self, pattern: Sequence[Sequence[int]], offset: int | None = None) -> NkiTensor:
        """An explicit pattern ``[[stride, count], ...]`` on the storage, ``offset`` elements after this view's start.

        On chip the first stride is the storage's elements a partition, and the others stay within a partition.
        """
        strides = tuple(index(stride) for stride, _ in pattern)
        shape = tuple(index(count) for _, count in pattern)
        view = NkiTensor(self.storage, shape, strides, self.offset + (offset or 0))
        if not shape or min(shape) < 1:
            raise KernelError(f"ap({list(map(list, pattern))}) on {self}: counts must be at least 1")
        if self.on_chip and strides[0] != self.storage.partition_elements:
            raise KernelError(
                f"ap(): partition stride {strides[0]} on {self}; it must be {self.storage.partition_elements}, "
                "the elements a partition of the storage holds"
            )
        first, last = view._extent()
        if first < 0 or last >= self.storage.size:
            raise KernelError(f"ap({list(map(list, pattern))}, offset={offset}) ends outside {self.storage}")
        if self.on_chip and not view._stays_in_partition():
            raise KernelError(
                f"ap({list(map(list, pattern))}, offset={offset}) runs from one partition into the next on {self}; "
                f"a partition holds {self.storage.partition_elements} elements"
            )
        return view

    def _extent(self) -> tuple[int, int]:
        """The first and the last element of the storage that the view touches."""
        steps = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        return self.offset + sum(s for s in steps if s < 0), self.offset + sum(s for s in steps if s > 0)

    def _stays_in_partition(self) -> bool:
        """Whether the free dimensions address elements of one partition only."""
        first, last = NkiTensor(self.storage, self.shape[1:], self.strides[1:], self.offset)._extent()
        return first // self.storage.partition_elements == last // self.storage.partition_elements

    def _dim(self, dim: int, method: str, count: int | None = None) -> int:
        """``dim`` counted from the front; KernelError where there is none."""
        count = self.ndim if count is None else count
        if not -count <= dim < count:
            raise KernelError(f"{method}(): there is no dimension {dim} in {self}")
        return dim % count

    def _free_dim(self, dim: int, method: str, count: int | None = None) -> int:
        """``dim`` counted from the front; KernelError where it is the partition dimension."""
        found = self._dim(dim, method, count)
        if self.on_chip and found == 0:
            raise KernelError(f"{method}() on the partition dimension of {self}; it works on free dimensions")
        return found

    def _replaced(self, start: int, end: int, shape: Sequence[int], strides: Sequence[int]) -> NkiTensor:
        """The view with others in the place of dimensions ``start`` to ``end`` (exclusive)."""
        return self._with(
            [*self.shape[:start], *shape, *self.shape[end:]], [*self.strides[:start], *strides, *self.strides[end:]]
        )

    def _with(self, shape: Sequence[int], strides: Sequence[int]) -> NkiTensor:
        return NkiTensor(self.storage, tuple(shape), tuple(strides), self.offset)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _expand_key(key: Any, ndim: int) -> list[Any]:
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [k for k, item in enumerate(keys) if item is Ellipsis]
    if dots:
        missing = ndim - len(keys) + 1
        keys[dots[0] : dots[0] + 1] = [slice(None)] * missing
    if len(keys) > ndim:
        raise KernelError(f"{len(keys)} indices for a tensor of {ndim} dimensions")
    return keys + [slice(None)] * (ndim - len(keys))


def _resolve_slice(item: slice, dim: int, size: int) -> tuple[int, int, int]:
    """(start, count, step); a slice that reaches past the end is refused, as NKI's compiler does."""
    step = 1 if item.step is None else index(item.step)
    start = 0 if item.start is None else index(item.start)
    stop = size if item.stop is None else index(item.stop)
    start = start + size if start < 0 else start
    stop = stop + size if stop < 0 else stop
    if step < 1 or not 0 <= start <= stop <= size:
        shown = f"{'' if item.start is None else item.start}:{'' if item.stop is None else item.stop}"
        raise KernelError(f"slice {shown} in steps of {step} is outside dimension {dim}, which has {size} elements")
    return start, -(-(stop - start) // step), step


def _resolve_index(item: Any, dim: int, size: int) -> int:
    try:
        at = index(item)
    except TypeError:
        raise KernelError(f"index {item!r} of dimension {dim} is not an integer") from None
    if not -size <= at < size:
        raise KernelError(f"index {at} is outside dimension {dim}, which has {size} elements")
    return at + size if at < 0 else at


def _infer(shape: tuple[int, ...], size: int, tensor: View) -> tuple[int, ...]:
    """``shape`` with its -1 filled in; its product must be ``size``."""
    rest = prod(s for s in shape if s != -1)
    if shape.count(-1) == 1 and rest > 0:
        shape = tuple(size // rest if s == -1 else s for s in shape)
    if min(shape, default=1) < 1 or prod(shape) != size:
        raise KernelError(f"shape {shape} does not hold the {size} elements of {tensor}")
    return shape


def _merge(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """(size, stride) of the dimensions as one, or None where they are not contiguous among themselves."""
    size, stride = 1, 1
    for length, step in zip(reversed(shape), reversed(strides), strict=True):
        if length == 1:
            continue
        if size == 1:
            stride = step
        elif step != stride * size:
            return None
        size *= length
    return size, stride


def _reshaped_strides(
    shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int], tensor: View
) -> tuple[int, ...]:
    """Strides of ``wanted`` over the same elements: runs of old dimensions are merged and split anew."""
    result: list[int] = []
    old, new = 0, 0
    while new < len(wanted) or old < len(shape):
        old_end, new_end = old, new
        have = want = 1
        while old_end == old or new_end == new or have != want:
            if (have <= want and old_end < len(shape)) or new_end == len(wanted):
                if old_end == len(shape):
                    break
                have *= shape[old_end]
                old_end += 1
            else:
                want *= wanted[new_end]
                new_end += 1
        merged = _merge(shape[old:old_end], strides[old:old_end])
        if merged is None:
            raise KernelError(f"reshape to {tuple(wanted)}: the layout of {tensor} does not allow it without a copy")
        result.extend(merged[1] * step for step in contiguous_strides(wanted[new:new_end]))
        old, new = old_end, new_end
    return tuple(result)
