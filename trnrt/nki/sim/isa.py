"""Our ``nki.isa`` (`nisa`), with NKI's names: the instructions of ``sim/instructions``, and their modes."""

# ruff: noqa: F403 - a family's __all__ says which of its functions kernels get

from __future__ import annotations

from typing import TYPE_CHECKING

from trnrt.nki.errors import KernelError
from trnrt.nki.lazy import load_lazily
from trnrt.nki.machine import modes
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.sim.trace import active_tracer

if TYPE_CHECKING:
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

# The families, and the __all__ of each: a kernel loads those that it uses.
_FAMILIES = {
    "accumulating": "activate2 exponential tensor_scalar_cumulative tensor_scalar_reduce",
    "activation": "activation activation_reduce",
    "control": "VirtualRegister register_alloc register_load register_move register_store",
    "cores": "core_barrier sendrecv",
    "elementwise": "memset reciprocal scalar_tensor_tensor tensor_copy tensor_copy_predicated tensor_scalar "
    "tensor_tensor",
    "left_out": "nc_matmul_mx quantize_mx",
    "matmul": "nc_matmul",
    "random": "dropout rand2 rand_get_state rand_set_state rng set_rng_seed",
    "reductions": "bn_aggr bn_stats sequence_bounds tensor_partition_reduce tensor_reduce",
    "scalars": "NkiScalar scalar_load scalar_store",
    "scan": "tensor_tensor_scan",
    "search": "max8 nc_find_index8 nc_match_replace8",
    "selection": "affine_select iota range_select select_reduce",
    "shuffle": "local_gather nc_n_gather nc_stream_shuffle nonzero_with_count topk",
    "transfer": "dma_compute dma_copy dma_transpose",
    "transpose": "nc_transpose",
}
__getattr__, __dir__ = load_lazily(
    __name__, {f"trnrt.nki.sim.instructions.{family}": names.split() for family, names in _FAMILIES.items()}
)

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
