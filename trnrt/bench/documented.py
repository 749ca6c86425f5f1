"""The rates that AWS documents, for physical bounds, and the timing model with no more than they allow.

The model's own numbers are in the targets' data files. trn1's move 320 GB/s, where AWS documents 272, and separate two
products by 3 ns, where a published kernel needs 30. So a bar on trn1 is judged three times: as the model is shipped, at
the documented bandwidth, and with the gap, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target

GUIDE = "nki/deep-dives/nki-dma-bandwidth-guide.rst"
OVERVIEW = "nki/get-started/about/nki-dma-overview.rst"

# trn2 and trn3: the theoretical rates. The guide has 23 and 33 GB/s an engine, but packets of 27 were measured on trn2,
# and a bound must be no more than the hardware needs. For trn1 the overview has 27.2, too, which 16 engines could not
# get out of HBM; the fastest published kernel reached 263 GB/s of the guide's 272.
_ENGINE_GBPS = {"trn1": (17.0, GUIDE), "trn2": (27.2, OVERVIEW), "trn3": (38.4, OVERVIEW)}
_ENGINES = 16  # of a core: both documents

# measurements.json, matmul-best-trn1: 6,970 us for 32,768 products of 512 columns, which alone take 183 ns each.
_GAP_NS = {"trn1": 30.0}


@dataclass(frozen=True)
class Rates:
    """What a core alone on its device can move at most, GB/s: its DMA engines together, or a stack of HBM."""

    engine_gbps: float
    engines: int
    hbm_gbps: float
    source: str

    @property
    def gbps(self) -> float:
        return min(self.engines * self.engine_gbps, self.hbm_gbps)


@dataclass(frozen=True)
class Bound:
    """What the hardware needs at least, microseconds: to move every operand once, and for the products."""

    memory_us: float
    tensor_us: float

    @property
    def us(self) -> float:
        """Both go on at the same time: the larger one."""
        return max(self.memory_us, self.tensor_us)


def rates(target: str) -> Rates:
    """The documented rates of a target. HBM's are the architecture guides', in the target's data file."""
    found = get_target(target)
    engine, source = _ENGINE_GBPS[found.name]
    return Rates(engine, _ENGINES, found.timing.dma.hbm_stack_gbps, source)


def bound(target: str, dtype: str, flops: float, moved_bytes: float) -> Bound:
    """The bound of so many FLOP of products in ``dtype`` (at the guides' peak) and bytes in and out of HBM."""
    peak = get_target(target).timing.tensor.peak(dtype)
    return Bound(moved_bytes / (rates(target).gbps * 1e3), flops / (peak * 1e6))


def at_documented_rates(target: str) -> Timing:
    """The target's timing with no more bandwidth than is documented."""
    timing, most = get_target(target).timing, rates(target)
    dma = replace(
        timing.dma,
        engine_gbps=min(timing.dma.engine_gbps, most.engine_gbps),
        total_gbps=min(timing.dma.total_gbps, most.gbps),
    )
    return replace(timing, dma=dma)


def with_measured_gap(target: str) -> Timing:
    """``at_documented_rates``, and between products no less than a published kernel needs."""
    timing, name = at_documented_rates(target), get_target(target).name
    gap = max(timing.tensor.gap_ns, _GAP_NS.get(name, 0.0))
    return replace(timing, tensor=replace(timing.tensor, gap_ns=gap))


def judged_timings(target: str) -> tuple[Timing, Timing, Timing]:
    """What a bar is judged with: as shipped, at the documented bandwidth, with the measured gap."""
    return get_target(target).timing, at_documented_rates(target), with_measured_gap(target)


def under(program: Program, timing: Timing) -> Program:
    """The same program on a target of other timing."""
    return replace(program, target=replace(program.target, timing=timing))
