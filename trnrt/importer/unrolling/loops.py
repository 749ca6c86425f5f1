"""Loops with a known number of trips, written out: each trip is a copy of the body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from trnrt.importer.fused.writing import Writer
from trnrt.importer.naming import node_text
from trnrt.importer.unrolling.copying import copy_body, lift_constants, take_all_names
from trnrt.importer.unrolling.trips import MOST_TRIPS, count_trips
from trnrt.importer.values import is_used, release_bodies, static_shape
from trnrt.text import count_text

MOST_NODES = 20_000
"""Nodes that the loops of a model may have as unrolled, together: the file is untrusted."""
# Where a model keeps the number so far: loops may lie in loops.
_SPENT = "trnrt.unrolled"


def unroll_loops(writer: Writer) -> list[str]:
    """Write out each Loop and Scan of the graph whose trips are known; those in its body come the next time."""
    notes = []
    take_all_names(writer.editor)
    for node in list(writer.model.graph):
        unroll = _UNROLLED.get(node.op_type) if node.domain == "" else None
        if unroll is None:
            continue
        note, writer.node = node_text(node), node
        trips = unroll(writer, node)
        if trips is not None:
            release_bodies(node)
            notes.append(f"{note} runs {count_text(trips, 'time')}: unrolled")
    return notes


def _may_unroll(model: ir.Model, node: ir.Node, trips: int, collected: Sequence[ir.Value]) -> bool:
    """True if the loop isn't too long, and collects something only if it runs; its nodes are then counted."""
    size = sum(1 for _ in node.attributes["body"].as_graph().all_nodes())
    spent = int(model.meta.get(_SPENT, 0)) + trips * size
    if spent > MOST_NODES or (trips == 0 and any(map(is_used, collected))):
        return False
    model.meta[_SPENT] = spent
    return True


def _unroll_loop(writer: Writer, loop: ir.Node) -> int | None:
    """The trips of a Loop that was written out; None if it can't be."""
    spent = int(writer.model.meta.get(_SPENT, 0))
    trips = count_trips(loop) if spent < MOST_NODES else None
    if trips is None:
        writer.model.meta[_SPENT] = spent + MOST_TRIPS  # counting takes time, too
        return None
    states = [value for value in loop.inputs[2:] if value is not None]
    collected = loop.outputs[len(states) :]
    if not _may_unroll(writer.model, loop, trips, collected):
        return None
    going = writer.constant(np.array(True), f"{loop.name}_going")
    given = [[writer.constant(np.array(trip, np.int64), f"{loop.name}_trip"), going] for trip in range(trips)]
    states, rows = _copy_trips(writer, loop, given, states, [], 1)
    pairs = zip(collected, rows, strict=False)  # a Loop may leave out outputs
    writer.finish(*states, *(_stack(writer, row, 0) if is_used(output) else None for output, row in pairs))
    return trips


def _unroll_scan(writer: Writer, scan: ir.Node) -> int | None:
    """The trips of a Scan that was written out: the size of the axis along which it takes its last inputs."""
    values = [value for value in scan.inputs if value is not None]
    count = len(values) - scan.attributes.get_int("num_scan_inputs", 0)
    states, scanned, collected = values[:count], values[count:], scan.outputs[count:]
    shapes = [static_shape(value) for value in scanned]
    if writer.opset < 9 or not scanned or any(not shape for shape in shapes):
        return None
    axes = [
        axis % len(shape or ()) for axis, shape in zip(_ints(scan, "scan_input_axes", scanned), shapes, strict=True)
    ]
    trips = {(shape or ())[axis] for axis, shape in zip(axes, shapes, strict=True)}
    if len(trips) != 1 or not _may_unroll(writer.model, scan, max(trips), collected):
        return None
    given: list[list[ir.Value]] = [[] for _ in range(max(trips))]
    turned = _ints(scan, "scan_input_directions", scanned)
    for value, axis, backwards in zip(scanned, axes, turned, strict=True):
        parts = writer.split(value, [1] * len(given), axis)
        parts = [writer.squeeze(part, axis) for part in (parts[::-1] if backwards else parts)]
        given = [[*before, part] for before, part in zip(given, parts, strict=True)]
    states, rows = _copy_trips(writer, scan, [[]] * len(given), states, given, 0)
    places = zip(
        _ints(scan, "scan_output_axes", collected), _ints(scan, "scan_output_directions", collected), strict=True
    )
    results = [
        _stack(writer, row[::-1] if backwards else row, axis) if is_used(output) else None
        for output, row, (axis, backwards) in zip(collected, rows, places, strict=False)
    ]
    writer.finish(*states, *results)
    return len(given)


def _ints(scan: ir.Node, name: str, values: Sequence[ir.Value]) -> list[int]:
    """The numbers in an attribute, one for each value; by default 0."""
    return list(scan.attributes.get_ints(name, [0] * len(values)))


def _copy_trips(
    writer: Writer,
    node: ir.Node,
    before: Sequence[list[ir.Value]],
    states: list[ir.Value],
    after: Sequence[list[ir.Value]],
    first: int,
) -> tuple[list[ir.Value], list[list[ir.Value]]]:
    """Copy the body for each trip, with inputs ``before`` and ``after`` the states; its states are the outputs from
    ``first`` on. Returns the last states, and of each other output the values of all trips."""
    body, editor = node.attributes["body"].as_graph(), writer.editor
    lift_constants(editor, body, str(node.name))
    end = first + len(states)
    rows: list[list[ir.Value]] = [[] for _ in body.outputs[end:]]
    for trip, given in enumerate(before):
        inputs = [*given, *states, *(after[trip] if after else [])]
        made, _ = copy_body(editor, node, body, inputs, f"{node.name}_{trip}")
        states = made[first:end]
        for row, value in zip(rows, made[end:], strict=True):
            row.append(value)
    return states, rows


def _stack(writer: Writer, values: list[ir.Value], axis: int) -> ir.Value:
    """The values, one from each trip, along a new dimension."""
    return writer.apply("Concat", *(writer.unsqueeze(value, axis) for value in values), axis=axis)


_UNROLLED: dict[str, Callable[[Writer, ir.Node], int | None]] = {"Loop": _unroll_loop, "Scan": _unroll_scan}
