"""LSTM, GRU and RNN: one step of the recurrent kernel for each node, whatever its directions and optional inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from trnrt.importer.rows.batch import Batch, Mixes
from trnrt.importer.values import input_at
from trnrt.kernels import recurrent, recurrent_steps
from trnrt.kernels.linear import MAX_FEATURES
from trnrt.operators import order, shapes
from trnrt.operators.record import NEVER, Declaration, NotApplicable
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.blocked import FALLBACK, WRONG, use_float32
from trnrt.planner.lowering.host import host_function
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, is_static, node_name, value_name
from trnrt.planner.plan import Array, DeviceTensor, HostNode
from trnrt.planner.steps import Call, Operand, SourceName, Step, Tensors, WeightName

Shape = tuple[int, ...]
Bytes = bytes | str

WEIGHTS = {1: "W", 2: "R", 3: "B", 7: "P"}
"""The inputs that are weights, by position."""

# ONNX's default functions of a direction, as the kernel names them.
FUNCTIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
KNOWN = ("relu", "sigmoid", "tanh")
"""Functions that the kernel computes between two steps; ONNX's others have parameters, or no function of the engine."""
# A layer of up to this many instructions is unrolled, a longer one becomes a loop on the device. DEFAULT_BUDGET stands
# for several minutes of AWS's compiler; a layer takes a sixth of it at most.
UNROLLED = 16384
# A trip of such a loop has at most a half of them: then its barrier, the overlap that is lost around it, and the copies
# of its steps within HBM take about 3 % of the time. Predicted for an LSTM of 128 units on trn2: 42 us of 1,500.
TRIP_SHARE = 2
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


@dataclass(frozen=True)
class Form:
    """The sizes that the layout of a node's weights depends on: H, G, and the attributes that change them.

    ``couples``: an LSTM's forget gate is 1 - input gate. ``halved``: see the kernel.
    """

    kind: str
    hidden: int
    resets_product: bool
    couples: bool
    halved: bool

    @property
    def gates(self) -> int:
        return recurrent_steps.GATES[self.kind]


@dataclass(kw_only=True)
class RecurrentStep(Step):
    """A whole layer. ``sources``: sequences (T, N, I), then those of ``given``: hidden state "h" and cell state "c" (D,
    N, H), "lengths" (1, N), and weights that the host prepares. ``arrays``, ``biases``: those that are constant."""

    kind: str
    functions: tuple[str, ...]
    backwards: tuple[bool, ...]
    given: tuple[str, ...]
    arrays: dict[str, Array]
    biases: dict[str, Array]
    clip: float = 0.0
    resets_product: bool = False
    halved: bool = False
    trip: int = 0

    def multiplied_sources(self) -> list[Operand]:
        return self.sources[:1]

    def call(self, tensors: Tensors) -> Call:
        places = {name: SourceName(number) for number, name in enumerate(self.given, 1)}
        known = {name: WeightName(name) for name in (*self.arrays, *self.biases)} | places
        count = range(len(self.backwards))
        options: dict[str, float | bool] = {"clip": self.clip} if self.clip else {}
        options |= {name: True for name in ("resets_product", "halved") if getattr(self, name)}
        options |= {"trip": self.trip} if self.trip else {}
        return Call(
            module="recurrent",
            kernel="recurrent",
            args=(
                SourceName(0),
                *(places.get(name) for name in ("h", "c", "lengths")),
                *(tuple(known.get(f"{key}{d}") for d in count) for key in "wrbm"),
                self.backwards,
                self.kind,
                self.functions,
            ),
            options=options,
            weights=self.arrays,
            biases=self.biases,
        )

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        hidden, features = self.shape[3], self.sources[0].shape[2]
        return recurrent.recurrent_tile_bytes(self.kind, hidden, features, len(self.backwards))


@_recurrent({"LSTM": (6, 7, 14, 22), "GRU": (6, 7, 14, 22), "RNN": (6, 7, 14, 22)})
def lower_recurrent(lowering: Lowering, node: ir.Node) -> None:
    """All steps of the sequences, in one or both directions; W, R, B and P are constants, or inputs of the model."""
    kind, hidden = node.op_type.lower(), _hidden_size(lowering, node)
    backwards = {"forward": (False,), "reverse": (True,)}.get(_text(node, "direction", "forward"), (False, True))
    is_first = bool(attribute(node, "layout", 0))
    sequences = lowering.view_of(node.inputs[0])
    if len(sequences.shape) != 3:
        raise Blocked(f"X has {len(sequences.shape)} dimensions; a recurrent layer takes 3", WRONG)
    sequences = sequences.permute((1, 0, 2)) if is_first else sequences
    steps, rows, features = sequences.shape
    if 0 in sequences.shape:
        raise Blocked("sequences without elements", "export the model for at least one step")
    if features > MAX_FEATURES:
        raise Blocked(f"{features:,} features in a step; up to {MAX_FEATURES:,} are supported")
    _check_room(lowering, kind, hidden)
    functions, clip = _functions(node, len(backwards)), float(attribute(node, "clip", 0.0))
    if attribute(node, "input_forget", 0) and functions[0] != "sigmoid":
        raise Blocked(
            f"input_forget=1 with the activation {functions[0]!r}",
            "only sigmoid(-x) is 1 - sigmoid(x): train the layer with sigmoid gates, or without input_forget; "
            f"{FALLBACK}",
        )
    halved = functions == FUNCTIONS[node.op_type] and kind != "rnn" and not clip and input_at(node, 7) is None
    form = Form(kind, hidden, _resets_product(node), bool(attribute(node, "input_forget", 0)), halved)
    given = {
        name: lowering.operand_of(view) for name, view in _given_inputs(lowering, node, kind, is_first, steps).items()
    }
    arrays, biases = _prepare(lowering, node, form, len(backwards), given)
    made = next(value for value in node.outputs if value.name and is_static(value))
    step = RecurrentStep(
        name=node_name(node),
        sources=[lowering.operand_of(sequences), *given.values()],
        output=lowering.spare_name(f"{value_name(made)}.states"),
        shape=(len(backwards), steps + recurrent.STATES[kind], rows, hidden),
        kind=kind,
        functions=functions,
        backwards=backwards,
        given=tuple(given),
        arrays=arrays,
        biases=biases,
        clip=clip,
        resets_product=form.resets_product,
        halved=halved,
    )
    step.trip = choose_trip(step, lowering.budget)
    way = f", {step.trip:,} in each trip of a loop on the device" if step.trip else ""
    lowering.add(step, [node], f"{steps:,} steps of a recurrent layer{way}; its state stays on chip")
    _set_outputs(lowering, node, View.whole(step.output, step.shape), steps, is_first)


def choose_trip(step: RecurrentStep, budget: int) -> int:
    """The steps in a trip of the layer's loop on the device, 0 if it is unrolled: that is predicted to be faster, as
    each trip waits for all engines, but takes an instruction for all that a step does. ``budget``: the most
    instructions of a kernel, 0 for any number."""
    if not budget:
        return 0
    count, rows, hidden = step.shape[1] - recurrent.STATES[step.kind], step.shape[2], step.shape[3]
    cell = recurrent_steps.RecurrentCell(step.kind, step.functions, step.clip, step.resets_product, step.halved)
    each = len(step.backwards) * recurrent_steps.recurrent_instructions(cell, hidden, rows)
    most = min(UNROLLED, budget // 2)
    if count * each <= most:
        return 0
    trips = -(-count // max(1, most // TRIP_SHARE // each))
    return count // trips


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
        halved = item == 4 and recurrent.recurrent_bytes(kind, hidden, 2) <= recurrent.RECURRENT_BYTES
        way = "use --dtype bfloat16, which halves them" if halved else f"use fewer hidden units; {FALLBACK}"
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
            raise Blocked(
                f"the activation {name!r}", f"these are supported between steps: {', '.join(KNOWN)}; {FALLBACK}"
            )
    each = len(default)
    if len(names) != each * directions or names != names[:each] * directions:
        raise Blocked(
            "directions with different activations", f"export each direction as a layer of its own; {FALLBACK}"
        )
    return names[:each]


def _given_inputs(lowering: Lowering, node: ir.Node, kind: str, is_first: bool, steps: int) -> dict[str, View]:
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
            raise Blocked(
                f"lengths of sequences of {steps} steps, which {lowering.dtype} doesn't hold exactly",
                use_float32(lowering.dtype),
            )
        if constant is not None:
            operand = lowering.constant_operand(f"{value_name(lengths)}.numbers", constant.astype(np.float32))
            view = View.whole(operand.value, operand.shape)
        else:
            view = lowering.view_of(lengths, short_integers=True)
        found["lengths"] = view.broadcast((1, *view.shape))
    return found


def _prepare(
    lowering: Lowering, node: ir.Node, form: Form, directions: int, given: dict[str, Operand]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The constant weights and biases of all directions, by the names that the step's call gives them. Those that are
    inputs of the model are prepared by the host: they are added to ``given``."""
    arrays: dict[str, Array] = {}
    biases: dict[str, Array] = {}
    for key, position in _weight_inputs(node, form).items():
        value, held = input_at(node, position), arrays if key in "wr" else biases
        constant = lowering.constant(value)
        for d in range(directions):
            compute: Callable[..., Array] = partial(lay_out_recurrent, key=key, direction=d, **vars(form))
            if value is None:
                if key == "b":
                    held[f"{key}{d}"] = compute(np.zeros((directions, 2 * form.gates * form.hidden), np.float32))
            elif constant is not None:
                held[f"{key}{d}"] = compute(constant.astype(np.float32))
            else:
                given[f"{key}{d}"] = _prepare_input(lowering, node, position, compute, short=held is arrays)
    return arrays, biases


def _weight_inputs(node: ir.Node, form: Form) -> dict[str, int]:
    """The inputs that the kernel's weights come from, by the first letter of their names there."""
    needed = {"w": 1, "r": 2, "b": 3}
    return needed | ({"m": 7} if form.kind == "lstm" and input_at(node, 7) is not None else {})


def _prepare_input(
    lowering: Lowering, node: ir.Node, position: int, compute: Callable[..., Array], *, short: bool
) -> Operand:
    """Have the host lay out weights that are an input of the model; blocks those that are computed."""
    value = node.inputs[position]
    shape = lowering.shape(value)
    assert value is not None
    if not lowering.is_input(value) or not lowering.view_of(value).is_whole:
        raise Blocked(
            f"{WEIGHTS[position]} is computed", f"its weights must be constants, or inputs of the model; {FALLBACK}"
        )
    name = lowering.spare_name(f"{value_name(value)}.prepared")
    laid = compute(np.zeros(shape, np.float32)).shape
    tensor = DeviceTensor(name, laid, lowering.dtype if short else "float32")
    lowering.prepare(tensor, HostNode(node_name(node), node.op_type, (lowering.root(value),), name, compute))
    return Operand(name, laid)


@host_function
def lay_out_recurrent(
    array: Array,
    key: str,
    direction: int,
    kind: str,
    hidden: int,
    resets_product: bool,
    couples: bool,
    halved: bool,
) -> Array:
    """W (``key`` "w"), R ("r"), both biases ("b"), or an LSTM's peepholes ("m") of a direction, as the kernel takes it,
    from W, R, B or P of all directions."""
    gates, own = recurrent_steps.GATES[kind], array[direction].astype(np.float32)
    if key == "b":
        halves = own[: gates * hidden], own[gates * hidden :]
        own = _split_reset(*halves, hidden) if resets_product else halves[0] + halves[1]
    elif key == "w" and resets_product:
        own = _split_reset(own, np.zeros_like(own), hidden)
    own = _couple(own, hidden) if couples else own
    if halved:
        own = own * _halves(key, kind, hidden, resets_product).reshape(-1, *[1] * (own.ndim - 1))
    if kind == "lstm":  # from i, o, f (and c)
        parts = np.split(own, len(own) // hidden)
        own = np.concatenate([parts[0], parts[2], *parts[3:], parts[1]])
    lay_out = {
        "w": weights.recurrent_input_weight,
        "r": weights.recurrent_weight,
        "b": weights.recurrent_columns,
        "m": weights.recurrent_columns,
    }[key]
    return lay_out(own, hidden)


def _split_reset(inputs: Array, recurred: Array, hidden: int) -> Array:
    """The rows of a GRU that resets R @ h: z and r of both, then the hidden gate of ``recurred`` and of ``inputs``."""
    both = inputs[: 2 * hidden] + recurred[: 2 * hidden]
    return np.concatenate([both, recurred[2 * hidden :], inputs[2 * hidden :]])


def _halves(key: str, kind: str, hidden: int, resets_product: bool) -> Array:
    """0.5 for the rows of gates whose function is the sigmoid, which the kernel computes by tanh, and for what it then
    multiplies by twice a GRU's reset gate; else 1."""
    count = recurrent_steps.GATES[kind] + (resets_product and key != "r")
    factors = np.ones(count * hidden, np.float32)
    factors[: 3 * hidden if kind == "lstm" or resets_product else 2 * hidden] = 0.5
    if key == "r" and kind == "gru":
        factors[:] = 0.5
    return factors


def _couple(array: Array, hidden: int) -> Array:
    """The rows of an LSTM's forget gate as 1 - input gate: sigmoid(-x) = 1 - sigmoid(x)."""
    coupled = array.copy()
    coupled[2 * hidden : 3 * hidden] = -array[:hidden]
    return coupled


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
