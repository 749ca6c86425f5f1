"""Constant folding and shape inference over a graph whose input shapes are concrete.

onnxscript's folder does both node by node. Added here: limits of what it may compute, the shapes of ``ai.onnx.ml``
operators, operators that it doesn't compute, constants that repeat one value without storing it, and operators that
change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import optimizer

from trnrt.importer.folding.computing import compute_constants
from trnrt.importer.folding.counting import compute_counts
from trnrt.importer.folding.dequantising import dequantise_constants
from trnrt.importer.folding.guarding import is_premature
from trnrt.importer.folding.history import Snapshot
from trnrt.importer.folding.idle import is_idle
from trnrt.importer.folding.inference import infer
from trnrt.importer.folding.spatial import SIZED, is_open
from trnrt.importer.folding.windows import write_out_padding
from trnrt.importer.naming import node_text
from trnrt.importer.reading.limits import LARGEST_CONSTANT, MOST_FOLDED
from trnrt.importer.values import (
    constant_array,
    is_resolved,
    named_outputs,
    release_bodies,
    replace_output,
    static_size,
)
from trnrt.operators.record import CHEAP, SMALL, record_of
from trnrt.text import list_text

# The folder has its own limits, in elements; ours are in bytes and come first.
_NO_LIMIT = 2**62

# Elements of inputs and output of a node that is folded only if it is small.
_SMALL = 4096

# Nodes hidden from the folder. It splits sequences of any length into operators of newer opsets. (``_fold`` also hides
# nodes whose result has another size in onnxruntime than in ONNX's inference.)
_OF_SEQUENCES = frozenset({"ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SplitToSequence"})

_MOST_ROUNDS = 32


@dataclass
class Folder:
    """Folds ``model`` in place, any number of times; the limits are for all of them together.

    ``symbols``: the sizes of the model's symbolic dimensions. ``keeps_integers``: constants are not dequantised yet.
    """

    model: ir.Model
    symbols: dict[str, int]
    keeps_integers: bool = False
    _left: int = MOST_FOLDED

    def __post_init__(self) -> None:
        """Discard the file's shapes of inner tensors: they may be wrong, and are inferred again."""
        for node in self.model.graph:
            for value in node.outputs:
                value.meta["trnrt.declared"] = (value.type, value.shape)
                value.type = value.shape = None

    def settle(self) -> list[str]:
        """Fold, infer, and drop idle or unused nodes until nothing changes; return notes on what was done."""
        nodes = [(node, node_text(node)) for node in self.model.graph]
        passes.RemoveUnusedNodesPass()(self.model)
        unused = [title for node, title in nodes if node.graph is None]
        notes = [f"left out, as no output needs it: {list_text(unused)}"] if unused else []
        before = Snapshot(self.model.graph)
        # A chain of resizes, each sized by the shape of the one before, takes a round for each.
        sized = sum(node.op_type in SIZED for node in self.model.graph)
        for node in self.model.graph:
            infer(node, self.model, self.symbols)
        for _ in range(_MOST_ROUNDS + sized):
            if not self._round():
                break
        notes += before.changes(self.model.graph)
        return notes + write_out_padding(self.model)

    def _round(self) -> bool:
        changed = self._fold()
        changed |= passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(self.model).modified
        changed |= self._lift_constant_outputs()
        changed |= passes.RemoveUnusedNodesPass()(self.model).modified
        for node in self.model.graph:
            changed |= infer(node, self.model, self.symbols)
            changed |= (
                self._count(node)
                or self._fill(node)
                or self._dequantise(node)
                or self._compute(node)
                or _drop_if_idle(node)
            )
        return bool(changed)

    def _fold(self) -> bool:
        nodes = list(self.model.graph.all_nodes())
        hidden = [n for n in nodes if n.domain == "" and (n.op_type in _OF_SEQUENCES or is_open(n) or is_premature(n))]
        for node in hidden:
            node.domain = "trnrt.hidden"
        open_values = any(not is_resolved(value) for node in self.model.graph for value in named_outputs(node))
        result = optimizer.fold_constants(
            self.model,
            onnx_shape_inference=open_values,  # of every node: half the time of a round
            input_size_limit=_NO_LIMIT,
            output_size_limit=_NO_LIMIT,
            should_fold=self._may_fold,
        )
        for node in hidden:
            node.domain = ""
        for node in nodes:
            if node.graph is None:  # an If of a constant condition: the folder keeps one branch
                release_bodies(node)
        return bool(result.modified)

    def _may_fold(self, node: ir.Node) -> bool:
        """Whether to compute a node, whose inputs are all constant."""
        for value in node.inputs:
            if value is not None:
                # The folder's record of a constant's origins grows with the square of a chain's length.
                value.meta.pop(optimizer.FOLDED_FROM_KEY, None)
        record = record_of(node)
        if record is None or not record.folds & (CHEAP | SMALL) or len(node.outputs) != 1:
            return False
        output = node.outputs[0]
        size = static_size(output)
        if size is None or output.dtype is None or ir.DataType.STRING in (output.dtype, *_dtypes(node)):
            return False
        arrays = [array for value in node.inputs if (array := constant_array(value)) is not None]
        if SMALL in record.folds and size + sum(a.size for a in arrays) > _SMALL:
            return False
        there = sum(_stored_bytes(array) for array in arrays)
        made = math.ceil(size * output.dtype.itemsize)
        return made <= max(LARGEST_CONSTANT, there) and self._spend(made)

    def _spend(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def _count(self, node: ir.Node) -> bool:
        """Compute a node of shapes and counts, so that the nodes behind it get their shapes in the same round."""
        array = compute_counts(node)
        if array is None or not self._spend(array.nbytes):
            return False
        _replace_by_constant(node, ir.tensor(array))
        return True

    def _fill(self, node: ir.Node) -> bool:
        """Turn a ConstantOfShape into an initializer that looks like a full array but stores one element."""
        if node.op_type != "ConstantOfShape" or node.domain != "" or node.inputs[0] is None:
            return False
        shape = constant_array(node.inputs[0])
        if shape is None or shape.ndim != 1 or np.any(shape < 0):
            return False
        value = node.attributes.get("value")
        element = value.as_tensor().numpy().reshape(-1)[:1] if value is not None else np.zeros(1, np.float32)
        dims = [int(dim) for dim in shape]
        if element.size != 1 or not self._spend(math.prod(dims) * element.itemsize):
            return False
        _replace_by_constant(node, ir.tensor(np.broadcast_to(element.reshape([1] * len(dims)), dims)))
        return True

    def _dequantise(self, node: ir.Node) -> bool:
        """Compute weights that are stored as integers; onnxscript's folder keeps them, for integer arithmetic."""
        source = node.inputs[0] if node.inputs else None
        if (
            self.keeps_integers
            or node.op_type != "DequantizeLinear"
            or source is None
            or (whole := constant_array(source)) is None
        ):
            return False
        made = 4 * whole.size
        # The file's integers take 4 bits or more each; if this is larger, the array only looks large.
        if made > max(LARGEST_CONSTANT, 8 * _stored_bytes(whole)) or made > self._left:
            return False
        array = dequantise_constants(node)
        if array is None:
            return False
        self._spend(made)
        _replace_by_constant(node, ir.tensor(array))
        return True

    def _compute(self, node: ir.Node) -> bool:
        """Compute an operator on constants that onnxscript's folder can't."""
        source = constant_array(node.inputs[0]) if node.inputs else None
        if source is None:
            return False
        most = min(max(LARGEST_CONSTANT, _stored_bytes(source)), self._left)
        if max(source.nbytes, (static_size(node.outputs[0]) or 0) * source.itemsize) > most:
            return False
        array = compute_constants(node)
        if array is None:
            return False
        self._spend(array.nbytes)
        _replace_by_constant(node, ir.tensor(array))
        return True

    def _lift_constant_outputs(self) -> bool:
        """Turn Constant nodes that are graph outputs into initializers; the pass for the others skips them."""
        nodes = [value.producer() for value in self.model.graph.outputs]
        constants = [n for n in nodes if n is not None and n.op_type == "Constant" and n.domain == ""]
        for node in constants:
            if (tensor := node.outputs[0].const_value) is not None:
                _replace_by_constant(node, tensor)
        return bool(constants)


def _replace_by_constant(node: ir.Node, tensor: ir.TensorProtocol) -> None:
    replace_output(node, ir.val(node.outputs[0].name, const_value=tensor))


def _drop_if_idle(node: ir.Node) -> bool:
    """Turn a node that changes nothing into an Identity, which the folder then removes if possible."""
    if not is_idle(node):
        return False
    source = node.inputs[0]
    copy = ir.node("Identity", [source], name=node.name)
    replace_output(node, copy.outputs[0], copy)
    return True


def _dtypes(node: ir.Node) -> Iterator[ir.DataType | None]:
    return (value.dtype for value in node.inputs if value is not None)


def _stored_bytes(array: np.ndarray) -> int:
    """Bytes in memory: one element if the array only looks larger."""
    return array.itemsize if not any(array.strides) else int(array.nbytes)
