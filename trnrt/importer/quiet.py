"""A lock for libraries that share state and print to the terminal."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

# A thread may enter again: the graph of a model from the cache is read when it is first bound.
_LOCK = threading.RLock()
_LOGGERS = ("onnx_ir", "onnxscript")


@contextmanager
def quiet_lock() -> Iterator[None]:
    """Let one thread in at a time, and silence the libraries.

    onnxscript's rewrite rules are shared objects that keep their last match. The importer's own errors report what is
    wrong with a model.
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
