"""The importer's second half: bind a model to concrete input shapes, which gives a static, cleaned-up graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import onnx_ir as ir
from numpy.typing import NDArray

from trnrt.errors import Blocker, InputError, ModelFileError, TrnrtError, UnsupportedModelError
from trnrt.importer.folding.constants import Folder
from trnrt.importer.folding.inference import why_unknown
from trnrt.importer.fused.rewriting import NOTES
from trnrt.importer.naming import name_nodes, root_cause
from trnrt.importer.parameters import bind_values, check_values
from trnrt.importer.quantised.long_sums import split_long_sums
from trnrt.importer.quantised.rewriting import is_quantised, rewrite_quantised
from trnrt.importer.quiet import quiet_lock
from trnrt.importer.records import GraphView, ReadModel, TensorInfo
from trnrt.importer.rewriting.editing import Editor
from trnrt.importer.rewriting.older import renew_opset_6, renew_opset_10
from trnrt.importer.rewriting.packed import unpack_weights
from trnrt.importer.rewriting.rules import apply_rules
from trnrt.importer.sizes import find_too_large
from trnrt.importer.values import static_shape
from trnrt.text import list_text, one_line, quote, shape_text

Shape = tuple[int, ...]

# A chain of a thousand large tensors would need a thousand lines.
_MOST_BLOCKERS = 8


class _Given(NamedTuple):
    """Inputs as given and checked: all shapes, what these say about the model's symbols, and the parameters' values."""

    shapes: dict[str, Shape]
    symbols: dict[str, int]
    constants: dict[str, NDArray[Any]]


def bind(
    imported: ReadModel,
    shapes: Mapping[str, Shape],
    values: Mapping[str, NDArray[Any]],
    *,
    of_any_size: bool = False,
) -> GraphView:
    """See ``ImportedModel.bind``."""
    given = _check_given(imported, shapes, values)
    try:
        with quiet_lock():
            view = _prepare_graph(imported, given)
            too_large = [] if of_any_size else list(islice(find_too_large(view.model.graph), _MOST_BLOCKERS))
    except TrnrtError:
        raise
    except Exception as error:
        # The graph is untrusted, and the libraries below report errors of any kind.
        raise ModelFileError(f"{one_line(imported.name)}: the model can't be prepared ({root_cause(error)})") from error
    if too_large:
        raise UnsupportedModelError(imported.name, too_large)
    return view


def shapes_of_no_rows(
    imported: ReadModel, shapes: Mapping[str, Shape], values: Mapping[str, NDArray[Any]]
) -> list[Shape | None]:
    """The outputs' shapes if the inputs ``shapes`` have 0 rows; None for one that can't be inferred.

    Such a graph only has shapes: the rewrite rules don't handle tensors without elements.

    Raises:
        InputError: if the shapes are not one for each input, or don't fit.
    """
    given = _check_given(imported, shapes, values, fewest_rows=0)
    try:
        with quiet_lock():
            model = _fold_model(imported, given)[0]
    except Exception:  # the libraries below fail in any way on tensors without elements
        return [None] * len(imported.outputs)
    return [static_shape(value) for value in model.graph.outputs]


def _fold_model(imported: ReadModel, given: _Given) -> tuple[ir.Model, Folder, list[str]]:
    """A copy of the model for these shapes, folded; its folder, and notes on what was folded."""
    model = imported.model.clone()
    for value in model.graph.inputs:
        value.shape = ir.Shape(given.shapes[value.name or ""])
    bind_values(model.graph, given.constants)
    notes = unpack_weights(model)
    folder = Folder(model, given.symbols, keeps_integers=is_quantised(model.graph))
    if folder.keeps_integers:
        renew_opset_10(model)
    notes += [*imported.model.meta.get(NOTES, ()), *folder.settle()]
    if folder.keeps_integers:
        notes += rewrite_quantised(model, given.symbols)
        folder.keeps_integers = False
        notes += folder.settle()
    return model, folder, notes


def _prepare_graph(imported: ReadModel, given: _Given) -> GraphView:
    model, folder, notes = _fold_model(imported, given)
    renew_opset_6(model)
    while more := apply_rules(model):
        notes += more + folder.settle()
    name_nodes(model.graph)
    notes += split_long_sums(Editor(model))
    _check_outputs(imported, model)
    return GraphView(model, tuple(notes), tuple(_unresolved_reasons(imported, given.shapes, folder)))


def _check_given(
    imported: ReadModel,
    shapes: Mapping[str, Shape],
    values: Mapping[str, NDArray[Any]],
    *,
    fewest_rows: int = 1,
) -> _Given:
    """The shapes and values that a graph is bound to.

    Dimension 0 is ``fewest_rows`` or more, the others 1 or more; those of parameters may be 0.

    Raises:
        InputError: if shapes or values are missing, or don't fit.
    """
    declared = {info.name: info for info in imported.inputs}
    if unknown := [name for name in shapes if name not in declared]:
        known = list_text(map(quote, declared)) or "none"
        raise InputError(f"the model has no input {quote(unknown[0])}", hint=f"Its inputs are: {known}.")
    bound: dict[str, Shape] = {}
    symbols: dict[str, int] = {}
    for name, info in declared.items():
        if info.dtype.endswith(")"):
            blocker = Blocker(name, "input", f"its type is {info.dtype}, not a tensor", "export the model without it")
            raise UnsupportedModelError(imported.name, [blocker])
        if name not in shapes:
            raise InputError(f"input {quote(name)} has no shape", hint=f"expected {shape_text(info.shape)}")
        smallest = (0, 0) if name in imported.parameters else (fewest_rows, 1)
        bound[name] = _bind_shape(info, shapes[name], symbols, *smallest)
    return _Given(bound, symbols, check_values(imported, bound, values))


def _bind_shape(info: TensorInfo, shape: Shape, symbols: dict[str, int], fewest_rows: int, smallest: int) -> Shape:
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
    """Check that the clean-up kept the outputs, and that the file declares their types correctly."""
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


def _unresolved_reasons(imported: ReadModel, shapes: dict[str, Shape], folder: Folder) -> Iterator[str]:
    """Why tensors have no static shape; an error if the graph contradicts itself."""
    problems = list(why_unknown(folder.model))
    if found := next((p for p in problems if p.is_contradiction), None):
        if found.whatever_shapes or all(isinstance(dim, int) for info in imported.inputs for dim in info.shape):
            raise ModelFileError(f"{one_line(imported.name)}: {found.text}", hint=found.hint)
        given = list_text(f"{quote(name)} {shape}" for name, shape in shapes.items())
        raise InputError(f"the model can't take the input shapes {given}: {found.text}", hint="Give other sizes.")
    for problem in problems:
        yield problem.text
