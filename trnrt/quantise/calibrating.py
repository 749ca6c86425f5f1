"""The range of every tensor on calibration data, by onnxruntime's calibrators."""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.errors import InputError, QuantiseError
from trnrt.quantise.data import Array, Data
from trnrt.quantise.preparing import ACTIVATIONS, PASSING, ROUNDING, Prepared
from trnrt.text import one_line, quote

METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""onnxruntime's name of each calibration method."""
QUANTISABLE = [*ROUNDING, *ACTIVATIONS, *PASSING]
LARGEST_IN_ONE_FILE = 2**30
"""Bytes of a model beyond which its weights go into a file beside it: a calibrator adds nodes, up to 2 GiB."""


class _Reader:
    """One batch, as a calibrator takes it."""

    def __init__(self, feeds: Mapping[str, Array]) -> None:
        self._left = [feeds]

    def get_next(self) -> Mapping[str, Array] | None:
        """The batch, then None."""
        return self._left.pop() if self._left else None

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        return iter(self.get_next, None)


def find_ranges(prepared: Prepared, data: Data, method: str, advance: Callable[[int], None]) -> Any:
    """onnxruntime's ``TensorsData``: the range of every tensor. Calls ``advance`` with the rows of each batch.

    A batch at a time: a calibrator of histograms keeps all tensors of what it is given at once.

    Raises:
        InputError: if the data leads to values that are not finite.
        QuantiseError: if onnxruntime fails.
    """
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    with (
        tempfile.TemporaryDirectory(prefix="trnrt.quantise.") as folder,
        quiet_logging(),
        naming_failures("calibrate"),
    ):
        path = Path(folder) / "model.onnx"
        path.write_bytes(prepared.content)
        calibrator = create_calibrator(
            path,
            QUANTISABLE,
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=CalibrationMethod[METHODS[method]],
            use_external_data_format=len(prepared.content) > LARGEST_IN_ONE_FILE,
        )
        for batch in data.batches:
            calibrator.collect_data(_Reader(batch.feeds))
            advance(batch.rows)
        ranges = calibrator.compute_data()
    for name, found in ranges.items():
        if not all(np.isfinite(end).all() for end in found.range_value):
            raise InputError(
                f"on the calibration data, tensor {quote(name)} has values that are not finite",
                hint="leave out the rows with NaN or infinity, or too large numbers",
            )
    return ranges


@contextmanager
def quiet_logging() -> Iterator[None]:
    """Silence onnxruntime's Python code, which logs to the root logger, and prints."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with np.errstate(all="ignore"), redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def naming_failures(what: str) -> Iterator[None]:
    """Turn whatever onnxruntime raises into QuantiseError."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError, InputError):
        raise
    except Exception as error:  # its tools raise errors of all kinds
        reason = one_line(str(error)) or type(error).__name__
        raise QuantiseError(
            f"onnxruntime can't {what} this model: {reason}", hint="leave the layers that it names in float: --keep"
        ) from error
