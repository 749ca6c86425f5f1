"""Matrix products: of any rank, with constants on either side."""

from __future__ import annotations

from typing import Any

from graphs.draft import Draft
from graphs.movement import has_rank


def draw_matmul(draft: Draft) -> None:
    """A constant on either side, or two values; vectors, matrices and stacks of them."""
    source = draft.pick(has_rank(1, 5))
    shape = draft.shape(source)
    kind = draft.random.random()
    if kind < 0.45:
        last = [] if draft.chance(0.15) else [130 if draft.chance(0.05) else draft.size(9)]
        stack = [draft.choice([1, size]) for size in shape[1:-2]] if draft.chance(0.3) and last else []
        draft.add("MatMul", [source, draft.weight(draft.numbers([*stack, shape[-1], *last], 0.5))])
    elif kind < 0.7:
        inner = shape[-2] if len(shape) > 1 else shape[0]
        first = [] if draft.chance(0.15) else [draft.size(9)]
        draft.add("MatMul", [draft.weight(draft.numbers([*first, inner], 0.5)), source])
    else:
        other = draft.pick(lambda array: array.ndim > 0 and array.shape[-2:][0] == shape[-1])
        draft.add("MatMul", [source, other])


def draw_product_with_itself(draft: Draft) -> None:
    source = draft.pick(has_rank(2, 4))
    shape = draft.shape(source)
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    turned = draft.move("Transpose", [source], perm=perm)
    draft.add("MatMul", [source, turned] if draft.chance(0.5) else [turned, source])


def draw_gemm(draft: Draft) -> None:
    inputs, settings = draw_gemm_inputs(draft)
    draft.add("Gemm", inputs, **settings)


def draw_gemm_inputs(draft: Draft) -> tuple[list[str], dict[str, Any]]:
    """Inputs and attributes of a Gemm: a value and a constant, and at times what is added."""
    source = draft.pick(has_rank(2, 2))
    shape = draft.shape(source)
    settings: dict[str, Any] = {"alpha": draft.choice([None, 0.5, 1.7]), "beta": draft.choice([None, 0.5, -1.0])}
    turned = draft.chance(0.2)
    settings["transA"] = 1 if turned else draft.choice([None, 0])
    inner, rows = (shape[0], shape[1]) if turned else (shape[1], shape[0])
    features = 130 if draft.chance(0.05) else draft.size(13)
    across = draft.chance(0.4)
    settings["transB"] = 1 if across else draft.choice([None, 0])
    other = draft.weight(draft.numbers([features, inner] if across else [inner, features], 0.5))
    inputs = [source, other]
    if draft.chance(0.15):
        inputs = [draft.weight(draft.numbers([features, inner], 0.5)), source]
        settings["transA"], settings["transB"] = None, 0 if turned else 1
        rows, features = features, rows
    if draft.chance(0.7) or draft.opset < 11:
        forms = [(features,), (1, features), (), (1,), (rows, 1), (rows, features)]
        form = draft.choice(forms[:4] if draft.batched(source) else forms)
        inputs.append(draft.weight(draft.numbers(form)))
    return inputs, settings


def draw_einsum(draft: Draft) -> None:
    """A product with a constant, a product of rows with themselves, or a sum."""
    draft.since(12)
    source = draft.pick(has_rank(2, 5))
    shape = draft.shape(source)
    letters = "abcde"[: len(shape)]
    kind = draft.random.random()
    if kind < 0.5:
        summed = draft.choice(letters[1:])
        weight = draft.weight(draft.numbers([shape[letters.index(summed)], draft.size(6)], 0.5))
        result = letters.replace(summed, draft.choice(["z", ""])) if draft.chance(0.3) else letters.replace(summed, "z")
        draft.add("Einsum", [source, weight], equation=f"{letters},{summed}z->{result}")
    elif kind < 0.75:
        draft.add("Einsum", [source, source], equation=f"{letters},{letters}->{letters[:-1]}")
    else:
        kept = [a for a in letters[1:] if draft.chance(0.6)]
        draft.random.shuffle(kept)
        draft.add("Einsum", [source], equation=f"{letters}->{letters[0]}{''.join(kept)}")
