"""LSTM, GRU and RNN: one step of the recurrent kernel for each node, whatever its directions and optional inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from trnrt.importer.rows.batch import Batch, Mixes
from trnrt.importer.values import input_at
from trnrt.kernels import recurrent
from trnrt.kernels.linear import MAX_FEATURES
from trnrt.operators import order, shapes
from trnrt.operators.record import NEVER, Declaration, NotApplicable
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, is_static, node_name, value_name
from trnrt.planner.plan import Array
from trnrt.planner.steps import Call, Operand, SourceName, Step, Tensors, WeightName

Shape = tuple[int, ...]
Bytes = bytes | str

# ONNX's default functions of a direction, as the kernel names them.
FUNCTIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
KNOWN = ("relu", "sigmoid", "tanh")
"""Functions that the kernel computes between two steps; ONNX's others have parameters, or no function of the engine."""
# The last step that a dtype counts exactly, beside its sequence lengths.
_COUNTED = {"float32": 2**24, "bfloat16": 2**8, "float16": 2**11}
_BOUND = NotApplicable("an error of a step reaches all later ones: validation measures it with shaken numbers")


def find_batch(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """Rows are independent sequences. Mixes if the states or lengths have the batch elsewhere than the sequences."""
    first, rest = sources[0], sources[1:]
    if first is None or any(found is not None for found in rest):
        raise Mixes("an input other than the sequences depends on the batch")
    is_first = bool(attribute(node, "layout", 0))
    if first.axis != (0 if is_first else 1):
        raise Mixes("the batch is not where the sequences have it")
    if any(input_at(node, position) is not None for position in (4, 5, 6)):
        raise Mixes("lengths or states belong to one batch size")
    return first.move_to(shape, 0 if is_first else len(shape) - 2)


_recurrent = partial(
    Declaration, batch=find_batch, order=order.keep_order, bound=_BOUND, values=(), folds=NEVER, shapes=shapes.by_onnx
)


@dataclass(kw_only=True)
class RecurrentStep(Step):
    """A whole layer. ``sources``: sequences (T, N, I), then those of ``given``: hidden state and cell state (D, N, H),
    lengths (1, N). ``arrays``: prepared weights by name; ``more``: the names of what each direction also has."""

    kind: str
    functions: tuple[str, ...]
    backwards: tuple[bool, ...]
    given: tuple[str, ...]
    arrays: dict[str, Array]
    biases: dict[str, Array]
    clip: float = 0.0
    resets_product: bool = False

    def multiplied_sources(self) -> list[Operand]:
        return self.sources[:1]

    def call(self, tensors: Tensors) -> Call:
        places = {name: SourceName(number) for number, name in enumerate(self.given, 1)}
        count = range(len(self.backwards))
        names = {key: tuple(WeightName(f"{key}{d}") for d in count) for key in ("w", "r", "b")}
        more = tuple(WeightName(f"m{d}") if f"m{d}" in self.biases else None for d in count)
        options: dict[str, float | bool] = {"clip": self.clip} if self.clip else {}
        return Call(
            module="recurrent",
            kernel="recurrent",
            args=(
                SourceName(0),
                *(places.get(name) for name in ("h", "c", "lengths")),
                *names.values(),
                more,
                self.backwards,
                self.kind,
                self.functions,
            ),
            options=options | ({"resets_product": True} if self.resets_product else {}),
            weights=self.arrays,
            biases=self.biases,
        )

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        hidden, features = self.shape[3], self.sources[0].shape[2]
        return recurrent.recurrent_tile_bytes(self.kind, hidden, features, len(self.backwards))


@_recurrent({"LSTM": (7, 14, 22), "GRU": (7, 14, 22), "RNN": (7, 14, 22)})
def lower_recurrent(lowering: Lowering, node: ir.Node) -> None:
    """All steps of the sequences, in one or both directions; W, R, B and P must be constants."""
    kind, hidden = node.op_type.lower(), _hidden_size(lowering, node)
    backwards = {"forward": (False,), "reverse": (True,)}.get(_text(node, "direction", "forward"), (False, True))
    is_first = bool(attribute(node, "layout", 0))
    sequences = lowering.view_of(node.inputs[0])
    if len(sequences.shape) != 3:
        raise Blocked(f"X has {len(sequences.shape)} dimensions; a recurrent layer takes 3")
    sequences = sequences.permute((1, 0, 2)) if is_first else sequences
    steps, rows, features = sequences.shape
    if 0 in sequences.shape:
        raise Blocked("sequences without elements", "export the model for at least one step")
    if features > MAX_FEATURES:
        raise Blocked(f"{features:,} features in a step; up to {MAX_FEATURES:,} are supported")
    _check_room(lowering, kind, hidden)
    given = _given_states(lowering, node, kind, is_first, steps)
    arrays, biases = _prepare(lowering, node, hidden, len(backwards))
    made = next(value for value in node.outputs if value.name and is_static(value))
    step = RecurrentStep(
        name=node_name(node),
        sources=[lowering.operand_of(view) for view in (sequences, *given.values())],
        output=lowering.spare_name(f"{value_name(made)}.states"),
        shape=(len(backwards), steps + recurrent.STATES[kind], rows, hidden),
        kind=kind,
        functions=_functions(node, len(backwards)),
        backwards=backwards,
        given=tuple(given),
        arrays=arrays,
        biases=biases,
        clip=float(attribute(node, "clip", 0.0)),
        resets_product=_resets_product(node),
    )
    lowering.add(step, [node], f"{steps:,} steps of a recurrent layer; its state stays on chip")
    _set_outputs(lowering, node, View.whole(step.output, step.shape), steps, is_first)


def _text(node: ir.Node, name: str, default: str) -> str:
    found: Bytes = attribute(node, name, default)
    return found.decode() if isinstance(found, bytes) else found


def _resets_product(node: ir.Node) -> bool:
    return node.op_type == "GRU" and bool(attribute(node, "linear_before_reset", 0))


def _hidden_size(lowering: Lowering, node: ir.Node) -> int:
    """H, from the shape of R (D, G*H, H)."""
    return lowering.shape(node.inputs[2])[2]


def _check_room(lowering: Lowering, kind: str, hidden: int) -> None:
    """Block weights that would not stay in SBUF."""
    item = 4 if lowering.dtype == "float32" else 2
    taken = recurrent.recurrent_bytes(kind, hidden, item)
    if taken > recurrent.RECURRENT_BYTES:
        way = "use --dtype bfloat16, which halves them" if item == 4 else "use fewer hidden units"
        raise Blocked(
            f"recurrent weights of {taken:,} bytes a partition; up to {recurrent.RECURRENT_BYTES:,} stay in SBUF", way
        )


def _functions(node: ir.Node, directions: int) -> tuple[str, ...]:
    """The functions of one direction; blocks those that the kernel doesn't have, and two directions that differ."""
    default = FUNCTIONS[node.op_type]
    listed = attribute(node, "activations", None) or default * directions
    names = tuple((name.decode() if isinstance(name, bytes) else name).lower() for name in listed)
    for name in names:
        if name not in KNOWN:
            raise Blocked(f"the activation {name!r}", f"these are supported between steps: {', '.join(KNOWN)}")
    each = len(default)
    if len(names) != each * directions or names != names[:each] * directions:
        raise Blocked("directions with different activations", "export each direction as a layer of its own")
    return names[:each]


def _given_states(lowering: Lowering, node: ir.Node, kind: str, is_first: bool, steps: int) -> dict[str, View]:
    """The optional inputs that change something: "h", "c", each (D, N, H), and "lengths" (1, N)."""
    found: dict[str, View] = {}
    for name, position in (("h", 5), ("c", 6 if kind == "lstm" else 99)):
        value = input_at(node, position)
        constant = lowering.constant(value)
        if value is not None and (constant is None or constant.any()):
            view = lowering.view_of(value)
            found[name] = view.permute((1, 0, 2)) if is_first else view
    lengths = input_at(node, 4)
    constant = lowering.constant(lengths)
    if lengths is not None and (constant is None or (constant < steps).any()):
        if steps > _COUNTED[lowering.dtype]:
            raise Blocked(f"lengths of sequences of {steps} steps, which {lowering.dtype} doesn't count", "use float32")
        if constant is not None:
            operand = lowering.constant_operand(f"{value_name(lengths)}.numbers", constant.astype(np.float32))
            view = View.whole(operand.value, operand.shape)
        else:
            view = lowering.view_of(lengths, short_integers=True)
        found["lengths"] = view.broadcast((1, *view.shape))
    return found


def _prepare(
    lowering: Lowering, node: ir.Node, hidden: int, directions: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The weights and the biases of all directions, by the names that the step's call gives them."""
    gates = recurrent.GATES[node.op_type.lower()]
    w, r = (_constant(lowering, node, position) for position in (1, 2))
    both = _constant(lowering, node, 3, np.zeros((directions, 2 * gates * hidden), np.float32))
    peepholes = input_at(node, 7) if node.op_type == "LSTM" else None
    p = None if peepholes is None else _constant(lowering, node, 7)
    arrays, biases = {}, {}
    for d in range(directions):
        bias, own = both[d][: gates * hidden], both[d][gates * hidden :].copy()
        if _resets_product(node):
            biases[f"m{d}"] = weights.recurrent_columns(own[2 * hidden :], hidden)
            own[2 * hidden :] = 0
        w_d, r_d, b_d, p_d = w[d], r[d], bias + own, None if p is None else p[d]
        if node.op_type == "LSTM" and attribute(node, "input_forget", 0):
            w_d, r_d, b_d = (_couple(array, hidden, 2 * hidden) for array in (w_d, r_d, b_d))
            p_d = None if p_d is None else _couple(p_d, hidden, 2 * hidden)
        arrays[f"w{d}"] = weights.recurrent_input_weight(w_d, hidden)
        arrays[f"r{d}"] = weights.recurrent_weight(r_d, hidden)
        biases[f"b{d}"] = weights.recurrent_columns(b_d, hidden)
        if p_d is not None and p_d.any():
            biases[f"m{d}"] = weights.recurrent_columns(p_d, hidden)
    return arrays, biases


def _couple(array: Array, hidden: int, forget: int) -> Array:
    """The rows of an LSTM's forget gate as 1 - input gate: sigmoid(-x) = 1 - sigmoid(x)."""
    coupled = array.copy()
    coupled[forget : forget + hidden] = -array[:hidden]
    return coupled


def _constant(lowering: Lowering, node: ir.Node, position: int, default: Array | None = None) -> Array:
    """A constant input as float32; blocks a computed one."""
    value = input_at(node, position)
    if value is None and default is not None:
        return default
    constant = lowering.constant(value)
    if constant is None:
        raise Blocked(f"{'XWRB'[position] if position < 4 else 'P'} is computed", "its weights must be constants")
    return constant.astype(np.float32)


def _set_outputs(lowering: Lowering, node: ir.Node, states: View, steps: int, is_first: bool) -> None:
    """Declare the node's outputs as parts of the step's result (D, T + states, N, H)."""
    sequence = states.slice(1, 0, steps).permute((2, 1, 0, 3) if is_first else (1, 0, 2, 3))
    views = [sequence]
    for number in range(steps, states.shape[1]):
        last = states.slice(1, number, 1).permute((2, 0, 1, 3) if is_first else (0, 1, 2, 3))
        shape = (*last.shape[:2], last.shape[3]) if is_first else (last.shape[0], *last.shape[2:])
        squeezed = last.reshape(shape)
        assert squeezed is not None
        views.append(squeezed)
    for made, view in zip(node.outputs, views, strict=False):
        if made.name and is_static(made):
            lowering.set_view(made, view)
