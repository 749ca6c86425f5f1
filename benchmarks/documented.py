"""The rates that AWS documents, for physical bounds.

The timing model's own numbers are in the targets' data files; its headline never uses more bandwidth than documented.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trnrt.nki.machine.targets import get_target

GUIDE = "nki/deep-dives/nki-dma-bandwidth-guide.rst"
OVERVIEW = "nki/get-started/about/nki-dma-overview.rst"

# trn2 and trn3: the theoretical rates. The guide has 23 and 33 GB/s per engine, but packets at 27 were measured on
# trn2, and a bound must not exceed what the hardware needs. For trn1 the overview has 27.2, too, which 16 engines could
# not get out of HBM; the fastest published kernel reached 263 GB/s of the guide's 272.
_ENGINE_GBPS = {"trn1": (17.0, GUIDE), "trn2": (27.2, OVERVIEW), "trn3": (38.4, OVERVIEW)}
_GUIDE_GBPS = {"trn1": 17.0, "trn2": 23.0, "trn3": 33.0}
_ENGINES = 16  # per core, in both documents


@dataclass(frozen=True)
class Rates:
    """The highest rates of a core alone on its device, GB/s: its DMA engines together, or a stack of HBM."""

    engine_gbps: float
    engines: int
    hbm_gbps: float
    source: str

    @property
    def gbps(self) -> float:
        return min(self.engines * self.engine_gbps, self.hbm_gbps)


@dataclass(frozen=True)
class Bound:
    """The least time that the hardware needs, microseconds: to move every operand once, and for the products."""

    memory_us: float
    tensor_us: float

    @property
    def us(self) -> float:
        """The larger of the two, which overlap."""
        return max(self.memory_us, self.tensor_us)


def rates(target: str) -> Rates:
    """The documented rates of a target. HBM's are the architecture guides', in the target's data file."""
    found = get_target(target)
    engine, source = _ENGINE_GBPS[found.name]
    return Rates(engine, _ENGINES, found.timing.dma.hbm_stack_gbps, source)


def guide_rates(target: str) -> Rates:
    """The rates of a target with the bandwidth guide's figure for an engine, which large payloads sustain: at most
    ``rates``."""
    return replace(rates(target), engine_gbps=_GUIDE_GBPS[get_target(target).name], source=GUIDE)


def bound(target: str, dtype: str, flops: float, moved_bytes: float, at: Rates | None = None) -> Bound:
    """The bound for ``flops`` FLOP of products in ``dtype`` (at the guides' peak) and the bytes in and out of HBM,
    which move ``at`` these rates, by default ``rates``."""
    peak = get_target(target).timing.tensor.peak(dtype)
    return Bound(moved_bytes / ((at or rates(target)).gbps * 1e3), flops / (peak * 1e6))
