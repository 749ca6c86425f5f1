"""Our ``nki.language`` (`nl`): dtypes, memories, tile sizes, operators, and the functions of ``sim/lang``."""

from __future__ import annotations

from trnrt.nki.machine.dtypes import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim.instructions.control import dynamic_range, fori_loop, while_loop
from trnrt.nki.sim.lang import tokens as _tokens  # noqa: F401  # makes operators callable
from trnrt.nki.sim.lang.constants import device_print, shared_constant, shared_identity_matrix
from trnrt.nki.sim.lang.creation import empty_like, full, ndarray, ones, rand, random_seed, zeros, zeros_like
from trnrt.nki.sim.lang.elementwise import divide, fmod, logical_not, mod, negative
from trnrt.nki.sim.lang.movement import (
    broadcast_to,
    ds,
    expand_dims,
    gather_flattened,
    load,
    load_transpose2d,
    store,
)
from trnrt.nki.sim.lang.objects import NKIObject
from trnrt.nki.sim.lang.packed import float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4, float8_e8m0fnu
from trnrt.nki.sim.lang.products import matmul, transpose
from trnrt.nki.sim.lang.program import (
    affine_range,
    no_reorder,
    num_programs,
    program_id,
    program_ndim,
    sequential_range,
    static_range,
)
from trnrt.nki.sim.lang.reductions import all, max, mean, min, prod, rms_norm, softmax, sum, var
from trnrt.nki.sim.lang.rounding import ceil, floor, trunc
from trnrt.nki.sim.lang.selection import dropout, where
from trnrt.nki.sim.lang.sizes import TileSize as _TileSize  # noqa: F401  # the class of tile_size, under NKI's name
from trnrt.nki.sim.lang.sizes import is_hbm, is_on_chip, is_psum, is_sbuf, tile_size
from trnrt.nki.sim.lang.trigonometry import cos, tan
from trnrt.nki.sim.tensor import NkiTensor

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
hbm = MemoryRegion.private_hbm

# Operators are what instructions take as `op`, and functions: machine/operators.py and sim/lang/tokens.py.
abs = OPERATORS["abs"]
abs_max = OPERATORS["abs_max"]
abs_min = OPERATORS["abs_min"]
add = OPERATORS["add"]
arctan = OPERATORS["arctan"]
average = OPERATORS["average"]
bitwise_and = OPERATORS["bitwise_and"]
bitwise_or = OPERATORS["bitwise_or"]
bitwise_xor = OPERATORS["bitwise_xor"]
bypass = OPERATORS["bypass"]
copy = OPERATORS["copy"]
equal = OPERATORS["equal"]
erf = OPERATORS["erf"]
erf_dx = OPERATORS["erf_dx"]
exp = OPERATORS["exp"]
gelu = OPERATORS["gelu"]
gelu_apprx_sigmoid = OPERATORS["gelu_apprx_sigmoid"]
gelu_apprx_sigmoid_dx = OPERATORS["gelu_apprx_sigmoid_dx"]
gelu_apprx_tanh = OPERATORS["gelu_apprx_tanh"]
gelu_dx = OPERATORS["gelu_dx"]
greater = OPERATORS["greater"]
greater_equal = OPERATORS["greater_equal"]
invert = OPERATORS["invert"]
left_shift = OPERATORS["left_shift"]
less = OPERATORS["less"]
less_equal = OPERATORS["less_equal"]
log = OPERATORS["log"]
logical_and = OPERATORS["logical_and"]
logical_or = OPERATORS["logical_or"]
logical_xor = OPERATORS["logical_xor"]
maximum = OPERATORS["maximum"]
minimum = OPERATORS["minimum"]
mish = OPERATORS["mish"]
multiply = OPERATORS["multiply"]
not_equal = OPERATORS["not_equal"]
power = OPERATORS["power"]
prelu = OPERATORS["prelu"]
reciprocal = OPERATORS["reciprocal"]
relu = OPERATORS["relu"]
right_shift = OPERATORS["right_shift"]
rsqrt = OPERATORS["rsqrt"]
sigmoid = OPERATORS["sigmoid"]
sign = OPERATORS["sign"]
silu = OPERATORS["silu"]
silu_dx = OPERATORS["silu_dx"]
sin = OPERATORS["sin"]
softplus = OPERATORS["softplus"]
sqrt = OPERATORS["sqrt"]
square = OPERATORS["square"]
subtract = OPERATORS["subtract"]
tanh = OPERATORS["tanh"]

__all__ = [
    "DType",
    "MemoryRegion",
    "NKIObject",
    "NkiTensor",
    "abs",
    "abs_max",
    "abs_min",
    "add",
    "affine_range",
    "all",
    "arctan",
    "average",
    "bfloat16",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool_",
    "broadcast_to",
    "bypass",
    "ceil",
    "copy",
    "cos",
    "device_print",
    "divide",
    "dropout",
    "ds",
    "dynamic_range",
    "empty_like",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "expand_dims",
    "float4_e2m1fn_x4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fn_x4",
    "float8_e5m2",
    "float8_e5m2_x4",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "floor",
    "fmod",
    "fori_loop",
    "full",
    "gather_flattened",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "hbm",
    "int8",
    "int16",
    "int32",
    "invert",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "left_shift",
    "less",
    "less_equal",
    "load",
    "load_transpose2d",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "ndarray",
    "negative",
    "no_reorder",
    "not_equal",
    "num_programs",
    "ones",
    "power",
    "prelu",
    "private_hbm",
    "prod",
    "program_id",
    "program_ndim",
    "psum",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "sbuf",
    "sequential_range",
    "shared_constant",
    "shared_hbm",
    "shared_identity_matrix",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "static_range",
    "store",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "tfloat32",
    "tile_size",
    "transpose",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "var",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]
