"""``NkiTensor``: a strided view on a piece of the simulated memory, with the view methods of NKI 0.6.

A view costs nothing on the device; all of this happens while the kernel is traced. Nothing here knows data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from trnrt.errors import KernelError
from trnrt.nki.machine.program import MemoryRegion, View


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
        if not 0 <= start < end <= self.shape[dim] or step < 1:
            raise KernelError(f"slice({dim}, {start}, {end}, {step}) is outside dimension {dim} of {self}")
        return self[(slice(None),) * dim + (slice(start, end, step),)]

    def select(self, dim: int, index: int) -> NkiTensor:
        """One element of a dimension, which disappears."""
        return self[(slice(None),) * dim + (index,)]

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """The dimensions in another order; on chip the partition dimension stays first."""
        if sorted(dims) != list(range(self.ndim)):
            raise KernelError(f"permute({tuple(dims)}) is not an order of the {self.ndim} dimensions of {self}")
        if self.on_chip and dims[0] != 0:
            raise KernelError(f"permute({tuple(dims)}) moves the partition dimension of {self}; nc_transpose does that")
        return self._with([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Repeat a dimension of size 1 (stride 0)."""
        self._check_free(dim, "broadcast")
        if self.shape[dim] != 1:
            raise KernelError(f"broadcast({dim}, {size}) of {self}: dimension {dim} is {self.shape[dim]}, not 1")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._with(shape, strides)

    def expand_dim(self, dim: int) -> NkiTensor:
        """Insert a dimension of size 1 before ``dim``."""
        self._check_free(dim, "expand_dim")
        shape, strides = list(self.shape), list(self.strides)
        strides.insert(dim, shape[dim] * strides[dim] if dim < self.ndim else 1)
        shape.insert(dim, 1)
        return self._with(shape, strides)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Remove a dimension of size 1."""
        self._check_free(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            raise KernelError(f"squeeze_dim({dim}) of {self}: dimension {dim} is {self.shape[dim]}, not 1")
        return self._with([*self.shape[:dim], *self.shape[dim + 1 :]], [*self.strides[:dim], *self.strides[dim + 1 :]])

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """Split one dimension; one size may be -1."""
        sizes = _infer(tuple(shape), self.shape[dim], self)
        if len(sizes) > 1:
            self._check_free(dim, "reshape_dim")
        strides = [self.strides[dim] * prod(sizes[k + 1 :]) for k in range(len(sizes))]
        return self._with(
            [*self.shape[:dim], *sizes, *self.shape[dim + 1 :]],
            [*self.strides[:dim], *strides, *self.strides[dim + 1 :]],
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Merge the dimensions ``start_dim`` to ``end_dim`` (inclusive), which must be contiguous."""
        self._check_free(start_dim, "flatten_dims")
        last = end_dim + 1
        merged = _merge(self.shape[start_dim:last], self.strides[start_dim:last])
        if merged is None:
            raise KernelError(f"flatten_dims({start_dim}, {end_dim}): those dimensions of {self} are not contiguous")
        size, stride = merged
        return self._with(
            [*self.shape[:start_dim], size, *self.shape[last:]],
            [*self.strides[:start_dim], stride, *self.strides[last:]],
        )

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

        On chip the first stride must be the storage's elements a partition.
        """
        strides = tuple(stride for stride, _ in pattern)
        shape = tuple(count for _, count in pattern)
        if self.on_chip and strides[0] != self.storage.partition_elements:
            raise KernelError(
                f"ap(): partition stride {strides[0]} on {self}; it must be {self.storage.partition_elements}, "
                "the elements a partition of the storage holds"
            )
        start = self.offset + (offset or 0)
        last = start + sum((count - 1) * stride for stride, count in pattern)
        if 0 not in shape and not 0 <= last < self.storage.size:
            raise KernelError(f"ap({list(map(list, pattern))}, offset={offset}) ends outside {self.storage}")
        return NkiTensor(self.storage, shape, strides, start)

    def _with(self, shape: Sequence[int], strides: Sequence[int]) -> NkiTensor:
        return NkiTensor(self.storage, tuple(shape), tuple(strides), self.offset)

    def _check_free(self, dim: int, method: str) -> None:
        if self.on_chip and dim == 0:
            raise KernelError(f"{method}() on the partition dimension of {self}; it works on free dimensions")


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_hbm(buffer: MemoryRegion) -> bool:
    """Whether a buffer is device memory."""
    return buffer in (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


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
    step = 1 if item.step is None else item.step
    start = 0 if item.start is None else item.start
    stop = size if item.stop is None else item.stop
    start = start + size if start < 0 else start
    stop = stop + size if stop < 0 else stop
    if step < 1 or not 0 <= start <= stop <= size:
        raise KernelError(f"slice {item.start}:{item.stop}:{item.step} is outside dimension {dim}, which has {size}")
    return start, -(-(stop - start) // step), step


def _resolve_index(item: Any, dim: int, size: int) -> int:
    if not isinstance(item, int) or not -size <= item < size:
        raise KernelError(f"index {item!r} is outside dimension {dim}, which has {size}")
    return item + size if item < 0 else item


def _infer(shape: tuple[int, ...], size: int, tensor: View) -> tuple[int, ...]:
    """``shape`` with its -1 filled in; its product must be ``size``."""
    if shape.count(-1) == 1:
        rest = -prod(shape)
        shape = tuple(size // rest if s == -1 and rest else s for s in shape)
    if prod(shape) != size:
        raise KernelError(f"shape {shape} has {prod(shape)} elements, {tensor} has {size}")
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
