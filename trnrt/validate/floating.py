"""The accuracy of the float model that a quantised model was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.importer import import_model
from trnrt.running.reference import open_model
from trnrt.running.rows import as_matrix
from trnrt.session import InferenceSession
from trnrt.text import list_text, quote
from trnrt.validate.outputs import accuracy
from trnrt.validate.running import run_onnxruntime

Array = NDArray[Any]


def float_accuracy(session: InferenceSession, path: Path, feeds: Mapping[str, Array], labels: Array) -> float:
    """The share of rows that the float model in ``path`` gives their label, on onnxruntime, fed like ``session``.

    Raises:
        ModelFileError: for a file that is no model.
        InputError: if its inputs are others than the session's, or no output has the labels.
    """
    model = import_model(path)
    wanted = {info.name: info for info in model.inputs}
    if unlike := sorted(wanted.keys() ^ {info.name for info in session.model.inputs}):
        raise InputError(
            f"the float model {quote(str(path))} has other inputs than the quantised one: "
            f"{list_text(map(quote, unlike))}",
            hint="give the model that was quantised",
        )
    given = {name: np.asarray(array, wanted[name].dtype) for name, array in feeds.items()}
    found = run_onnxruntime(session, given, reference=open_model(str(path)))
    outputs = dict(zip([info.name for info in model.outputs], map(as_matrix, found), strict=True))
    return accuracy(outputs, outputs, labels).ours
