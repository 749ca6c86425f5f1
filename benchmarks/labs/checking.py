"""Check a case's kernel: run it on the simulator, and compare with the reference in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.labs.cases import Case
from trnrt.nki import simulate
from trnrt.nki.machine.dtypes import as_dtype


@dataclass(frozen=True)
class Checked:
    """The largest error of a case, divided by the allowed error: above 1 the check failed."""

    case: str
    worst: float

    @property
    def passed(self) -> bool:
        return self.worst <= 1


def check(case: Case, seed: int = 0) -> Checked:
    """Draw inputs, run the kernel, compare."""
    generator = np.random.default_rng(seed)
    drawn = case.draw(generator, case.shapes) if case.draw else [generator.random(shape) for shape in case.shapes]
    inputs = [array.astype(as_dtype(case.dtype).numpy) for array in drawn]
    result = simulate(case.kernel, target=case.target)(*inputs, **case.options)
    results = result if isinstance(result, tuple) else (result,)
    wanted = case.reference(*(array.astype(np.float64) for array in inputs))
    wanted_all = wanted if isinstance(wanted, tuple) else (wanted,)
    worst = 0.0
    for got, expected in zip(results, wanted_all, strict=True):
        allowed = case.tolerance.atol + case.tolerance.rtol * np.abs(expected)
        off = np.abs(np.asarray(got, np.float64).reshape(expected.shape) - expected)
        worst = max(worst, float(np.max(off / allowed)))
    return Checked(case.name, worst)
