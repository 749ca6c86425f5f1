"""Work with libraries that share state and talk to the terminal."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_LOCK = threading.Lock()
_LOGGERS = ("onnx_ir", "onnxscript")


@contextmanager
def quiet_lock() -> Iterator[None]:
    """One thread at a time, and silence.

    One thread, since onnxscript's rewrite rules are shared objects that remember what they matched last.
    Silence, since what goes wrong with a model is reported by the importer's own errors.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    with _LOCK:
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
