"""Run a session's whole model in onnxruntime, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.running.reference import open_model, run_session
from trnrt.running.rows import join_rows, pad_rows
from trnrt.session import InferenceSession

Array = NDArray[Any]


def check_rows(session: InferenceSession, feeds: Mapping[str, Array]) -> None:
    """InputError for a batch of 0 rows: comparing nothing would always pass."""
    data = [array for name, array in feeds.items() if np.ndim(array) and name not in session.model.parameters]
    if session.model.batch is not None and any(len(array) == 0 for array in data):
        raise InputError("the batch has 0 rows: there is nothing to compare", hint="give 1 row or more")


def open_onnxruntime(session: InferenceSession, *, threads: int = 0) -> Any:
    """onnxruntime's own session of the same model, on the CPU; with 0 it chooses the threads."""
    return open_model(session.serialized(), threads=threads)


def run_onnxruntime(session: InferenceSession, feeds: Mapping[str, Array], *, reference: Any = None) -> list[Array]:
    """The outputs of onnxruntime; a fixed batch is run in slices, as the session does.

    ``reference``: onnxruntime's session from ``open_onnxruntime``, for repeated runs.
    """
    reference = reference or open_onnxruntime(session)
    batch = session.model.batch
    if not isinstance(batch, int):
        return run_session(reference, feeds)
    whole = {n: a for n, a in feeds.items() if n in session.model.parameters or not a.ndim}
    data = {n: a for n, a in feeds.items() if n not in whole}
    rows = next(iter(data.values())).shape[0]
    parts = []
    for start in range(0, rows, batch):
        part = {n: pad_rows(a[start : start + batch], batch) for n, a in data.items()}
        parts.append(run_session(reference, whole | part))
    return [join_rows(column)[:rows] for column in zip(*parts, strict=True)]
