"""Transposes of joined dimensions, which PyTorch's exporters write around attention.

A Reshape joins dimensions, a Transpose turns them, a Reshape splits them again. A Transpose of the split dimensions
says the same, and is an access pattern."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, maker
from trnrt.importer.rewriting.transposes import order_of
from trnrt.importer.values import static_shape

Shape = tuple[int, ...]


def split_joined(editor: Editor) -> list[str]:
    """Transpose the split dimensions themselves; return notes."""
    notes = []
    for last in list(editor.graph):
        turning = maker(last.inputs[0], "Transpose") if maker(last.outputs[0], "Reshape") is last else None
        joining = None if turning is None else maker(turning.inputs[0], "Reshape")
        if turning is None or joining is None:
            continue
        split = _split_order(turning, last)
        source = joining.inputs[0]
        if split is None or source is None or static_shape(source) is None:
            continue
        notes.append(f"{node_text(joining)}, {node_text(turning)} and {node_text(last)} made one Transpose")
        made = last.outputs[0]
        shape, order = split
        if static_shape(source) != shape:
            source = editor.reshape(last, source, shape, f"{made.name}_apart", editor.node_name(f"{last.name}_apart"))
        turned = editor.result(f"{made.name}_split", made.dtype, static_shape(made) or ())
        node = ir.node("Transpose", [source], {"perm": order}, outputs=[turned], name=turning.name)
        editor.graph.insert_before(last, node)
        editor.bypass(last, turned)
        for old in (turning, joining):
            if not old.outputs[0].uses() and not old.outputs[0].is_graph_output():
                editor.remove(old)
    return notes


def _split_order(turning: ir.Node, last: ir.Node) -> tuple[Shape, Shape] | None:
    """(the shape before the Transpose with its dimensions split as the last Reshape does, their order behind it)."""
    turned, made, order = static_shape(turning.outputs[0]), static_shape(last.outputs[0]), order_of(turning)
    runs = None if turned is None or made is None else _find_runs(turned, made)
    if runs is None or made is None or order is None or len(made) == len(order):
        return None
    # Dimension ``order[d]`` before the Transpose is dimension d behind it, which is split in run d.
    before = [order.index(axis) for axis in range(len(order))]
    dims = [dim for d in before for dim in runs[d]]
    return tuple(made[dim] for dim in dims), tuple(dims.index(dim) for dim in range(len(made)))


def _find_runs(joined: Shape, made: Shape) -> list[list[int]] | None:
    """For each joined dimension, those of ``made`` that it is split into; None if it isn't."""
    runs, at = list[list[int]](), 0
    for size in joined:
        run = list[int]()
        while at < len(made) and (prod(made[d] for d in run) != size or not run):
            run.append(at)
            at += 1
        if prod(made[d] for d in run) != size:
            return None
        runs.append(run)
    if at < len(made) and any(size != 1 for size in made[at:]):
        return None
    runs[-1] += range(at, len(made))
    return runs
