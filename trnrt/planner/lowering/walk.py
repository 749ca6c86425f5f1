"""Graph to steps: the function in each operator's record lowers its ONNX nodes.

A lowering function makes a step (and absorbs nodes that its kernel also computes), declares a view, or hands a boundary
node to the host. If it can't lower a node, it blocks it, with the reason and a way out. To add an operator, add one
record in ``operators``, a kernel if none fits, and one table of test cases.

A value of the graph is a view of a stored tensor (see ``views``). Moving elements is free until a kernel needs them
contiguous; then a single copy does all the moves so far.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trnrt.errors import Blocker
from trnrt.importer.values import attribute as attribute
from trnrt.importer.wholes import Wholes
from trnrt.operators.record import Group, find_groups, lowering_of
from trnrt.planner.choices import ASKED
from trnrt.planner.lowering.blocked import FALLBACK, WRONG, NotStatic
from trnrt.planner.lowering.blocked import Blocked as Blocked
from trnrt.planner.lowering.indices import keep_exact
from trnrt.planner.lowering.integers import EXACT, bound_integers, check_on_host, is_only_searched
from trnrt.planner.lowering.moving import copy_step
from trnrt.planner.lowering.refusals import refusal
from trnrt.planner.lowering.row_numbers import index_nodes
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.weights import keep_finite
from trnrt.planner.naming import printable
from trnrt.planner.plan import Array, DeviceTensor, HostNode, NodeReport
from trnrt.planner.steps import Operand, Step

FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
# Types that the session's dtype can represent: truth values as 0 and 1, and in float32 two-byte integers.
_TRUTH = {ir.DataType.BOOL}
_SHORT_INTEGERS = {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16}
_LONG_INTEGERS = {ir.DataType.INT32, ir.DataType.UINT32, ir.DataType.INT64, ir.DataType.UINT64}
# Integers that the core made itself (a cast) are whole numbers in the session's dtype.
INTEGERS = _SHORT_INTEGERS | _LONG_INTEGERS
_FIRST_OPSET = 6
"""Before it, sizes are attributes (Reshape), which nothing here reads."""
_CAST_HINT = f"cast to float32 before it; {FALLBACK}"
_DTYPE_HINTS: dict[ir.DataType | None, str] = {
    ir.DataType.DOUBLE: f"convert the model to float32; {FALLBACK}",
    ir.DataType.STRING: f"prepare the text before the model; {FALLBACK}",
}


class Lowering:
    """The walk over one graph: its steps, views, host nodes and blockers, in order.

    ``dtype`` is the session's. ``tensors`` are constants of the model that steps read like computed tensors.
    ``no_fuse`` are nodes that are never computed in one step with the nodes before them. ``prepared`` are weights of
    products that another lowering of this graph has laid out. ``budget``: the most instructions of a kernel, 0 for any
    number. ``counts_through_batch``: the host prepares numbers that count from the first row of the batch on, which are
    wrong for a part of it. ``moves_indices``: the current node only carries numbers of an input to where they are
    indices (``row_numbers.py``).
    """

    def __init__(
        self,
        graph: ir.Graph,
        dtype: str = "float32",
        no_fuse: Collection[str] = (),
        prepared: dict[tuple[str, int], Array] | None = None,
        budget: int = 0,
    ) -> None:
        self.graph = graph
        self.budget = budget
        self.no_fuse = no_fuse
        self.dtype = dtype
        self.opset = graph.opset_imports.get("", 0)
        self.steps: list[Step] = []
        self.host: list[HostNode] = []
        self.before: list[HostNode] = []
        self.prepared_inputs: list[DeviceTensor] = []
        self.counts_through_batch = False
        self.blockers: list[Blocker] = []
        self.reports: dict[str, NodeReport] = {}
        self.constants: dict[str, Array] = {}
        self.tensors: dict[str, Array] = {}
        self.prepared = {} if prepared is None else prepared
        self.notes: list[str] = []
        self._inputs = {value_name(value) for value in graph.inputs}
        self._names = {v.name for v in _values(graph)} | {node.name for node in graph}
        self._views: dict[str, View] = {}
        self._absorbed: set[str] = set()
        self._on_host: set[str] = set()
        self._whole_numbers: set[str] = set()
        self._lists: set[str] = set()
        self._checked: dict[str, str] = {}
        self._copies: dict[View, str] = {}
        self._places: dict[str, tuple[Callable[[Lowering, str], str], str]] = {}
        self._wide: set[str] = set()
        self._index_nodes = index_nodes(graph)
        self.moves_indices = False

    def walk(self) -> None:
        """Lower every node; those of a group at its last one."""
        groups = find_groups(self)
        inner = {node.name: group for group in groups for node in group.nodes}
        for node in self.graph:
            group = inner.get(node.name)
            if group is None:
                self._lower(node)
            elif node is group.nodes[-1] and not self._lower_group(group):
                for member in group.nodes:
                    self._lower(member)

    def _lower_group(self, group: Group) -> bool:
        """Lower the nodes of a group together, if that is possible."""
        done, self.moves_indices = len(self.steps), False
        try:
            lowered = group.lower(self)
        except Blocked:  # lowered one by one, the node to blame says why
            lowered = False
        if not lowered:
            self._undo(done)
        return lowered

    def _lower(self, node: ir.Node) -> None:
        if node.name in self._absorbed:
            return
        lower = lowering_of((node.domain, node.op_type))
        done = len(self.steps)
        self.moves_indices = node.name in self._index_nodes
        try:
            if lower is None:
                raise refusal(node)
            if any(is_static(value) and 0 in (value.shape or ()) for value in node.outputs):
                raise Blocked(
                    "its output has no elements", f"export the model for shapes that leave something; {FALLBACK}"
                )
            lower(self, node)
        except Blocked as blocked:
            self._undo(done)
            self._block(node, blocked)

    def _undo(self, done: int) -> None:
        """Remove the steps from number ``done`` on; the node that made them is blocked after all."""
        gone = {step.output for step in self.steps[done:]}
        del self.steps[done:]
        self._copies = {view: name for view, name in self._copies.items() if name not in gone}
        self._places = {name: (make, "" if made in gone else made) for name, (make, made) in self._places.items()}

    def _block(self, node: ir.Node, blocked: Blocked) -> None:
        name, op = node_name(node), operator_name(node)
        to_blame = not isinstance(blocked, NotStatic) or all(is_static(v) for v in node.inputs if v is not None)
        if to_blame:
            self.blockers.append(Blocker(name, op, blocked.reason, blocked.hint))
        self.reports[name] = NodeReport(name, op, None, None, "blocked", blocked.reason)

    # Queries of lowering functions.

    def constant(self, value: ir.Value | None) -> Array | None:
        """The value of a constant, or None if it is computed; finite numbers stay finite in the session's dtype."""
        if value is None or value.const_value is None:
            return None
        array = value.const_value.numpy()
        if value.dtype is ir.DataType.STRING:
            texts = [text.decode("utf-8", "replace") for text in array.reshape(-1)]
            return np.array(texts, dtype=object).reshape(array.shape)
        return keep_finite(array, self.dtype)

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """The static shape of a value; blocks the node if there is none."""
        if value is None:
            raise Blocked("a required input is missing", WRONG)
        if value.shape is None or not is_static(value):
            if self.opset < _FIRST_OPSET:
                old = f"the shape of {value.name!r} is not known in a model of opset {self.opset}"
                raise NotStatic(old, "convert the model to opset 7 or later")
            raise NotStatic(f"the shape of {value.name!r} depends on the data", "export the model with fixed shapes")
        return tuple(int(d) for d in value.shape if isinstance(d, int))

    def operand(self, value: ir.Value | None, *, short_integers: bool = False) -> Operand:
        """A device tensor as a step reads it: contiguous, in its ONNX shape; a constant becomes a weight.

        A view that isn't contiguous is copied first, once for all its readers. ``short_integers`` accepts integers that
        the session's dtype represents exactly: one- and two-byte types, whole numbers that a step made, and inputs of
        the model, which are checked when it runs. They may be moved, compared or chosen from; arithmetic on them must
        round and wrap around as ONNX does (``operators/integers.py``).
        """
        return self.operand_of(self.view_of(value, short_integers=short_integers))

    def operand_of(self, view: View) -> Operand:
        """A view as a contiguous tensor: the stored tensor itself if it is whole, else a copy of its elements."""
        view = self.readable(view)
        if view.is_whole:
            return Operand(view.root, view.shape)
        pattern = replace(view, nodes=())
        if pattern not in self._copies:
            name = self.spare_name(f"{view.nodes[-1] if view.nodes else view.root}.copy")
            step, why = copy_step(name, view)
            nodes = [node for node in self.graph if node_name(node) in view.nodes]
            self.add(step, nodes, why, place="dma")
            self._copies[pattern] = name
        return Operand(self._copies[pattern], view.shape)

    def view_of(self, value: ir.Value | None, *, short_integers: bool = False) -> View:
        """A tensor of the device as an access pattern on a stored one. Blocks a value that isn't on the device."""
        return self.readable(self.place_view(value, short_integers=short_integers))

    def place_view(self, value: ir.Value | None, *, short_integers: bool = True) -> View:
        """``view_of``, but a search's places stay as they are, uint32: only a look-up takes them."""
        self.shape(value)
        assert value is not None
        if self.is_on_host(value):
            raise Blocked(f"{value.name!r} is made on the host from a final index; no arithmetic can follow it")
        self._check_dtype(value, short_integers)
        view = self._view(value)
        # Short integers need no check.
        if self.moves_indices or value.dtype not in _LONG_INTEGERS or view.root not in self._inputs:
            return view
        return replace(view, root=self._check_input(view.root))

    def readable(self, view: View) -> View:
        """A view of a search's places as one of whole numbers in float32, made once for all readers; as it is if the
        search is blocked: its readers aren't to blame."""
        if view.root not in self._places or not any(step.output == view.root for step in self.steps):
            return view
        make, floats = self._places[view.root]
        if not floats:
            floats = make(self, view.root)
            self._places[view.root] = make, floats
            self._whole_numbers.add(floats)
            self.mark_wide(floats)
        return replace(view, root=floats)

    def _check_input(self, name: str) -> str:
        """The tensor that holds the integers of an input, once the host has checked that its dtype represents them: the
        session's, or float32 if no arithmetic needs the other."""
        known = next((checked for checked, given in self._checked.items() if given == name), "")
        if known:
            return known
        value = next(value for value in self.graph.inputs if value.name == name)
        dtype = "float32" if is_only_searched(value) else self.dtype
        checked, limit = self.spare_name(f"{name}.whole"), self._integers[0] if dtype == self.dtype else EXACT[dtype]
        tensor = DeviceTensor(checked, self.shape(value) or (1,), dtype)
        self.prepare(tensor, check_on_host(tensor, name, limit))
        if dtype != self.dtype:
            self.mark_wide(checked)
        self._checked[checked] = name
        return checked

    @cached_property
    def _integers(self) -> tuple[float, Wholes]:
        """The largest magnitude of integers in inputs, and the limits of whole numbers with it."""
        return bound_integers(self.graph, self.dtype)

    @property
    def wholes(self) -> Wholes:
        """The limits of whole numbers, for inputs that pass their check."""
        return self._integers[1]

    def constant_operand(self, name: str, array: Array) -> Operand:
        """A constant computed at planning time, as a tensor that steps can read."""
        name = self.spare_name(name)
        self.tensors[name] = np.ascontiguousarray(array, np.float32).reshape(array.shape or (1,))
        return Operand(name, array.shape)

    def _check_dtype(self, value: ir.Value, short_integers: bool) -> None:
        kind = value.dtype
        if self.moves_indices:
            return  # they only become access patterns, which the host follows
        short = short_integers and kind in _SHORT_INTEGERS and self.dtype == "float32"
        root = self.root(value)
        known = root in self._whole_numbers or self._given_name(root) in self._inputs or self._is_exact(value)
        whole = short_integers and kind in INTEGERS and known
        if kind in FLOATS | _TRUTH or short or whole:
            return
        name = kind.name.lower() if kind is not None else "unknown"
        raise Blocked(f"arithmetic on {name} tensors", _DTYPE_HINTS.get(kind, _CAST_HINT))

    def _is_exact(self, value: ir.Value) -> bool:
        """True if a value is a constant of integers that the session's dtype represents."""
        array = self.constant(value)
        most = EXACT[self.dtype]
        return array is not None and array.dtype.kind in "iu" and bool(((array <= most) & (array >= -most)).all())

    def _view(self, value: ir.Value) -> View:
        name = value_name(value)
        if name in self._views:
            return self._views[name]
        constant = self.constant(value)
        if constant is not None and name not in self.tensors:
            self.tensors[name] = np.ascontiguousarray(constant, np.float32).reshape(constant.shape or (1,))
        return View.whole(name, self.shape(value))

    def index_view(self, value: ir.Value) -> View:
        """Integers of a model input as an access pattern on it; steps can't read them through it."""
        view = self._view(value)
        return replace(view, root=self._given_name(view.root))

    def _given_name(self, root: str) -> str:
        """The input of the model that a tensor holds, checked; else the tensor itself."""
        return self._checked.get(root, root)

    def prepare(self, tensor: DeviceTensor, node: HostNode) -> None:
        """Have the host compute ``tensor`` from inputs of the model, and pass it to the device as one."""
        self.before.append(node)
        self.prepared_inputs.append(tensor)

    def root(self, value: ir.Value) -> str:
        """The stored value under the view ``value`` (usually itself)."""
        name = value_name(value)
        return self._views[name].root if name in self._views else name

    def is_input(self, value: ir.Value) -> bool:
        """True if a value is an input of the model, or a view of one."""
        return self._given_name(self.root(value)) in self._inputs

    def is_there(self, value: ir.Value) -> bool:
        """True if a value is an input, the result of a step made already, or a view of either."""
        root = self._given_name(self.root(value))
        return root in self._inputs or any(step.output == root for step in self.steps)

    def is_on_host(self, value: ir.Value | None) -> bool:
        """True if a value is computed on the host (a final index or label)."""
        return value is not None and value.name in self._on_host

    def sole_consumer(self, value: ir.Value) -> tuple[ir.Node | None, str]:
        """The only node that reads ``value``, or None and the reason."""
        readers = list(dict.fromkeys(node for node, _ in value.uses()))
        if value.is_graph_output():
            return None, f"{value.name!r} is an output of the model"
        if len(readers) != 1:
            return None, f"{value.name!r} is read by {len(readers)} nodes"
        if node_name(readers[0]) in self.no_fuse:
            return None, ASKED
        return readers[0], ""

    # Actions of lowering functions.

    def add(self, step: Step, nodes: list[ir.Node], why: str, place: str = "core", *, together: bool = False) -> None:
        """Append a step that covers ``nodes``. ``place``: "core", or "dma" where elements are only moved; ``together``:
        they are one computation, not one with what follows it."""
        if self.moves_indices:
            raise Blocked("indices from an input that the device would have to copy: their order is no access pattern")
        if keep_exact(step, self._wide, nodes, self.dtype):
            self._wide.add(step.output)
        self.steps.append(step)
        step.nodes = [node_name(n) for n in nodes]
        step.title = [f"{operator_name(n)} {node_name(n)}" for n in nodes]
        for position, node in enumerate(nodes):
            fused = place == "core" and position > 0 and not together
            reason = f"fused into {step.name}: computed as its result leaves the engine" if fused else why
            self.report(node, place, reason, step=step.name)
            self._absorbed.add(node_name(node))

    def view(self, node: ir.Node, source: ir.Value, why: str) -> None:
        """Declare the node's first output to be ``source`` in another shape."""
        made, shape = node.outputs[0], self.shape(node.outputs[0])
        if self.is_on_host(source):
            self._on_host.add(value_name(made))
        view = self._view(source)
        other = view.reshape(shape)
        if other is None:  # the elements of a non-contiguous view, in another order of dimensions
            whole = self.operand_of(view)
            other = View.whole(whole.value, shape)
        self.add_view(node, made, other, why)

    def add_view(self, node: ir.Node, made: ir.Value, view: View, why: str) -> None:
        """Declare an output of the node to be a view."""
        assert view.shape == self.shape(made), (view.shape, made)
        self._views[value_name(made)] = view.with_node(node_name(node))
        self.report(node, "view", why)

    def set_view(self, made: ir.Value, view: View) -> None:
        """Record that a step stored an output in the order that ``view`` reads."""
        assert view.shape == self.shape(made), (view.shape, made)
        self._views[value_name(made)] = view

    def settle_outputs(self) -> None:
        """Copy outputs of the model that are views, except mere reshapes, which the host can do."""
        for value in self.graph.outputs:
            view = self._views.get(value_name(value))
            if view is not None and not view.is_whole and not self.is_on_host(value):
                try:
                    copy = self.operand_of(view)
                except Blocked as blocked:
                    producer = value.producer()
                    assert producer is not None
                    self._block(producer, blocked)
                    continue
                self._views[value_name(value)] = View.whole(copy.value, view.shape)

    def run_on_host(self, node: ir.Node, compute: Callable[..., Array], why: str) -> None:
        """Run a boundary node on the host."""
        for value in node.inputs:
            constant = self.constant(value)
            if value is not None and constant is not None:
                self.constants[value_name(value)] = constant
        inputs = tuple(self.root(value) for value in node.inputs if value is not None)
        output = value_name(node.outputs[0])
        self.host.append(HostNode(node_name(node), operator_name(node), inputs, output, compute))
        self._on_host.add(output)
        self.report(node, "host", why)

    def spare_name(self, wanted: str) -> str:
        """A name for a new step or value: ``wanted``, or a variation of it if the model uses that."""
        while wanted in self._names:
            wanted += "_"
        self._names.add(wanted)
        return wanted

    def mark_whole_numbers(self, value: ir.Value) -> None:
        """Record that a value, if of an integer type, is stored as whole numbers in the session's dtype."""
        if value.dtype in INTEGERS:
            self._whole_numbers |= {value_name(value), self.root(value)}

    def mark_index(self, value: ir.Value) -> None:
        """Record that a device result is an index, which only boundary nodes may read."""
        self._on_host.add(value_name(value))

    def mark_places(self, value: ir.Value, stored: str, to_floats: Callable[[Lowering, str], str]) -> None:
        """Record that a search stores its places, which steps read, as uint32. ``to_floats`` appends the step that
        copies them to float32, and returns the copy's name."""
        self.mark_whole_numbers(value)
        self._whole_numbers.add(stored)
        self._places[stored] = to_floats, ""

    def mark_wide(self, stored: str) -> None:
        """Record that a stored tensor has whole numbers in float32, whatever the session's dtype."""
        self._wide.add(stored)

    def holds_places(self, stored: str) -> bool:
        """True if a stored tensor is a search's places, uint32."""
        return stored in self._places

    def is_wide(self, value: ir.Value | None) -> bool:
        """True if whole numbers are stored in float32, or uint32, whatever the session's dtype."""
        return value is not None and (self.dtype == "float32" or self.root(value) in {*self._wide, *self._places})

    def mark_list(self, value: ir.Value) -> None:
        """Record that an output of the model is a list made on the host, not a tensor."""
        self._lists.add(value_name(value))

    def is_list(self, value: ir.Value) -> bool:
        """True if an output of the model is a list made on the host."""
        return value_name(value) in self._lists

    def stored_values(self, stored: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Map each stored tensor to its value in the graph and the order of its dimensions.

        A value may be stored with its dimensions permuted; a tensor that is no value has an empty name.
        """
        found: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(stored, ("", ()))
        found |= _ordered_values(self.graph, set(stored))
        patterns = {replace(view, nodes=()): value for value, view in self._views.items()}
        for view, value in patterns.items():
            copy = self._copies.get(view)
            if copy in found and not found[copy][0]:
                found[copy] = (value, tuple(range(len(view.shape))))
            order = view.order
            if order is not None and view.root in found and not found[view.root][0]:
                found[view.root] = (value, tuple(order.index(d) for d in range(len(order))))
        return found

    def report(self, node: ir.Node, place: str, reason: str, step: str | None = None) -> None:
        """Record how a node was lowered."""
        self.reports[node_name(node)] = NodeReport(node_name(node), operator_name(node), step, None, place, reason)


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]


def _ordered_values(graph: ir.Graph, stored: set[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The values of the graph stored under their own names, with their dimensions in order."""
    made = [value for node in graph for value in node.outputs if value.name in stored]
    return {value_name(v): (value_name(v), tuple(range(len(v.shape or ())))) for v in made}


def is_static(value: ir.Value) -> bool:
    """True if a value has a known dtype and shape."""
    return value.dtype is not None and value.shape is not None and all(isinstance(d, int) for d in value.shape)


def value_name(value: ir.Value) -> str:
    """A value's name; the importer gives every value one."""
    assert value.name is not None
    return value.name


def node_name(node: ir.Node) -> str:
    """A node's name; the importer gives every node one."""
    assert node.name is not None
    return node.name


def operator_name(node: ir.Node) -> str:
    """The operator, with its domain if that isn't ONNX's own; neither may be known to ONNX."""
    return printable(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
