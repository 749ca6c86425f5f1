"""Functions of elements: of one tensor, of two with broadcasting, of several; comparisons and truth."""

from __future__ import annotations

import numpy as np

from graphs.draft import Draft, type_of
from graphs.noise import JUMPS, MOVES, SMOOTH, STEP
from trnrt.operators.record import records

SMOOTH_UNARY = (
    "Sigmoid", "Tanh", "Exp", "Erf", "Softplus", "Softsign", "Elu", "Selu", "Celu", "Gelu", "Mish", "HardSigmoid",
    "HardSwish", "LeakyRelu", "Sin", "Cos", "Swish", "Atan", "Asinh", "Sinh", "Cosh",
)  # fmt: skip
# Functions of numbers from -1 to 1.
BOUNDED_UNARY = ("Acos", "Asin", "Atanh", "Tan")
POSITIVE_UNARY = ("Sqrt", "Log", "Reciprocal")
MOVING_UNARY = ("Relu", "Neg", "Abs", "Identity")
# Operator -> how its results jump.
JUMPING_UNARY = {
    "Floor": STEP,
    "Ceil": STEP,
    "Round": STEP,
    "Sign": STEP,
}
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "PRelu")
COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
TRUTH = ("And", "Or", "Xor")
SEVERAL = {"Max": MOVES, "Min": MOVES, "Sum": SMOOTH, "Mean": SMOOTH}


def first_opset(op: str) -> int:
    """The first version of an operator, of ONNX's from opset 7 on."""
    return max(7, records()["", op].opsets[op][0])


def draw_unary(draft: Draft) -> None:
    op = draft.choice(SMOOTH_UNARY)
    draft.since(first_opset(op))
    attributes = {}
    if op in ("Elu", "Celu", "LeakyRelu", "HardSigmoid", "Swish") and draft.chance(0.6):
        attributes["alpha"] = draft.choice([0.1, 0.25, 0.5, 1.0, 1.7])
    if op == "HardSigmoid" and draft.chance(0.5):
        attributes["beta"] = draft.choice([0.0, 0.3, 0.7])
    if op == "Gelu" and draft.chance(0.5):
        attributes["approximate"] = draft.choice(["none", "tanh"])
    draft.add(op, [draft.pick()], **attributes)


def draw_positive(draft: Draft) -> None:
    """Roots, logarithms and reciprocals, of numbers that are positive."""
    op = draft.choice(POSITIVE_UNARY)
    source = draft.pick()
    if not (draft.array(source) > 0.05).all():
        source = draft.add("Abs", [source], MOVES)[0]
        source = draft.add("Add", [source, draft.weight(np.asarray(0.5, draft.float_type))])[0]
    draft.add(op, [source])


def draw_bounded(draft: Draft) -> None:
    """Arcs and tangents of numbers within -0.9 and 0.9, and Acosh of numbers beyond 1."""
    source = draft.pick()
    if draft.chance(0.2):
        draft.since(9)
        source = draft.add("Abs", [source], MOVES)[0]
        source = draft.add("Add", [source, draft.weight(np.asarray(1.25, draft.float_type))])[0]
        draft.add("Acosh", [source])
        return
    op = draft.choice(BOUNDED_UNARY)
    draft.since(first_opset(op))
    if not (np.abs(draft.array(source)) < 0.9).all():
        source = draft.add("Tanh", [source])[0]
        source = draft.add("Mul", [source, draft.weight(np.asarray(0.875, draft.float_type))])[0]
    draft.add(op, [source])


def draw_moving(draft: Draft) -> None:
    draft.add(draft.choice(MOVING_UNARY), [draft.pick()], MOVES)


def draw_jumps(draft: Draft) -> None:
    op = draft.choice(list(JUMPING_UNARY))
    draft.since(first_opset(op))
    draft.add(op, [draft.pick()], JUMPING_UNARY[op])


def draw_scale(draft: Draft) -> None:
    """Large or small numbers, whose squares and cubes 16 bits do not hold."""
    scale = draft.weight(np.asarray(draft.choice([0.005, 1 / 32, 24, 150]), draft.float_type))
    draft.add("Mul", [draft.pick(), scale])


def draw_threshold(draft: Draft) -> None:
    draft.since(10)
    draft.add("ThresholdedRelu", [draft.pick()], JUMPS, alpha=draft.choice([None, 0.25, 0.5, 1.0]))


def draw_clip(draft: Draft) -> None:
    """Limits from either side, as attributes before opset 11."""
    source, low, high = draft.pick(), draft.choice([None, -1.0, 0.0, -0.25]), draft.choice([None, 0.5, 1.0, 6.0])
    if draft.opset < 11:
        draft.add("Clip", [source], MOVES, min=low, max=high)
        return
    limits = ["" if limit is None else draft.weight(np.asarray(limit, draft.float_type)) for limit in (low, high)]
    while limits and not limits[-1]:
        limits.pop()
    draft.add("Clip", [source, *limits], MOVES)


def partner(draft: Draft, source: str) -> str:
    """Another value or a constant that can be broadcast with ``source``."""
    shape = draft.shape(source)

    def fits(array: np.ndarray) -> bool:
        pairs = zip(array.shape[::-1], shape[::-1], strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs)

    if draft.chance(0.5):
        return draft.pick(fits)
    return draft.weight(draft.numbers(smaller(draft, shape)))


def smaller(draft: Draft, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to ``shape``, or that ``shape`` broadcasts with. The batch is not counted on."""
    rank = draft.between(0, len(shape))
    sizes = [draft.choice([1, size]) for size in shape[len(shape) - rank :]]
    if rank == len(shape) and rank and draft.opened and not draft.chance(0.05):
        sizes[0] = 1
    if draft.chance(0.15):  # the constant is the larger one
        sizes = [draft.size(5) if size == 1 and k else size for k, size in enumerate(sizes)]
        sizes = [draft.choice([1, 2]), *sizes] if len(sizes) == len(shape) < 5 and draft.chance(0.3) else sizes
    return tuple(sizes)


def draw_arithmetic(draft: Draft) -> None:
    op = draft.choice(ARITHMETIC)
    source = draft.pick()
    other = partner(draft, source)
    if op == "PRelu":
        shape = draft.shape(source)  # broadcasting is of the slope only
        sizes = [draft.choice([1, size]) for size in shape[draft.between(0, len(shape)) :]]
        if draft.batched(source) and len(sizes) == len(shape):
            sizes[0] = 1
        draft.add(op, [source, draft.weight(draft.numbers(sizes, 0.5))])
        return
    if op == "Pow":
        source = draft.add("Abs", [source], MOVES)[0]
        source = draft.add("Add", [source, draft.weight(np.asarray(0.5, draft.float_type))])[0]
        exponent = np.asarray(draft.choice([0.5, 1.0, 1.5, 2.0, 3.0, -1.0]), draft.float_type)
        draft.add(op, [source, draft.weight(exponent) if draft.chance(0.8) else other])
        return
    if op == "Div" and not (np.abs(draft.array(other)) > 0.1).all():
        other = draft.add("Exp", [other])[0]
    draft.add(op, [source, other] if draft.chance(0.5) or op == "Div" else [other, source])


def draw_several(draft: Draft) -> None:
    op = draft.choice(list(SEVERAL))
    source = draft.pick()
    others = [partner(draft, source) for _ in range(draft.choice([0, 1, 1, 1, 2, 3]))]
    inputs = [source, *others]
    draft.random.shuffle(inputs)
    draft.add(op, inputs, SEVERAL[op])


def draw_comparison(draft: Draft) -> None:
    """A comparison, and mostly a Where or a Cast that reads it."""
    op = draft.choice(COMPARISONS)
    draft.since(max(first_opset(op), 11 if op == "Equal" else 9))
    source = draft.pick()
    other = partner(draft, source)
    pair = [source, other] if draft.chance(0.5) else [other, source]
    (truth,) = draft.add(op, pair, STEP)
    if draft.chance(0.8):
        draft.choice([draw_where, draw_truth, draw_cast_of_truth])(draft, truth)


def draw_truth(draft: Draft, truth: str = "") -> None:
    truth = truth or draft.pick(kind="b")
    shape = draft.shape(truth)
    if draft.chance(0.3):
        draft.add("Not", [truth], STEP)
        return
    other = draft.pick(lambda array: array.shape == shape or array.ndim == 0, kind="b")
    draft.add(draft.choice(TRUTH), [truth, other], STEP)


def draw_cast_of_truth(draft: Draft, truth: str = "") -> None:
    truth = truth or draft.pick(kind="b")
    draft.add("Cast", [truth], MOVES, to=draft_type(draft))


def draft_type(draft: Draft) -> int:
    return type_of(draft.float_type)


def draw_where(draft: Draft, truth: str = "") -> None:
    draft.since(9)
    truth = truth or draft.pick(kind="b")
    shape = draft.shape(truth)
    sides = [
        draft.pick(lambda array: array.shape == shape)
        if draft.chance(0.6)
        else draft.weight(draft.numbers(smaller(draft, shape)))
        for _ in range(2)
    ]
    draft.add("Where", [truth, *sides], MOVES)


def draw_gaps(draft: Draft) -> None:
    """IsNaN or IsInf of what has gaps, or none; and what fills them."""
    draft.since(9)
    if draft.chance(0.3) and draft.float_type == "float32":
        draft.since(10)
        draft.add("IsInf", [draft.pick()], STEP, detect_negative=draft.between(0, 1))
        return
    gaps = [x.name for x in draft.inputs if x.kind == "gaps"]
    source = draft.choice(gaps) if gaps else draft.pick()
    (truth,) = draft.add("IsNaN", [source], STEP)
    if draft.chance(0.8):
        fill = draft.weight(np.asarray(0.25, draft.float_type))
        draft.add("Where", [truth, fill, source], MOVES)


def draw_mod(draft: Draft) -> None:
    draft.since(10)
    divisor = np.asarray(draft.choice([0.5, 1.0, 1.5, -2.0]), draft.float_type)
    draft.add("Mod", [draft.pick(), draft.weight(divisor)], JUMPS, fmod=1)


def draw_cast(draft: Draft) -> None:
    """From float to an integer, a truth or another float, and back."""
    source = draft.pick()
    kind = draft.choice(["int32", "int64", "int8", "uint8", "bool", "float16", "float32", "float64"])
    is_rounding = kind.startswith("float")
    (made,) = draft.add("Cast", [source], SMOOTH if is_rounding else STEP, to=type_of(kind))
    if draft.chance(0.9):
        draft.add("Cast", [made], SMOOTH if is_rounding else MOVES, to=draft_type(draft))
