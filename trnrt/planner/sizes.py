"""Concrete shapes for a model's inputs: the batch, and the open sizes that the user names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trnrt.errors import InputError, OptionError
from trnrt.planner.naming import printable

if TYPE_CHECKING:
    from trnrt.importer import ImportedModel, TensorInfo

Shape = tuple[int, ...]
_SOLE = ""


def parse_shape(text: str) -> tuple[str, Shape]:
    """``name=3x224x224``, or ``3x224x224`` for a model's only input, whose name is "" then."""
    name, _, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.lower().split("x"))
    except ValueError:
        shape = (0,)
    if min(shape) < 1:
        raise OptionError(f"shape {text!r}", hint="it is sizes joined by x, as in --shape image=3x224x224")
    return name, shape


def default_shapes(
    model: ImportedModel, batch: int, given: Mapping[str, Shape] | None = None
) -> dict[str, tuple[int, ...]]:
    """Each input's shape with ``batch`` for the symbolic batch, and ``given`` sizes for other open dimensions.

    A batch fixed by the model stays. A given shape has all dimensions of its input, or all but the batch; the name ""
    means the only input. A symbol's size is the same in all inputs. Raises InputError for a dimension that stays open
    or contradicts the model.
    """
    named = _by_input(model, given or {})
    filled = {}
    for info in model.inputs:
        sizes = tuple(_fill_batch(d, k, model.batch, batch) for k, d in enumerate(info.shape))
        if info.name in named:
            sizes = _fill_sizes(info, sizes, named[info.name], has_batch=model.batch is not None)
        filled[info.name] = sizes
    symbols = _symbol_sizes(model, filled)
    shapes = {}
    for info in model.inputs:
        sizes = tuple(symbols.get(d, d) if isinstance(d, str) else d for d in filled[info.name])
        open_dims = [printable(d or "?") for d in sizes if not isinstance(d, int)]
        if open_dims:
            raise InputError(
                f"input {printable(info.name)!r} has the open dimension{'s' if len(open_dims) > 1 else ''} "
                f"{', '.join(open_dims)}",
                hint=f"name the sizes, as in --shape {_example(info, sizes, model.batch is not None)};"
                " where there is --input, it tells them, too",
            )
        shapes[info.name] = tuple(d for d in sizes if isinstance(d, int))
    return shapes


def _by_input(model: ImportedModel, given: Mapping[str, Shape]) -> dict[str, Shape]:
    known = [info.name for info in model.inputs]
    named = dict(given)
    if _SOLE in named and _SOLE not in known:
        if len(known) != 1:
            names = ", ".join(map(printable, known)) or "none"
            raise OptionError("a shape without a name", hint=f"the model's inputs are {names}: name=3x224x224")
        named[known[0]] = named.pop(_SOLE)
    for name in named:
        if name not in known:
            raise OptionError(
                f"a shape for {name!r}, which is no input of the model",
                hint=f"its inputs are {', '.join(map(printable, known)) or 'none'}",
            )
    return named


def _fill_sizes(
    info: TensorInfo, sizes: tuple[int | str | None, ...], given: Shape, *, has_batch: bool
) -> tuple[int | str | None, ...]:
    """The sizes with given ones in place of open ones; a given shape may leave out the batch."""
    whole = (sizes[0], *given) if has_batch and len(given) == len(sizes) - 1 else given
    declared = "x".join(str(d) if isinstance(d, int) else printable(d or "?") for d in info.shape)
    given_shape = f"shape {_shape_text(given)} for input {printable(info.name)!r}, which is {declared}"
    if len(whole) != len(sizes):
        raise InputError(f"{given_shape}: {len(sizes)} sizes, or all but the batch's")
    for axis, (mine, theirs) in enumerate(zip(whole, info.shape, strict=True)):
        if isinstance(theirs, int) and mine != theirs:
            raise InputError(f"{given_shape}: dimension {axis} is {theirs}")
    return whole


def _symbol_sizes(model: ImportedModel, filled: Mapping[str, tuple[int | str | None, ...]]) -> dict[str, int]:
    """The sizes that the filled shapes give the model's symbols: one input's are the others', too."""
    pairs = (pair for info in model.inputs for pair in zip(info.shape, filled[info.name], strict=True))
    return {name: size for name, size in pairs if isinstance(name, str) and isinstance(size, int)}


def _fill_batch(dim: int | str | None, position: int, symbol: int | str | None, batch: int) -> int | str | None:
    """A declared dimension, with ``batch`` where it is the model's batch."""
    if isinstance(dim, int):
        return dim
    return batch if dim == symbol or (dim is None and position == 0) else dim


def _example(info: TensorInfo, sizes: tuple[int | str | None, ...], has_batch: bool) -> str:
    shown = sizes[1:] if has_batch else sizes
    return f"{printable(info.name)}={_shape_text(tuple(d if isinstance(d, int) else 224 for d in shown))}"


def _shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape))
