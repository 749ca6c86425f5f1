"""Our ``nki.isa`` (`nisa`), with NKI's names: the instructions of ``sim/instructions``, and their modes."""

# ruff: noqa: F403 - a family's __all__ says which of its functions kernels get

from __future__ import annotations

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import modes
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.sim.instructions.accumulating import *
from trnrt.nki.sim.instructions.activation import *
from trnrt.nki.sim.instructions.control import *
from trnrt.nki.sim.instructions.cores import *
from trnrt.nki.sim.instructions.elementwise import *
from trnrt.nki.sim.instructions.left_out import *
from trnrt.nki.sim.instructions.matmul import *
from trnrt.nki.sim.instructions.random import *
from trnrt.nki.sim.instructions.reductions import *
from trnrt.nki.sim.instructions.scalars import *
from trnrt.nki.sim.instructions.scan import *
from trnrt.nki.sim.instructions.search import *
from trnrt.nki.sim.instructions.selection import *
from trnrt.nki.sim.instructions.shuffle import *
from trnrt.nki.sim.instructions.transfer import *
from trnrt.nki.sim.instructions.transpose import *
from trnrt.nki.sim.trace import active_tracer

engine = Engine
tensor_engine = Engine.tensor
vector_engine = Engine.vector
scalar_engine = Engine.scalar
gpsimd_engine = Engine.gpsimd
unknown_engine = Engine.unknown
NkiInstruction = Instruction
NkiValidationError = KernelError
reduce_cmd = modes.reduce_cmd
dge_mode = modes.dge_mode
oob_mode = modes.oob_mode
matmul_perf_mode = modes.matmul_perf_mode
dma_engine = modes.dma_engine
nc_version = modes.nc_version


def get_nc_version() -> nc_version:
    """The generation of the target that the kernel is traced for."""
    return nc_version(active_tracer("nisa.get_nc_version").target.generation)


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: always the first one, 0."""
    active_tracer("nisa.get_nc_sub_version")
    return 0
