"""Views: values of the graph as access patterns on stored tensors, so that moving elements is free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

Shape = tuple[int, ...]


def dense_strides(shape: Shape) -> Shape:
    """Elements from one index to the next, of each dimension of a row-major tensor."""
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


@dataclass(frozen=True)
class View:
    """Element ``i`` of the value is element ``offset + sum(i[d] * strides[d])`` of the stored tensor ``root``.

    ``size`` is the number of elements of the stored tensor, which is contiguous. A stride may be 0 (repeated elements)
    or negative. ``nodes`` are the ONNX nodes behind the view, in order.
    """

    root: str
    shape: Shape
    strides: Shape
    offset: int
    size: int
    nodes: tuple[str, ...] = ()

    @classmethod
    def whole(cls, root: str, shape: Shape) -> View:
        """All of a stored tensor in its own order."""
        return cls(root, shape, dense_strides(shape), 0, prod(shape))

    @property
    def is_whole(self) -> bool:
        """True if the value is the whole stored tensor, in order: no access pattern needed."""
        merged = merge_dims(self.shape, (self.strides,))
        return self.offset == 0 and prod(self.shape) == self.size and merged[1][0] in ((), (1,))

    @property
    def order(self) -> Shape | None:
        """The order of dimensions if the value is the whole stored tensor, permuted; else None."""
        order = tuple(sorted(range(len(self.shape)), key=lambda d: (-self.strides[d], self.shape[d])))
        return tuple(order.index(d) for d in range(len(order))) if self.permute(order).is_whole else None

    def with_node(self, node: str) -> View:
        """The same view as the output of one more node."""
        return replace(self, nodes=(*self.nodes, node))

    def permute(self, order: Shape) -> View:
        """Dimension d of the result is dimension ``order[d]``."""
        return replace(self, shape=tuple(self.shape[d] for d in order), strides=tuple(self.strides[d] for d in order))

    def slice(self, axis: int, start: int, count: int, step: int = 1) -> View:
        """``count`` indices of one dimension: start, start + step, ..."""
        shape, strides = list(self.shape), list(self.strides)
        shape[axis], strides[axis] = count, self.strides[axis] * step
        return replace(
            self, shape=tuple(shape), strides=tuple(strides), offset=self.offset + start * self.strides[axis]
        )

    def broadcast(self, shape: Shape) -> View:
        """ONNX's broadcasting to ``shape``: repeated dimensions have stride 0."""
        missing = len(shape) - len(self.shape)
        old_shape, old_strides = (1,) * missing + self.shape, (0,) * missing + self.strides
        strides = tuple(
            0 if old != new else stride for old, new, stride in zip(old_shape, shape, old_strides, strict=True)
        )
        return replace(self, shape=shape, strides=strides)

    def reshape(self, shape: Shape) -> View | None:
        """The same elements in another shape, or None if no access pattern can express that."""
        assert prod(shape) == prod(self.shape), (self.shape, shape)
        sizes, (steps,) = merge_dims(self.shape, (self.strides,))
        runs = list(zip(sizes, steps, strict=True))
        strides: list[int] = []
        left, stride = 1, 1
        for size in reversed(shape):
            if size == 1:
                strides.insert(0, 0)
                continue
            if left == 1:
                left, stride = runs.pop()
            if left % size:
                return None
            strides.insert(0, stride)
            left, stride = left // size, stride * size
        return replace(self, shape=shape, strides=tuple(strides))


def merge_dims(shape: Shape, strides: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    """The same access patterns over as few dimensions as possible: size 1 left out, runs of all patterns merged."""
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []
    for d, size in enumerate(shape):
        here = tuple(pattern[d] for pattern in strides)
        if size == 1:
            continue
        if sizes and all(before == own * size for before, own in zip(steps[-1], here, strict=True)):
            sizes[-1], steps[-1] = sizes[-1] * size, here
        else:
            sizes.append(size)
            steps.append(here)
    return tuple(sizes), tuple(tuple(step[k] for step in steps) for k in range(len(strides)))
