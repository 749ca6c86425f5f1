"""The least time of a step of a recurrent layer, by the timing model's numbers (docs/timing.md, Recurrent layers)."""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.kernels.recurrent_steps import GATES
from trnrt.nki.machine.targets import get_target

PARTITIONS = 128
FULL_COLUMNS = 512  # the most that the moving operand of a product has

# The instructions from one hidden state to the next that wait for each other, a letter each: P a product, S one of the
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
    # nki/machine/timing/tensor_engine.py: float32 takes four passes, and a product at least the time of 64 columns.
    # Between two passes there is a gap.
    passes = 4 if case.dtype == "float32" else 1
    pass_ns = max(tensor.interval_cycles, case.rows) / tensor.clock_ghz
    product_ns, spaced_ns = passes * pass_ns, passes * (pass_ns + tensor.gap_ns)
    links = {
        "P": tensor.wait_ns + product_ns + tensor.latency_ns + tensor.signal_ns,
        "S": scalar.wait_ns + scalar.latency_ns + timing.function_latency_ns + scalar.signal_ns,
        "V": vector.wait_ns + vector.latency_ns + vector.signal_ns,
    }
    links["S"] += case.rows / scalar.clock_ghz
    links["V"] += case.rows / vector.clock_ghz
    # W @ x is computed for many steps at once, at best in full products.
    regions, elements = GATES[case.kind] * case.blocks, case.blocks * case.rows
    whole_ns = passes * (FULL_COLUMNS / tensor.clock_ghz + tensor.gap_ns)
    recurred, projected = regions * case.blocks * spaced_ns, regions * case.blocks * whole_ns * case.rows / FULL_COLUMNS
    return StepBound(
        chain=sum(links[link] for link in CHAINS[case.kind]) / 1000,
        tensor=(recurred + projected) / 1000,
        scalar=SCALAR_ELEMENTS[case.kind] * elements / scalar.clock_ghz / 1000,
        vector=VECTOR_ELEMENTS[case.kind] * elements / vector.clock_ghz / 1000,
    )
