"""The names of the old namespace's modules. Source: SDK 2.26.1, nki/api/nki, the modules' functions and attributes."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NAMES", "refuse"]

_LANGUAGE = """
    bfloat16 bfp16 bool_ float16 float32 float8_e4m3 float8_e5m2 fp32 hbm int16 int32 int8 mgrid nc par_dim private_hbm
    psum sbuf shared_hbm spmd_dim tfloat32 tile_size uint16 uint32 uint8

    abs add affine_range all all_reduce arange arctan atomic_rmw bitwise_and bitwise_or bitwise_xor broadcast_to ceil
    copy cos device_print divide dropout ds empty_like equal erf erf_dx exp expand_dims finfo floor fmod full
    gather_flattened gelu gelu_apprx_sigmoid gelu_apprx_tanh gelu_dx gemm_grid gemm_stationary_grid greater
    greater_equal invert left_shift less less_equal load load_transpose2d log logical_and logical_not logical_or
    logical_xor loop_reduce matmul max maximum mean min minimum mish mod multiply ndarray negative not_equal
    num_programs ones power prod program_id program_ndim rand random_seed reciprocal relu right_shift rms_norm rsqrt
    sequential_range shared_constant shared_identity_matrix sigmoid sign silu silu_dx sin softmax softplus sqrt square
    static_cast static_range store subtract sum tan tanh transpose trunc var where zeros zeros_like
"""

_ISA = """
    dge_mode dma_engine engine fp32 gpsimd_engine nc_version oob_mode reduce_cmd scalar_engine tensor_engine
    unknown_engine vector_engine

    activation activation_reduce affine_select bn_aggr bn_stats builtin_custom_op dma_copy dma_transpose dropout
    get_nc_version iota local_gather max8 memset nc_find_index8 nc_match_replace8 nc_matmul nc_stream_shuffle
    nc_transpose range_select reciprocal scalar_tensor_tensor select_reduce sequence_bounds tensor_copy
    tensor_copy_dynamic_dst tensor_copy_dynamic_src tensor_copy_predicated tensor_partition_reduce tensor_reduce
    tensor_scalar tensor_scalar_reduce tensor_tensor tensor_tensor_scan
"""

_COMPILER = """
    psum sbuf allocation_scope enable_stack_allocator force_auto_alloc multi_buffer no_reorder
    skip_middle_end_transformations
"""

NAMES: Mapping[str, frozenset[str]] = {
    "neuronxcc.nki": frozenset(("baremetal", "benchmark", "jit", "profile", "simulate_kernel")),
    "neuronxcc.nki.compiler": frozenset(_COMPILER.split()),
    "neuronxcc.nki.isa": frozenset(_ISA.split()),
    "neuronxcc.nki.language": frozenset(_LANGUAGE.split()),
}
"""The names of each module."""


def refuse(path: str) -> str:
    """Why a path of the old namespace isn't there."""
    module, _, name = path.rpartition(".")
    known = NAMES.get(module, frozenset())
    if name in known:
        return f"{path} is in the old namespace (SDK 2.26), but trnrt's simulator does not have it; see docs/legacy.md"
    if path.startswith("neuronxcc.nki.") and known:
        return f"{module} has no {name!r} in SDK 2.26; docs/legacy.md lists its names"
    return f"{path}: of neuronxcc, trnrt's simulator has nki, nki.language, nki.isa, nki.compiler and nki.typing"
