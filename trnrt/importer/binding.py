"""Concrete input shapes to a static, cleaned-up graph: the pipeline of the importer's second half."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from trnrt.errors import Blocker, InputError, ModelFileError, TrnrtError, UnsupportedModelError
from trnrt.importer.folding.constants import Folder
from trnrt.importer.naming import name_nodes, root_cause
from trnrt.importer.parameters import bind_values, check_values
from trnrt.importer.quiet import quiet_lock
from trnrt.importer.records import GraphView, ReadModel, TensorInfo
from trnrt.importer.rewriting.older import renew_opset_6
from trnrt.importer.rewriting.rules import apply_rules
from trnrt.importer.sizes import out_of_proportion
from trnrt.importer.values import static_shape
from trnrt.text import list_text, one_line, quote, shape_text

# Enough to see what is too large; a chain of a thousand would say it a thousand times.
_MOST_BLOCKERS = 8


def bind(
    imported: ReadModel,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, NDArray[Any]],
    *,
    of_any_size: bool = False,
) -> GraphView:
    """See ``ImportedModel.bind``."""
    bound, symbols = check_shapes(imported, shapes)
    constants = check_values(imported.parameters, {info.name: info for info in imported.inputs}, bound, values)
    try:
        with quiet_lock():
            view = _prepare_graph(imported, bound, symbols, constants)
            too_large = [] if of_any_size else list(islice(out_of_proportion(view.model.graph), _MOST_BLOCKERS))
    except TrnrtError:
        raise
    except Exception as error:
        # The graph is untrusted, and the libraries below report what they stumble over as they like.
        raise ModelFileError(f"{one_line(imported.name)}: the model can't be prepared ({root_cause(error)})") from error
    if too_large:
        raise UnsupportedModelError(imported.name, too_large)
    return view


def shapes_of_no_rows(
    imported: ReadModel, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, NDArray[Any]]
) -> list[tuple[int, ...] | None]:
    """The outputs' shapes where the inputs ``shapes`` have a 0 for the rows; None for one that can't be told.

    Shapes are all that is known of such a graph: no rule is made for tensors without elements.

    Raises:
        InputError: if the shapes are not one for each input, or don't fit.
    """
    bound, symbols = check_shapes(imported, shapes, fewest_rows=0)
    constants = check_values(imported.parameters, {info.name: info for info in imported.inputs}, bound, values)
    try:
        with quiet_lock():
            model = _fold_model(imported, bound, symbols, constants)[0]
    except Exception:  # what the libraries below make of no elements is their affair
        return [None] * len(imported.outputs)
    return [static_shape(value) for value in model.graph.outputs]


def _fold_model(
    imported: ReadModel,
    shapes: dict[str, tuple[int, ...]],
    symbols: dict[str, int],
    constants: dict[str, NDArray[Any]],
) -> tuple[ir.Model, Folder, list[str]]:
    """A copy of the model for these shapes, folded; what folds it, and the notes about that."""
    model = imported.model.clone()
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[value.name or ""])
    bind_values(model.graph, constants)
    folder = Folder(model, symbols)
    return model, folder, folder.settle()


def _prepare_graph(
    imported: ReadModel,
    shapes: dict[str, tuple[int, ...]],
    symbols: dict[str, int],
    constants: dict[str, NDArray[Any]],
) -> GraphView:
    model, folder, notes = _fold_model(imported, shapes, symbols, constants)
    renew_opset_6(model)
    while more := apply_rules(model):
        notes += more + folder.settle()
    name_nodes(model.graph)
    _check_outputs(imported, model)
    return GraphView(model, tuple(notes), tuple(_unresolved_reasons(imported, shapes, folder)))


def check_shapes(
    imported: ReadModel, shapes: Mapping[str, tuple[int, ...]], *, fewest_rows: int = 1
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """The shapes as plain ints, and what they say about the model's symbols.

    ``fewest_rows``: what dimension 0 is at least; the others are 1 or more. Those of parameters may be 0.

    Raises:
        InputError: if they are not one for each input, or don't fit.
    """
    declared = {info.name: info for info in imported.inputs}
    if unknown := [name for name in shapes if name not in declared]:
        known = list_text(map(quote, declared)) or "none"
        raise InputError(f"the model has no input {quote(unknown[0])}", hint=f"Its inputs are: {known}.")
    bound: dict[str, tuple[int, ...]] = {}
    symbols: dict[str, int] = {}
    for name, info in declared.items():
        if info.dtype.endswith(")"):
            blocker = Blocker(name, "input", f"it is a {info.dtype}, not a tensor")
            raise UnsupportedModelError(imported.name, [blocker])
        if name not in shapes:
            raise InputError(f"input {quote(name)} has no shape", hint=f"expected {shape_text(info.shape)}")
        smallest = (0, 0) if name in imported.parameters else (fewest_rows, 1)
        bound[name] = _bind_shape(info, shapes[name], symbols, *smallest)
    return bound, symbols


def _bind_shape(
    info: TensorInfo, shape: tuple[int, ...], symbols: dict[str, int], fewest_rows: int, smallest: int
) -> tuple[int, ...]:
    start = f"input {quote(info.name)}: expected shape {shape_text(info.shape)}, got {shape_text(shape)}"
    try:
        dims = tuple(operator.index(dim) for dim in shape)
    except TypeError:
        raise InputError(f"{start}: a dimension is not a whole number") from None
    if len(dims) != len(info.shape):
        raise InputError(f"{start}: it has {len(dims)} dimensions, not {len(info.shape)}")
    for axis, (dim, expected) in enumerate(zip(dims, info.shape, strict=True)):
        if dim < (fewest_rows if axis == 0 else smallest):
            raise InputError(f"{start}: dimension {axis} is {dim}, so there is nothing to compute")
        if isinstance(expected, int) and dim != expected:
            raise InputError(f"{start}: dimension {axis} must be {expected}")
        if isinstance(expected, str) and symbols.setdefault(expected, dim) != dim:
            raise InputError(
                f"{start}: dimension {axis} must be {symbols[expected]},"
                f" as {quote(expected)} is already {symbols[expected]} elsewhere"
            )
    return dims


def _check_outputs(imported: ReadModel, model: ir.Model) -> None:
    """The clean-up must keep what callers see, and the file must not lie about its outputs' types."""
    names = [value.name for value in model.graph.outputs]
    if names != [info.name for info in imported.outputs]:
        raise ModelFileError(f"{one_line(imported.name)}: the outputs of the model got lost when it was prepared")
    for info, declared, made in zip(imported.outputs, imported.model.graph.outputs, model.graph.outputs, strict=True):
        if declared.dtype is not None and made.dtype is not None and declared.dtype != made.dtype:
            raise ModelFileError(
                f"{one_line(imported.name)}: output {quote(info.name)} is declared as {declared.dtype.name},"
                f" but the node that makes it gives {made.dtype.name}",
                hint="Export the model again.",
            )


def _unresolved_reasons(imported: ReadModel, shapes: dict[str, tuple[int, ...]], folder: Folder) -> Iterator[str]:
    """Why tensors have no static shape; an error if that is a contradiction in the graph."""
    problems = folder.problems()
    if found := next((p for p in problems if p.is_contradiction), None):
        if found.whatever_shapes or all(isinstance(dim, int) for info in imported.inputs for dim in info.shape):
            raise ModelFileError(f"{one_line(imported.name)}: {found.text}", hint=found.hint)
        given = list_text(f"{quote(name)} {shape}" for name, shape in shapes.items())
        raise InputError(f"the model can't take the input shapes {given}: {found.text}")
    for problem in problems:
        yield problem.text
