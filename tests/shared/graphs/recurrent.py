"""LSTM, GRU and RNN: directions, layouts, lengths, initial states, peepholes, limits, and outputs that are left out."""

from __future__ import annotations

from typing import Any

from graphs.draft import Draft
from graphs.movement import factored
from graphs.noise import Dropped

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
KNOWN = ("Sigmoid", "Tanh", "Relu")
MOST_FEATURES, MOST_STEPS = 24, 7


def draw_lstm(draft: Draft) -> None:
    draw_layer(draft, "LSTM")


def draw_gru(draft: Draft) -> None:
    draw_layer(draft, "GRU")


def draw_rnn(draft: Draft) -> None:
    draw_layer(draft, "RNN")


def pick_sequences(draft: Draft) -> str:
    """Rows of a few steps (N, T, I): a value that is such, or one that is made so."""

    def fits(shape: tuple[int, ...]) -> bool:
        return len(shape) == 3 and shape[1] <= MOST_STEPS and shape[2] <= MOST_FEATURES

    if draft.chance(0.6):
        return draft.pick(lambda array: fits(array.shape))
    source = draft.pick(lambda array: array.ndim > 1 and array.size > 0)
    shape = draft.shape(source)
    sizes = factored(draft, draft.array(source).size // shape[0], 2)
    if not fits((shape[0], *sizes)):
        raise Dropped("not a few steps")
    return draft.move("Reshape", [source, draft.fixed([0, *sizes])])


def draw_layer(draft: Draft, op: str) -> None:
    """A layer of few units over sequences."""
    if draft.float_type != "float32":
        raise Dropped("onnxruntime's layers are of float32")
    rows = pick_sequences(draft)
    count, steps, features = draft.shape(rows)
    hidden = draft.choice([1, 2, 3, 5, 8, 33])
    direction = draft.choice([None, "forward", "reverse", "bidirectional", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    first = draft.opset >= 14 and draft.chance(0.3)
    x = rows if first else draft.move("Transpose", [rows], perm=[1, 0, 2])
    gates = GATES[op] * hidden
    scale = draft.choice([0.2, 0.5, 1.0])
    inputs = [x, *(draft.weight(draft.numbers([ways, gates, size], scale)) for size in (features, hidden))]
    inputs.append(draft.weight(draft.numbers([ways, 2 * gates], 0.5)) if draft.chance(0.7) else "")
    inputs.append(draw_lengths(draft, rows, steps) if draft.chance(0.25) else "")
    states = (count, ways, hidden) if first else (ways, count, hidden)
    inputs += [draw_state(draft, rows, states, first) for _ in range(2 if op == "LSTM" else 1)]
    if op == "LSTM" and draft.chance(0.3):
        inputs.append(draft.weight(draft.numbers([ways, 3 * hidden], 0.5)))
    while not inputs[-1]:
        inputs.pop()
    made = 3 if op == "LSTM" else 2
    used = draft.random.sample(range(made), draft.between(1, made))
    settings = draw_settings(draft, op, ways) | {"hidden_size": hidden, "direction": direction, "layout": first or None}
    left_out = [place for place in range(max(used)) if place not in used]
    draft.add(op, inputs, outputs=max(used) + 1, left_out=left_out, **settings)


def draw_lengths(draft: Draft, rows: str, steps: int) -> str:
    """The number of steps of each sequence: an input, or constants where the batch is fixed."""
    count = draft.shape(rows)[0]
    if draft.batched(rows):
        return draft.input(("N",), "int32", "count", steps)
    if draft.chance(0.4):
        return draft.input((count,), "int32", "count", steps)
    return draft.fixed([draft.between(1, steps) for _ in range(count)], "int32")


def draw_state(draft: Draft, rows: str, shape: tuple[int, ...], first: bool) -> str:
    """An initial state: none, a value of the shape, an input or constants."""
    if draft.chance(0.55):
        return ""
    try:
        return draft.pick(lambda array: array.shape == shape)
    except Dropped:
        if draft.batched(rows):
            open_shape: tuple[int | str, ...] = ("N", *shape[1:]) if first else (shape[0], "N", shape[2])
            return draft.input(open_shape, "float32", "normal")
        return draft.weight(draft.numbers(shape))


def draw_settings(draft: Draft, op: str, ways: int) -> dict[str, Any]:
    """Functions and limits; those of both directions are the same."""
    found: dict[str, Any] = {}
    if draft.chance(0.3):
        chosen = [draft.choice(KNOWN) for _ in range(FUNCTIONS[op])]
        found["activations"] = chosen * ways
    if draft.chance(0.2):
        found["clip"] = draft.choice([0.5, 1.0, 3.0])
    if op == "GRU":
        found["linear_before_reset"] = draft.choice([None, 0, 1])
    if op == "LSTM" and draft.chance(0.15):
        found["input_forget"] = 1
    return found
