"""The operators of ai.onnx.ml: scalers, linear models and labels, over rows of columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs.draft import Draft
from graphs.noise import JUMPS, MOVES, STEP

ML = "ai.onnx.ml"


def pick_rows(draft: Draft) -> str:
    return draft.pick(lambda array: array.ndim == 2 and str(array.dtype) == "float32")


def some(draft: Draft, count: int) -> list[float]:
    return [float(number) for number in np.asarray(draft.numbers([count]), np.float32)]


def draw_scaler(draft: Draft) -> None:
    source = pick_rows(draft)
    count = draft.shape(source)[1]
    sizes = [draft.choice([1, count]) for _ in range(2)]
    draft.add("Scaler", [source], domain=ML, offset=some(draft, sizes[0]), scale=some(draft, sizes[1]))


def draw_imputer(draft: Draft) -> None:
    source = pick_rows(draft)
    count = draft.choice([1, draft.shape(source)[1]])
    replaced = draft.choice([float("nan"), 0.5])
    draft.add(
        "Imputer", [source], JUMPS, domain=ML, imputed_value_floats=some(draft, count), replaced_value_float=replaced
    )


def draw_binarizer(draft: Draft) -> None:
    draft.add("Binarizer", [pick_rows(draft)], STEP, domain=ML, threshold=draft.choice([None, 0.25, -0.5]))


def draw_normalizer(draft: Draft) -> None:
    draft.add("Normalizer", [pick_rows(draft)], domain=ML, norm=draft.choice(["MAX", "L1", "L2"]))


def draw_regressor(draft: Draft) -> None:
    source = pick_rows(draft)
    targets = draft.between(1, 4)
    numbers = some(draft, targets * draft.shape(source)[1])
    intercepts = some(draft, targets) if draft.chance(0.7) else None
    draft.add("LinearRegressor", [source], domain=ML, coefficients=numbers, intercepts=intercepts, targets=targets)


def draw_classifier(draft: Draft) -> None:
    """Labels and scores; of the scores at times a dict for each row."""
    source = pick_rows(draft)
    classes = draft.between(2, 5)
    texts = {"classlabels_strings": [f"c{k}" for k in range(classes)]}
    labels: dict[str, Any] = texts if draft.chance(0.5) else {"classlabels_ints": [*range(3, 3 + classes)]}
    draft.add(
        "LinearClassifier",
        [source],
        outputs=2,
        domain=ML,
        coefficients=some(draft, classes * draft.shape(source)[1]),
        intercepts=some(draft, classes),
        post_transform=draft.choice(["NONE", "SOFTMAX", "LOGISTIC"]),
        multi_class=draft.choice([None, 0, 1]),
        **labels,
    )


def draw_columns(draft: Draft) -> None:
    source = pick_rows(draft)
    count = draft.shape(source)[1]
    columns = [draft.between(0, count - 1) for _ in range(draft.between(1, 3))]
    draft.add("ArrayFeatureExtractor", [source, draft.fixed(columns)], MOVES, domain=ML)


def draw_labels(draft: Draft) -> None:
    """A label for the index of the largest."""
    source = pick_rows(draft)
    (index,) = draft.add("ArgMax", [source], STEP, axis=1, keepdims=draft.choice([0, 1]))
    count = draft.shape(source)[1]
    keys: dict[str, Any] = {"keys_int64s": [*range(count)]}
    if draft.chance(0.5):
        draft.add("LabelEncoder", [index], STEP, domain=ML, values_strings=[f"c{k}" for k in range(count)], **keys)
    else:
        table = draft.fixed([10 * k for k in range(count)])
        draft.add("ArrayFeatureExtractor", [table, index], STEP, domain=ML)


def draw_categories(draft: Draft) -> None:
    """A column for each category, of integers of an input or of floats that are rounded."""
    there = [x.name for x in draft.inputs if x.kind in ("index", "integer") and x.dtype == "int64"]
    if there and draft.chance(0.5):
        source = draft.choice(there)
    else:
        source = draft.pick(lambda array: str(array.dtype) == "float32" and array.ndim < 5)
        draft.since(11)
        (source,) = draft.add("Round", [source], STEP)
    cats = draft.random.sample(range(-3, 5), draft.between(1, 6))
    draft.add("OneHotEncoder", [source], MOVES, domain=ML, cats_int64s=cats, zeros=1)
