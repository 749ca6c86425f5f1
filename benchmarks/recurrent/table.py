"""The rows: the predicted time of a step of each layer, beside its bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.recurrent.bound import Case, StepBound, find_bound
from trnrt.kernels.recurrent import STATES, recurrent
from trnrt.kernels.recurrent_steps import GATES
from trnrt.nki import Spec, nl, trace
from trnrt.nki.machine.program import Program
from trnrt.nki.profiling import in_order_us, predicted_us

KINDS = ("lstm", "gru", "rnn")
HIDDEN = (64, 128, 256, 512, 1024)
ROWS = (1, 16, 64)
DTYPES = ("float32", "bfloat16")
MOST_RATIO = 2.0
"""The bar: a step takes at most this much of its bound."""
_ACTS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
# Steps of the shorter of two layers, whose difference is timed: they fill several of the parts whose W @ x is computed
# at once, and are fewer where a step has many instructions.
_STEPS = {64: 48, 128: 48, 256: 32, 512: 16, 1024: 8}


@dataclass(frozen=True)
class StepTime:
    """A step's predicted time in microseconds: the headline's, and in program order."""

    case: Case
    bound: StepBound
    us: float
    in_order_us: float

    @property
    def ratio(self) -> float:
        return self.us / self.bound.us

    @property
    def meets_bar(self) -> bool:
        return self.ratio <= MOST_RATIO


def make_cases(targets: Sequence[str], kinds: Sequence[str], hidden: Sequence[int], rows: Sequence[int]) -> list[Case]:
    return [
        Case(kind, units, count, dtype, target)
        for target in targets
        for kind in kinds
        for dtype in DTYPES
        for count in rows
        for units in hidden
    ]


def measure(cases: Sequence[Case]) -> Iterator[StepTime]:
    """Predict two layers of each case; a step's time is their difference over the steps that one has more."""
    for case in cases:
        steps = _STEPS.get(case.hidden, 16)
        short, long = (_trace(case, count) for count in (steps, 2 * steps))
        us, ordered = ((predict(long) - predict(short)) / steps for predict in (predicted_us, in_order_us))
        yield StepTime(case, find_bound(case), us, ordered)


def _trace(case: Case, steps: int) -> Program:
    """A layer in one direction. A GRU's reset gate scales R @ h, as in PyTorch and Keras."""
    gates, dtype = GATES[case.kind], getattr(nl, case.dtype)
    resets, blocks = case.kind == "gru", case.blocks
    columns = blocks * (gates + resets)

    def body(x: nl.NkiTensor, w: nl.NkiTensor, r: nl.NkiTensor, b: nl.NkiTensor) -> nl.NkiTensor:
        shape = (1, steps + STATES[case.kind], case.rows, case.hidden)
        dst = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
        acts, halved = _ACTS[case.kind], case.kind != "rnn"
        given = (w,), (r,), (b,), (None,), (False,), case.kind, acts, 0.0, resets, halved
        recurrent(dst, x, None, None, None, *given)
        return dst

    shapes = [(steps, case.rows, case.hidden), (min(case.hidden, 128), blocks * columns * 128)]
    shapes.append((128, blocks * gates * blocks * 128))
    specs = [*(Spec(shape, dtype) for shape in shapes), Spec((128, columns), nl.float32)]
    return trace(body, *specs, target=case.target)
