"""The instructions of ``neuronxcc.nki.isa``: today's, with their results returned in place of a ``dst``."""

# ruff: noqa: F403 - a family's __all__ says which of its functions kernels get

from __future__ import annotations

from trnrt.nki.legacy.instructions.activations import *
from trnrt.nki.legacy.instructions.compute import *
from trnrt.nki.legacy.instructions.movement import *
from trnrt.nki.legacy.instructions.reductions import *
from trnrt.nki.legacy.instructions.search import *
from trnrt.nki.legacy.instructions.selection import *
from trnrt.nki.legacy.lang.program import fp32 as fp32
from trnrt.nki.machine import modes
from trnrt.nki.machine.program import Engine
from trnrt.nki.sim import isa as _isa

engine = Engine
tensor_engine = Engine.tensor
vector_engine = Engine.vector
scalar_engine = Engine.scalar
gpsimd_engine = Engine.gpsimd
unknown_engine = Engine.unknown
dma_engine = Engine.dma
nc_version = modes.nc_version
reduce_cmd = modes.reduce_cmd
dge_mode = modes.dge_mode
oob_mode = modes.oob_mode
get_nc_version = _isa.get_nc_version
