"""The best classes of a classifier's output.

``--top`` applies to an output of floats with one number per class: its shape is [rows, classes] with two classes or
more, and later dimensions are 1. Of several such outputs, these rules choose, in this order:

1. those with as many classes as the model's metadata has labels;
2. those named like probabilities ("prob", "softmax"), or with ``--logits`` like logits ("logit");
3. the first one in the model's order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trnrt.errors import OptionError
from trnrt.inputs.ultralytics import ultralytics_names
from trnrt.text import list_text, quote, shape_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trnrt.importer import ImportedModel, TensorInfo

FLOATS = ("float16", "bfloat16", "float32", "float64")
_NAMES_OF_PROBABILITIES = ("prob", "softmax")
_NAMES_OF_LOGITS = ("logit",)


@dataclass(frozen=True)
class Choice:
    """One class of one row: its index, its number, and its label if the model has labels."""

    index: int
    number: float
    label: str | None


@dataclass(frozen=True)
class Top:
    """The best classes of each row of ``output``, best first; ``softmax``: it was applied to the numbers."""

    output: str
    softmax: bool
    rows: tuple[tuple[Choice, ...], ...]


def labels_of(metadata: Mapping[str, str]) -> list[str]:
    """The class names in a model's metadata: ``labels``, a JSON list, else ultralytics' ``names``.

    Empty if missing or unreadable.
    """
    if "labels" not in metadata:
        return ultralytics_names(metadata)
    try:
        labels = json.loads(metadata["labels"])
    except (ValueError, RecursionError):
        return []
    return [str(label) for label in labels] if isinstance(labels, list) else []


def looked_up_labels(model: ImportedModel) -> list[str]:
    """The class names in a scikit-learn classifier's constant label table; empty without one."""
    tables = [
        node.inputs[0].const_value
        for node in model.model.graph
        if node.domain == "ai.onnx.ml" and node.op_type == "ArrayFeatureExtractor" and node.inputs[0] is not None
    ]
    if len(tables) != 1 or tables[0] is None:
        return []
    labels = tables[0].numpy().reshape(-1).tolist()
    return [label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label) for label in labels]


def choose_output(outputs: Sequence[TensorInfo], metadata: Mapping[str, str], logits: bool) -> str:
    """The output that ``--top`` applies to, by the rules above; OptionError if there is none."""
    candidates = [output for output in outputs if _one_number_a_class(output)]
    if not candidates:
        found = list_text([f"{quote(o.name)} {o.dtype} {shape_text(o.shape)}" for o in outputs])
        raise OptionError(
            f"--top needs an output with one number per class: floats of shape [rows, classes]; it has {found}",
            hint="export it with options={'zipmap': False}"
            if any(output.dtype.startswith("seq(map(") for output in outputs)
            else "leave --top out",
        )
    count = len(labels_of(metadata))
    candidates = [output for output in candidates if output.shape[1] == count] or candidates
    wanted = _NAMES_OF_LOGITS if logits else _NAMES_OF_PROBABILITIES
    named = [output for output in candidates if any(word in output.name.lower() for word in wanted)]
    return (named or candidates)[0].name


def best_classes(name: str, output: npt.NDArray[Any], count: int, *, labels: Sequence[str], softmax: bool) -> Top:
    """The ``count`` best classes of each row of ``output`` ([rows, classes], any later dimensions 1).

    Equal numbers rank by class, NaN comes last. ``labels`` are used if there is one for each class.
    ``softmax`` turns the row's numbers into shares of 1 first, in float64.
    """
    classes, numbers = rank_classes(output, count, softmax=softmax)
    named = labels if len(labels) == output.shape[1] else None
    rows = tuple(
        tuple(Choice(int(i), float(number), named[i] if named else None) for i, number in zip(*row, strict=True))
        for row in zip(classes, numbers, strict=True)
    )
    return Top(name, softmax, rows)


def rank_classes(
    output: npt.NDArray[Any], count: int, *, softmax: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The ``count`` best classes of each row, best first, and their numbers: see ``best_classes``."""
    import numpy as np

    numbers = output.reshape(output.shape[:2]).astype(np.float64)
    if softmax:
        numbers = _softmax(numbers)
    best = _smallest_places(-numbers, min(count, output.shape[1]))
    return best, np.take_along_axis(numbers, best, axis=1)


def _smallest_places(numbers: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """The places of each row's ``count`` smallest numbers, as a stable sort gives them, [rows, count]."""
    import numpy as np

    if not numbers.size:
        return np.empty((len(numbers), count), np.int64)
    # Sort whole rows only where ties or NaN make the smallest numbers ambiguous.
    among = numbers <= np.partition(numbers, count - 1, axis=1)[:, count - 1 : count]
    plain = among.sum(axis=1) == count
    best = np.empty((len(numbers), count), np.int64)
    best[~plain] = np.argsort(numbers[~plain], axis=1, kind="stable")[:, :count]
    places = np.nonzero(among[plain])[1].reshape(-1, count)
    order = np.argsort(np.take_along_axis(numbers[plain], places, axis=1), axis=1, kind="stable")
    best[plain] = np.take_along_axis(places, order, axis=1)
    return best


def _one_number_a_class(output: TensorInfo) -> bool:
    shape = output.shape
    if output.dtype not in FLOATS or len(shape) < 2 or any(dim != 1 for dim in shape[2:]):
        return False
    return not isinstance(shape[1], int) or shape[1] > 1


def _softmax(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    with np.errstate(invalid="ignore"):  # infinite logits give NaN, as in any softmax
        shares = np.exp(numbers - numbers.max(axis=1, keepdims=True, initial=-np.inf))
        result: npt.NDArray[Any] = shares / shares.sum(axis=1, keepdims=True)
    return result
