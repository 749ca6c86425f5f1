"""The least time of a step of a recurrent layer, by the timing model's own numbers (docs/timing.md, Recurrent layers)."""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.kernels.recurrent_steps import GATES
from trnrt.nki.machine.targets import get_target

PARTITIONS = 128

# The instructions from one hidden state to the next that wait for each other, one letter each: P a product, S one of the
# scalar engine, V one of the vector engine.
# lstm: R @ h; the gates; i * g beside f * c; their sum; tanh of it; o times that.
# gru, whose reset gate scales R @ h: R @ h; the gates; r * (R @ h); + W @ x; tanh of it; (1 - z) times that; + z * h.
CHAINS = {"lstm": "PSVVSV", "gru": "PSVVSVV", "rnn": "PS"}
# The least elements per partition that the scalar and the vector engine take of each block and row: a function of each
# gate and of the cell state; the products and sums of the formulas.
SCALAR_ELEMENTS = {"lstm": 5, "gru": 3, "rnn": 1}
VECTOR_ELEMENTS = {"lstm": 4, "gru": 5, "rnn": 0}


@dataclass(frozen=True)
class Case:
    """A layer with as many features as hidden units: as a second layer of a stack has."""

    kind: str
    hidden: int
    rows: int
    dtype: str
    target: str

    @property
    def blocks(self) -> int:
        return -(-self.hidden // PARTITIONS)


@dataclass(frozen=True)
class StepBound:
    """Microseconds: the ``chain`` of one block's instructions, and the work of each engine."""

    chain: float
    tensor: float
    scalar: float
    vector: float

    @property
    def us(self) -> float:
        return max(self.chain, self.tensor, self.scalar, self.vector)


def find_bound(case: Case) -> StepBound:
    """The least time of a step: the chain if it is one row after another that waits, else the busiest engine."""
    timing = get_target(case.target).timing
    scalar, vector, tensor = timing.scalar, timing.vector, timing.tensor
    # float32 takes four passes (nki/machine/timing/tensor_engine.py); a product has the cycles of 64 columns at least.
    column_ns = (4 if case.dtype == "float32" else 1) / tensor.clock_ghz
    product_ns = max(tensor.interval_cycles, case.rows) * column_ns
    links = {
        "P": tensor.wait_ns + product_ns + tensor.latency_ns + tensor.signal_ns,
        "S": scalar.wait_ns + scalar.latency_ns + timing.function_latency_ns + scalar.signal_ns,
        "V": vector.wait_ns + vector.latency_ns + vector.signal_ns,
    }
    links["S"] += case.rows / scalar.clock_ghz
    links["V"] += case.rows / vector.clock_ghz
    # R @ h waits for every step; W @ x is computed for many steps at once, in full columns.
    regions, elements = GATES[case.kind] * case.blocks, case.blocks * case.rows
    recurred, projected = regions * case.blocks * product_ns, regions * case.blocks * case.rows * column_ns
    return StepBound(
        chain=sum(links[link] for link in CHAINS[case.kind]) / 1000,
        tensor=(recurred + projected) / 1000,
        scalar=SCALAR_ELEMENTS[case.kind] * elements / scalar.clock_ghz / 1000,
        vector=VECTOR_ELEMENTS[case.kind] * elements / vector.clock_ghz / 1000,
    )
