"""Made-up results of the zoo, for tests of its pages: no number here was measured."""

from __future__ import annotations

from benchmarks.zoo.accuracy import Accuracy
from benchmarks.zoo.listing import Entry
from benchmarks.zoo.predicting import Prediction
from benchmarks.zoo.results import Result
from trnrt.nki.breakdown import Holder
from trnrt.nki.machine.timing import Range

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"


def made_up_row(file: str, title: str, us: float, *, kernels: int = 1) -> Result:
    """A model that takes ``us`` at batch 1, and less an item at batch 4; trn2 is twice as fast as trn1."""
    entry = Entry(file, "a kind", title, "by hand", 1_234_567, ("x=3x4",), {"x": 9})
    predictions = tuple(
        Prediction(
            target=target,
            dtype="bfloat16",
            batch=batch,
            effort=1,
            predicted=Range(0.9 * time, time, 1.2 * time),
            instructions=1000 * batch,
            kernels=kernels,
            sbuf_peak_bytes=100 * 1024,
            held=(Holder("tensor engine", 0.5 * time), Holder("DMA data", 0.25 * time)),
            version="0.2.0+abc",
        )
        for target in ("trn1", "trn2")
        for batch in (1, 4)
        for time in [us * (1 + batch / 2) / 1.5 / (2 if target == "trn2" else 1)]
    )
    accuracy = {
        "float32": Accuracy(2, 0, 3e-7, 0.99999998, 1.0, 2, 0.5, "0.2.0+def"),
        "bfloat16": Accuracy(2, 0, 0.004, 0.9987, 0.99988, 1, 0.5, "0.2.0+def"),
    }
    return Result(entry, 5_000_000, "a digest", accuracy, predictions, {"trn1": (1, 4), "trn2": (1, 4)})
