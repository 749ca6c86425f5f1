"""Views: ``tensor[...]`` of the old namespace, with slices, numbers and index expressions, as slices of today's."""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.nki.porting.algebra import as_number, write
from trnrt.nki.porting.indexes import AFFINE, Axis, Index
from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.tensors import Bounds, Tensor, difference, plus, poly, same, slice_text, times, tuple_text


@dataclass(frozen=True)
class Slice:
    """``start : stop : step`` of a dimension; each None where it is left out. ``size``: None if all of it."""

    start: str | None
    stop: str | None
    step: str | None
    size: str | None


Key = Slice | Index | str  # a string is a number's text


def view(tensor: Tensor, keys: list[Key | None], bounds: Bounds) -> Tensor:
    """``tensor[keys]``, in the old order, None for an ellipsis; cut to a mask's bounds."""
    assert tensor.text is not None
    keys_known = _in_new_order(tensor, keys)
    if not keys_known and not bounds:
        return tensor
    axes = [axis for key in keys_known if isinstance(key, Index) for axis, _ in key.axes]
    if axes:
        return _index_view(tensor, keys_known, axes, bounds)
    return _slice_view(tensor, keys_known, bounds)


def _in_new_order(tensor: Tensor, keys: list[Key | None]) -> list[Key]:
    """The keys with the ellipsis filled in, the partition dimension's first, and no full slices at the end."""
    rank = None if tensor.shape is None else len(tensor.shape)
    if None in keys:
        at = keys.index(None)
        after = len(keys) - at - 1
        if rank is None and after:
            raise UntranslatedError(
                f"{tensor.text} is indexed by ..., and its rank isn't known", "write each dimension"
            )
        missing = rank - len(keys) + 1 if rank is not None else 0
        keys = [*keys[:at], *[_ALL] * missing, *keys[at + 1 :]]
    found = [key for key in keys if key is not None]
    if tensor.partition:
        found += [_ALL] * (tensor.partition + 1 - len(found))
        found.insert(0, found.pop(tensor.partition))
    counts = rank is None and any(isinstance(key, str) for key in found)  # a full slice says that there is a dimension
    while found and found[-1] == _ALL and not counts:
        found.pop()
    return found


_ALL = Slice(None, None, None, None)


def _slice_view(tensor: Tensor, keys: list[Key], bounds: Bounds) -> Tensor:
    """A view by slices and numbers. A result of one dimension keeps a number's dimension, with size 1."""
    rank = None if tensor.shape is None else len(tensor.shape)
    if rank is not None and len(keys) < rank:
        keys = keys + [_ALL] * (rank - len(keys))
    slices = sum(isinstance(key, Slice) for key in keys)
    if slices < 2 and slices < len(keys) and (slices or not rank or rank > 1):
        keys = _keep_numbers(keys, 2 - slices)
    texts, sizes, old_places = [], list[str | None](), _places(tensor, keys)
    for dim, key in enumerate(keys):
        if not isinstance(key, Slice):
            texts.append(str(key))
            continue
        bound = bounds.get(old_places[dim])
        size = _size(tensor, dim, key)
        if bound is not None and size != "1":
            if key.step is not None:
                raise UntranslatedError("a mask cuts a slice with steps", "write the slice that is left")
            texts.append(slice_text(key.start or "0", size or tensor.size(dim), bound))
        else:
            texts.append(_text(key))
        sizes.append(size)
    while texts and texts[-1] == ":":
        texts.pop()
    partition = sum(isinstance(key, Slice) for key in keys[1 : tensor.partition + 1])
    text = f"{tensor.text}[{', '.join(texts)}]" if texts else tensor.text
    shape = None if tensor.shape is None and not _covers(keys) else tuple(sizes)
    element = tensor.dtype or f"{tensor.text}.dtype"
    return Tensor(text, tensor.space, shape, element, partition, whole=not texts, origin=tensor.origin)


def _size(tensor: Tensor, dim: int, key: Slice) -> str | None:
    """The text of a slice's size, if it can be read."""
    if key.size is not None:
        return key.size
    if key != _ALL:
        return None
    return tensor.shape[dim] if tensor.shape is not None else tensor.size(dim)


def _covers(keys: list[Key]) -> bool:
    """True if the keys are likely all dimensions: two or more that are kept, or a number among them."""
    return sum(isinstance(key, Slice) for key in keys) >= 2 or any(not isinstance(key, Slice) for key in keys)


def _places(tensor: Tensor, keys: list[Key]) -> list[int]:
    """The dimension of the result, in the old order, of each key."""
    order = list(range(1, len(keys)))
    order.insert(tensor.partition, 0)
    places, at = [0] * len(keys), 0
    for dim in order[: len(keys)] if keys else []:
        places[dim] = at
        at += isinstance(keys[dim], Slice)
    return places


def _keep_numbers(keys: list[Key], missing: int) -> list[Key]:
    """The keys with the last numbers, after the last slice if there are any, as slices of one element."""
    numbers = [dim for dim, key in enumerate(keys) if isinstance(key, str)]
    slices = [dim for dim, key in enumerate(keys) if isinstance(key, Slice)]
    chosen = [dim for dim in numbers if not slices or dim > slices[-1]] or numbers
    return [_one(key) if dim in chosen[-missing:] else key for dim, key in enumerate(keys)]


def _one(key: Key) -> Key:
    return Slice(key, plus(key, "1"), None, "1") if isinstance(key, str) else key


def _text(key: Slice) -> str:
    step = f":{key.step}" if key.step is not None else ""
    return f"{key.start or ''}:{key.stop or ''}{step}"


def _index_view(tensor: Tensor, keys: list[Key], axes: list[Axis], bounds: Bounds) -> Tensor:
    """A view by index expressions: slices, split where a dimension has several axes, in the order of their places."""
    if len(set(axes)) != len(axes):
        raise UntranslatedError(f"one index is in two dimensions of {tensor.text}", "take the diagonal by .ap()")
    places = max(axis.places for axis in axes)
    missing = places - len(axes) - sum(isinstance(key, Slice) for key in keys)
    if missing > 0 and any(isinstance(key, str) for key in keys):
        keys = _keep_numbers_of_grid(keys, missing)
    if any(isinstance(key, Index) and len(key.axes) > 1 and not _nests(key) for key in keys):
        return _pattern_view(tensor, keys, bounds)
    builder = _Builder(tensor, bounds)
    for dim, key in enumerate(keys):
        builder.add(dim, key)
    return builder.finish(places)


def _keep_numbers_of_grid(keys: list[Key], missing: int) -> list[Key]:
    numbers = [dim for dim, key in enumerate(keys) if isinstance(key, str)]
    return [_one(key) if dim in numbers[-missing:] else key for dim, key in enumerate(keys)]


class _Builder:
    """Collects the slices of a view, the splits of its dimensions, and the places of its axes."""

    def __init__(self, tensor: Tensor, bounds: Bounds) -> None:
        self.tensor, self.bounds = tensor, bounds
        self.texts: list[str] = []
        self.places: list[int | None] = []  # of each dimension of the result
        self.sizes: list[str | None] = []
        self.splits: list[tuple[int, list[str]]] = []

    def add(self, dim: int, key: Key) -> None:
        if isinstance(key, str):
            self.texts.append(key)
        elif isinstance(key, Slice):
            self.texts.append(_text(key))
            self._add_dimension(None, _size(self.tensor, dim, key))
        elif not key.axes:
            self.texts.append(key.start)
        elif len(key.axes) == 1:
            self._add_axis(key, *key.axes[0])
        else:
            self._add_split(key)

    def _add_dimension(self, place: int | None, size: str | None) -> None:
        self.places.append(place)
        self.sizes.append(size)

    def _add_axis(self, key: Index, axis: Axis, factor: str) -> None:
        bound = self.bounds.get(axis.place if axis.place is not None else len(self.places))
        if factor == "1":
            self.texts.append(slice_text(key.start, axis.size, bound if axis.size != "1" else None))
        else:
            if bound is not None or factor.startswith("-"):
                raise UntranslatedError("a mask or a negative step in a strided index", AFFINE)
            end = plus(plus(key.start, times(plus(axis.size, "-1"), factor)), "1")
            self.texts.append(f"{key.start}:{end}:{factor}")
        self._add_dimension(axis.place, axis.size)

    def _add_split(self, key: Index) -> None:
        """One dimension that several axes index, from the slowest to the fastest, without gaps or overlaps."""
        if any(axis.place in self.bounds for axis, _ in key.axes):
            raise UntranslatedError("a mask cuts a dimension that several indexes share", AFFINE)
        ordered = _nest(key)
        total = "1"
        for axis, _ in ordered:
            total = times(total, axis.size)
        self.texts.append(slice_text(key.start, total))
        self.splits.append((len(self.places), [axis.size for axis, _ in ordered]))
        for axis, _ in ordered:
            self._add_dimension(axis.place, axis.size)

    def finish(self, places: int) -> Tensor:
        text = f"{self.tensor.text}[{', '.join(self.texts)}]"
        for dim, sizes in self.splits:
            text += f".reshape_dim({dim}, {tuple_text(sizes)})"
        order = self._order()
        if order != sorted(order):
            dims = sorted(range(len(order)), key=order.__getitem__)
            text += f".permute({tuple_text([str(dim) for dim in dims])})"
            self.sizes = [self.sizes[dim] for dim in dims]
        for at in range(len(order), places):
            text += f".expand_dim({at})"
            self.sizes.append("1")
        return Tensor(text, self.tensor.space, tuple(self.sizes), self.tensor.dtype or f"{self.tensor.text}.dtype")

    def _order(self) -> list[int]:
        """The place of each dimension; those of slices and numbers take the free ones, in order."""
        taken = {place for place in self.places if place is not None}
        free = iter([place for place in range(len(self.places) + len(taken)) if place not in taken])
        return [place if place is not None else next(free) for place in self.places]


def _nests(key: Index) -> bool:
    try:
        return bool(_nest(key))
    except UntranslatedError:
        return False


def _pattern_view(tensor: Tensor, keys: list[Key], bounds: Bounds) -> Tensor:
    """Windows that overlap or leave gaps: an access pattern on all of a tensor, whose strides follow from its sizes."""
    if bounds or not tensor.whole or any(isinstance(key, Slice) for key in keys):
        raise UntranslatedError(_WINDOWS, "write the access pattern with .ap()")
    rank = len(keys) if tensor.shape is None else len(tensor.shape)
    strides = ["1"]
    for dim in range(rank - 1, 0, -1):
        strides.insert(0, times(tensor.size(dim), strides[0]))
    steps, offset = dict[int, tuple[str, str]](), "0"
    for stride, key in zip(strides, keys, strict=False):
        start = key if isinstance(key, str) else key.start if isinstance(key, Index) else "0"
        offset = plus(offset, times(start, stride)) if start != "0" else offset
        for axis, factor in key.axes if isinstance(key, Index) else ():
            if axis.place is None:
                raise UntranslatedError(_WINDOWS, "write nl.arange(n)[:, None] with a place for each axis")
            steps[axis.place] = times(factor, stride), axis.size
    pattern = ", ".join(f"[{step}, {size}]" for _, (step, size) in sorted(steps.items()))
    shift = "" if offset == "0" else f", offset={offset}"
    sizes = tuple(size for _, (_, size) in sorted(steps.items()))
    text = f"{tensor.text}.ap([{pattern}]{shift})"
    return Tensor(text, tensor.space, sizes, tensor.dtype or f"{tensor.text}.dtype")


_WINDOWS = "windows that overlap or leave gaps index one dimension"


def _nest(key: Index) -> list[tuple[Axis, str]]:
    """The axes from the slowest to the fastest: each step is the size of what is inside."""
    rest, ordered, step = list(key.axes), list[tuple[Axis, str]](), "1"
    while rest:
        found = next((item for item in rest if same(item[1], step)), None)
        if found is None:
            raise UntranslatedError(_WINDOWS, "write the access pattern with .ap()")
        rest.remove(found)
        ordered.insert(0, found)
        step = times(step, found[0].size)
    return ordered


def size_of(start: str | None, stop: str | None, step: str | None) -> str | None:
    """The text of a slice's size; None if all of the dimension, or if it can't be read."""
    if stop is None or step is not None or stop.startswith("-"):
        return None
    return write(difference(stop, start or "0")) if as_number(poly(start or "0")) != 0 else stop
