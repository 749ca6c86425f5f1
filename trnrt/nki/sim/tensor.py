"""``NkiTensor``: a strided view on a piece of the simulated memory, with NKI's view methods.

Views cost nothing on the device: they are made while the kernel is traced, and hold no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import index
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import DType, as_dtype
from trnrt.nki.machine.program import Dynamic, MemoryRegion, Register, View, contiguous_strides
from trnrt.nki.sim.values import DeviceValue, ValueUnknownError


@dataclass(frozen=True)
class DynamicSlice:
    """``size`` elements of a dimension, from a start that a register holds."""

    start: Register
    size: int


class NkiTensor(DeviceValue, View):
    """A tensor of a kernel: ``shape`` and ``strides`` in elements, ``offset``, ``dtype``, ``buffer``.

    On-chip tensors (SBUF, PSUM) keep the partition dimension first and have at least two dimensions.
    """

    __slots__ = ()

    __str__ = __repr__ = DeviceValue.__str__  # otherwise View's, from its data class

    def describe(self) -> str:
        return View.__str__(self)

    @property
    def name(self) -> str:
        """The name given to ``nl.ndarray``, or ""."""
        return self.storage.name

    @property
    def on_chip(self) -> bool:
        return self.storage.on_chip

    def is_contiguous(self) -> bool:
        """True if the view's elements are contiguous in row-major order (on chip: within each partition)."""
        expected = 1
        last = 1 if self.on_chip else 0
        for size, stride in zip(reversed(self.shape[last:]), reversed(self.strides[last:]), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def is_indirect(self) -> bool:
        """True if a part of the address is known only at run time."""
        return self.dynamic is not None

    def get_pattern(self) -> list[list[int]]:
        """The access pattern as ``[[stride, count], ...]``, in the order of ``shape``."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def __getitem__(self, key: Any) -> NkiTensor:
        """NumPy-style integers, slices and ``...``. An integer on an on-chip partition dimension keeps it at size 1."""
        keys = _expand_key(key, self.ndim)
        if any(isinstance(item, DynamicSlice) for item in keys):
            return self._slice_dynamically(keys)
        on_chip, last = self.storage.on_chip, len(keys) - 1
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for dim, (item, size, stride) in enumerate(zip(keys, self.shape, self.strides, strict=True)):
            if isinstance(item, slice):
                start, count, step = _resolve_slice(item, dim, size)
                offset += start * stride
                shape.append(count)
                strides.append(stride * step)
                continue
            offset += resolve_index(item, dim, size) * stride
            # A tensor on chip keeps its partitions and at least 2 dimensions, one in HBM at least 1.
            if (on_chip and dim == 0) or (dim == last and len(shape) < (2 if on_chip else 1)):
                shape.append(1)
                strides.append(stride)
        if self.dynamic is not None and self.dynamic.vector is not None and keys[0] != slice(None):
            raise KernelError(f"dimension 0 of {self} is selected by run-time indices; it can't be sliced again")
        return NkiTensor(self.storage, tuple(shape), tuple(strides), offset, self.cast, self.dynamic, self.bounded)

    def _slice_dynamically(self, keys: list[Any]) -> NkiTensor:
        """The view with one dimension from a run-time start on (``nl.ds``), and the other keys applied."""
        dims = [dim for dim, item in enumerate(keys) if isinstance(item, DynamicSlice)]
        dim = self._free_dim(dims[0], "nl.ds with a run-time start")
        item, size = keys[dim], self.shape[dim]
        if len(dims) > 1 or not 1 <= item.size <= size:
            problem = "has one run-time start at most" if len(dims) > 1 else f"has {size} elements, not {item.size}"
            raise KernelError(f"nl.ds: dimension {dims[-1]} of {self} {problem}")
        limit = size - item.size + 1  # starts from which the slice stays inside
        dynamic = self._check_index("nl.ds", Dynamic(item.start, None, self.strides[dim], limit))
        rest = self[(*keys[:dim], slice(0, item.size), *keys[dim + 1 :])]
        return replace(rest, dynamic=dynamic)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assignment to a part of a tensor is no instruction."""
        raise KernelError(f"assigning to a part of {self}: say which engine copies (nisa.tensor_copy, nisa.dma_copy)")

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements ``start`` to ``end`` (exclusive) of one dimension."""
        dim = self._dim(dim, "slice")
        if not 0 <= start < end <= self.shape[dim] or step < 1:
            raise KernelError(f"slice({dim}, {start}, {end}, {step}) is outside dimension {dim} of {self}")
        return self[(slice(None),) * dim + (slice(start, end, step),)]

    def select(self, dim: int, index: int | Register | NkiTensor) -> NkiTensor:
        """One element of a dimension, which disappears; a register or a tile of one element is a run-time index."""
        dim = self._dim(dim, "select")
        if not isinstance(index, (Register, View)):
            return self[(slice(None),) * dim + (index,)]
        dim = self._free_dim(dim, "select with a run-time index")
        dynamic = self._check_index("select", Dynamic(index, None, self.strides[dim], self.shape[dim]))
        view = self._replace_dims(dim, dim + 1, [], [])
        return NkiTensor(self.storage, view.shape, view.strides, self.offset, self.cast, dynamic, self.bounded)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row ``vector_offset[p]`` of an HBM tensor for each partition p, looked up at run time."""
        if self._dim(dim, "vector_select") != 0 or self.on_chip:
            raise KernelError(f"vector_select({dim}) of {self}: it selects along dimension 0 of a tensor in HBM")
        dynamic = self._check_index("vector_select", Dynamic(None, vector_offset, self.strides[0], self.shape[0]))
        shape = (vector_offset.shape[0], *self.shape[1:])
        return NkiTensor(self.storage, shape, self.strides, self.offset, self.cast, dynamic, self.bounded)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Tensor indirection (trn3): left out of this simulator."""
        raise KernelError(
            f"indirect() of {self}: tensor indirection (trn3) is not modelled; gather by DMA (vector_select)"
        )

    def _check_index(self, method: str, dynamic: Dynamic) -> Dynamic:
        """``dynamic``, if it is a valid index tile and the only one."""
        if self.dynamic is not None:
            raise KernelError(f"{method}() on {self}: it has a run-time index already, and can't have two")
        tile = dynamic.index_tile
        if getattr(dynamic.scalar, "is_comparison", False):
            raise KernelError(f"{method}(): the index is the result of a comparison, which NKI 0.7 can't use")
        if tile is None:
            return dynamic
        assert isinstance(tile, NkiTensor)
        tile.check_bounds(f"{method}()", "the index tile")
        if tile.buffer is not MemoryRegion.sbuf or tile.dtype.is_float:
            raise KernelError(f"{method}(): a run-time index is an integer tile in SBUF; this is {tile}")
        wanted = (tile.shape[0], 1) if dynamic.vector is not None else (1, 1)
        if (tile.shape[0], tile.free_size) != wanted:
            raise KernelError(f"{method}(): the index tile is {tile.shape}; it must be {wanted}")
        return dynamic

    def view(self, dtype: DType) -> NkiTensor:
        """The same bits as another dtype: the last dimension, which must be contiguous, gets more or fewer elements."""
        new = as_dtype(dtype)
        old_size, new_size, last = self.dtype.itemsize, new.itemsize, self.shape[-1]
        fits = self.strides[-1] == 1 or last == 1 or old_size == new_size
        scaled = [*self.strides[:-1], self.offset, last]
        if self.dynamic is not None or not fits or any(n * old_size % new_size for n in scaled):
            raise KernelError(f"view({new}) of {self}: its last dimension does not hold whole {new} elements in a row")
        shape = (*self.shape[:-1], last * old_size // new_size)
        strides = tuple(s * old_size // new_size for s in self.strides[:-1])
        last_stride = self.strides[-1] if old_size == new_size else 1
        start = self.offset * old_size // new_size
        return NkiTensor(self.storage, shape, (*strides, last_stride), start, self._cast(new), None, self.bounded)

    def rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: dict[str, int] | None = None
    ) -> NkiTensor:
        """Split, reorder and merge dimensions by name: ``rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})``."""
        groups = [(item,) if isinstance(item, str) else tuple(item) for item in src_pattern]
        wanted = [(item,) if isinstance(item, str) else tuple(item) for item in dst_pattern]
        names = [name for group in groups for name in group]
        if len(groups) != self.ndim or sorted(names) != sorted(name for group in wanted for name in group):
            raise KernelError(
                f"rearrange({src_pattern} -> {dst_pattern}) does not name the dimensions of {self}, each once"
            )
        result = self
        for group in groups:
            at = names.index(group[0])
            if len(group) > 1:
                result = result.reshape_dim(at, [(fixed_sizes or {}).get(name, -1) for name in group])
        result = result.permute([names.index(name) for group in wanted for name in group])
        for position, group in enumerate(wanted):
            if len(group) > 1:
                result = result.flatten_dims(position, position + len(group) - 1)
        return result

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """The dimensions in another order; on chip the partition dimension stays first."""
        if sorted(dims) != list(range(self.ndim)):
            raise KernelError(f"permute({tuple(dims)}) is not an order of the {self.ndim} dimensions of {self}")
        if self.on_chip and dims[0] != 0:
            raise KernelError(f"permute({tuple(dims)}) moves the partition dimension of {self}; nc_transpose does that")
        return self._with_dims([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Repeat a dimension of size 1 (stride 0)."""
        dim = self._free_dim(dim, "broadcast")
        if self.shape[dim] != 1 or size < 1:
            raise KernelError(f"broadcast({dim}, {size}) of {self}: dimension {dim} is {self.shape[dim]}, not 1")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._with_dims(shape, strides)

    def expand_dim(self, dim: int) -> NkiTensor:
        """Insert a dimension of size 1 before ``dim``."""
        dim = self._free_dim(dim, "expand_dim", self.ndim + 1)
        shape, strides = list(self.shape), list(self.strides)
        strides.insert(dim, shape[dim] * strides[dim] if dim < self.ndim else 1)
        shape.insert(dim, 1)
        return self._with_dims(shape, strides)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Remove a dimension of size 1."""
        dim = self._free_dim(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            raise KernelError(f"squeeze_dim({dim}) of {self}: dimension {dim} is {self.shape[dim]}, not 1")
        return self._replace_dims(dim, dim + 1, [], [])

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """Split one dimension; one size may be -1."""
        dim = self._dim(dim, "reshape_dim")
        sizes = _infer(tuple(shape), self.shape[dim], self)
        if len(sizes) != 1:
            self._free_dim(dim, "reshape_dim")
        strides = [self.strides[dim] * prod(sizes[k + 1 :]) for k in range(len(sizes))]
        return self._replace_dims(dim, dim + 1, sizes, strides)

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Merge the dimensions ``start_dim`` to ``end_dim`` (inclusive), which must be contiguous."""
        start = self._free_dim(start_dim, "flatten_dims")
        end = self._dim(end_dim, "flatten_dims") + 1
        merged = _merge(self.shape[start:end], self.strides[start:end])
        if merged is None or start >= end:
            raise KernelError(f"flatten_dims({start_dim}, {end_dim}): those dimensions of {self} are not contiguous")
        return self._replace_dims(start, end, merged[:1], merged[1:])

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """Another shape over the same elements; on chip the partition dimension keeps its size."""
        sizes = _infer(tuple(shape), self.size, self)
        if not self.on_chip:
            return self._with_dims(sizes, _reshaped_strides(self.shape, self.strides, sizes, self))
        if not sizes or sizes[0] != self.shape[0]:
            raise KernelError(f"reshape({sizes}) of {self}: the partition dimension must stay {self.shape[0]}")
        free = _reshaped_strides(self.shape[1:], self.strides[1:], sizes[1:], self)
        return self._with_dims(sizes, [self.strides[0], *free])

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Register | NkiTensor | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: DType | None = None,
    ) -> NkiTensor:
        """An explicit pattern ``[[stride, count], ...]`` on the storage, ``offset`` elements after this view's start.

        On chip the first stride is the storage's elements per partition, and the others stay within a partition.
        ``scalar_offset`` (a register or a tile of one element) and ``vector_offset`` (one index per partition) are
        run-time indices of dimension ``indirect_dim`` of this view. ``dtype`` reads the storage's bits as another
        dtype; pattern and offset then count its elements.
        """
        strides = tuple(index(stride) for stride, _ in pattern)
        shape = tuple(index(count) for _, count in pattern)
        wanted = self.dtype if dtype is None else as_dtype(dtype)
        cast = self._cast(wanted)
        start = self.offset * self.dtype.itemsize // wanted.itemsize + (offset or 0)
        dynamic = self._dynamic_offset(scalar_offset, vector_offset, indirect_dim)
        view = NkiTensor(self.storage, shape, strides, start, cast, dynamic)
        if not shape or min(shape) < 1:
            raise KernelError(f"ap({list(map(list, pattern))}) on {self}: counts must be at least 1")
        if self.on_chip and strides[0] != view.partition_elements:
            raise KernelError(
                f"ap(): partition stride {strides[0]} on {self}; it must be {view.partition_elements}, "
                "the elements a partition of the storage holds"
            )
        if view._problem() is not None:
            view = replace(view, bounded=False)  # kernels make views that they then do not use
        return view

    def _cast(self, dtype: DType) -> DType | None:
        """The cast of a view of this dtype: None for the storage's own, which makes a plain view."""
        return None if dtype == self.storage.dtype else dtype

    def _dynamic_offset(
        self, scalar: Register | NkiTensor | None, vector: NkiTensor | None, indirect_dim: int
    ) -> Dynamic | None:
        if scalar is None and vector is None:
            return self.dynamic
        if scalar is not None and vector is not None:
            raise KernelError("ap(): scalar_offset and vector_offset exclude each other")
        dim = self._dim(indirect_dim, "ap(indirect_dim)")
        if vector is not None and (dim != 0 or self.on_chip):
            raise KernelError(f"ap(): vector_offset on {self}; it indexes dimension 0 of a tensor in HBM")
        return self._check_index("ap", Dynamic(scalar, vector, self.strides[dim], self.shape[dim]))

    def check_bounds(self, operation: str, arg: str) -> None:
        """KernelError that names the argument, if the view leaves its storage or, on chip, the partition."""
        problem = None if self.bounded else self._problem()
        if problem is not None:
            raise KernelError(f"{operation}: {arg}, {self.get_pattern()} from element {self.offset} on, {problem}")

    def stays_inside(self) -> bool:
        """True if the view stays within its storage and, on chip, within each partition."""
        return self._problem() is None

    def _problem(self) -> str | None:
        """An error text if the view leaves its storage or partition; else None."""
        first, last = self._extent()
        size = self.storage.size * self.storage.dtype.itemsize // self.dtype.itemsize
        if self.dynamic is None and (first < 0 or last >= size):
            return f"ends outside {self.storage}, which holds {size} elements"
        if self.on_chip and not self._stays_in_partition():
            holds = f"a partition holds {self.partition_elements} elements"
            return f"runs from one partition into the next on {self.storage}; {holds}"
        return None

    def _extent(self) -> tuple[int, int]:
        """The first and the last element of the storage that the view touches."""
        steps = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        return self.offset + sum(s for s in steps if s < 0), self.offset + sum(s for s in steps if s > 0)

    def _stays_in_partition(self) -> bool:
        """True if the free dimensions address elements of only one partition."""
        first, last = NkiTensor(self.storage, self.shape[1:], self.strides[1:], self.offset)._extent()
        return first // self.partition_elements == last // self.partition_elements

    def _dim(self, dim: int, method: str, count: int | None = None) -> int:
        """``dim`` counted from the front; KernelError if out of range."""
        count = self.ndim if count is None else count
        if not -count <= dim < count:
            raise KernelError(f"{method}(): there is no dimension {dim} in {self}")
        return dim % count

    def _free_dim(self, dim: int, method: str, count: int | None = None) -> int:
        """``dim`` counted from the front; KernelError if it is the partition dimension."""
        found = self._dim(dim, method, count)
        if self.on_chip and found == 0:
            raise KernelError(f"{method}() on the partition dimension of {self}; it works on free dimensions")
        return found

    def _replace_dims(self, start: int, end: int, shape: Sequence[int], strides: Sequence[int]) -> NkiTensor:
        """The view with others in the place of dimensions ``start`` to ``end`` (exclusive)."""
        return self._with_dims(
            [*self.shape[:start], *shape, *self.shape[end:]], [*self.strides[:start], *strides, *self.strides[end:]]
        )

    def _with_dims(self, shape: Sequence[int], strides: Sequence[int]) -> NkiTensor:
        return NkiTensor(self.storage, tuple(shape), tuple(strides), self.offset, self.cast, self.dynamic, self.bounded)


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
    if item.start is None and item.stop is None and item.step is None:
        return 0, size, 1
    step = 1 if item.step is None else index(item.step)
    start = 0 if item.start is None else index(item.start)
    stop = size if item.stop is None else index(item.stop)
    start = start + size if start < 0 else start
    stop = stop + size if stop < 0 else stop
    if step < 1 or not 0 <= start <= stop <= size:
        shown = f"{'' if item.start is None else item.start}:{'' if item.stop is None else item.stop}"
        raise KernelError(f"slice {shown} in steps of {step} is outside dimension {dim}, which has {size} elements")
    return start, -(-(stop - start) // step), step


def resolve_index(item: Any, dim: int, size: int) -> int:
    """An index of a dimension, counted from the front; KernelError if it is no integer, or outside."""
    try:
        at = index(item)
    except ValueUnknownError:
        raise
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
    """(size, stride) of the dimensions as one, or None if they are not contiguous among themselves."""
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
    """Strides of ``wanted`` over the same elements: runs of old dimensions are merged and split again."""
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
