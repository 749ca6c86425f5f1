"""Our `nki`: what AWS's package of that name offers to kernels, on the simulated NeuronCore."""

from __future__ import annotations

from trnrt.nki.sim import compiler, isa, language
from trnrt.nki.sim.kernel import Kernel, jit, simulate, trace

__all__ = ["Kernel", "compiler", "isa", "jit", "language", "simulate", "trace"]
