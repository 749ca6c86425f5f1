"""Our ``nki.language`` (`nl`): dtypes, memories, tile sizes, operators, and the functions of ``sim/lang``."""

# ruff: noqa: F403 - a family's __all__ says which of its functions kernels get

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from trnrt.nki.lazy import load_lazily as _load_lazily
from trnrt.nki.machine import dtypes as _dtypes
from trnrt.nki.machine import program as _program
from trnrt.nki.machine.operators import OPERATORS as _OPERATORS
from trnrt.nki.machine.operators import Operator as _Operator
from trnrt.nki.machine.operators import on_call as _on_call
from trnrt.nki.sim import tensor as _tensor

if _TYPE_CHECKING:
    from trnrt.nki.sim.lang.constants import *
    from trnrt.nki.sim.lang.creation import *
    from trnrt.nki.sim.lang.elementwise import *
    from trnrt.nki.sim.lang.left_out import *
    from trnrt.nki.sim.lang.movement import *
    from trnrt.nki.sim.lang.objects import *
    from trnrt.nki.sim.lang.packed import *
    from trnrt.nki.sim.lang.products import *
    from trnrt.nki.sim.lang.program import *
    from trnrt.nki.sim.lang.reductions import *
    from trnrt.nki.sim.lang.rounding import *
    from trnrt.nki.sim.lang.selection import *
    from trnrt.nki.sim.lang.sizes import *
    from trnrt.nki.sim.lang.trigonometry import *

# The families, and the __all__ of each: a kernel loads those that it uses.
_FAMILIES = {
    "constants": "device_print shared_constant shared_identity_matrix",
    "creation": "empty_like full ndarray ones rand random_seed zeros zeros_like",
    "elementwise": "divide fmod logical_not mod negative",
    "left_out": "NkiBlockGrid NkiGrid NkiTileGrid alloc_blocks alloc_tiles blocks int64 tiles uint64",
    "movement": "broadcast_to ds expand_dims gather_flattened load load_transpose2d store",
    "objects": "NKIObject",
    "packed": "float4_e2m1fn_x4 float8_e4m3fn_x4 float8_e5m2_x4 float8_e8m0fnu",
    "products": "matmul transpose",
    "program": "affine_range no_reorder num_programs program_id program_ndim sequential_range static_range",
    "reductions": "all max mean min prod rms_norm softmax sum var",
    "rounding": "ceil floor trunc",
    "selection": "dropout where",
    "sizes": "_TileSize is_hbm is_on_chip is_psum is_sbuf tile_size",
    "trigonometry": "cos tan",
}
__getattr__, __dir__ = _load_lazily(
    __name__,
    {
        **{f"trnrt.nki.sim.lang.{family}": names.split() for family, names in _FAMILIES.items()},
        "trnrt.nki.sim.instructions.control": ("dynamic_range", "fori_loop", "while_loop"),
    },
)


@_on_call
def _call(op: _Operator, *args: _Any, **kwargs: _Any) -> _Any:
    from trnrt.nki.sim.lang import tokens

    return tokens.call(op, *args, **kwargs)


DType = _dtypes.DType
bfloat16 = _dtypes.bfloat16
bool_ = _dtypes.bool_
float8_e4m3 = _dtypes.float8_e4m3
float8_e4m3fn = _dtypes.float8_e4m3fn
float8_e5m2 = _dtypes.float8_e5m2
float16 = _dtypes.float16
float32 = _dtypes.float32
int8 = _dtypes.int8
int16 = _dtypes.int16
int32 = _dtypes.int32
tfloat32 = _dtypes.tfloat32
uint8 = _dtypes.uint8
uint16 = _dtypes.uint16
uint32 = _dtypes.uint32

NkiTensor = _tensor.NkiTensor
MemoryRegion = _program.MemoryRegion
sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
hbm = MemoryRegion.private_hbm

# Operators are what instructions take as `op`, and functions: machine/operators.py and sim/lang/tokens.py.
abs = _OPERATORS["abs"]
abs_max = _OPERATORS["abs_max"]
abs_min = _OPERATORS["abs_min"]
add = _OPERATORS["add"]
arctan = _OPERATORS["arctan"]
average = _OPERATORS["average"]
bitwise_and = _OPERATORS["bitwise_and"]
bitwise_or = _OPERATORS["bitwise_or"]
bitwise_xor = _OPERATORS["bitwise_xor"]
bypass = _OPERATORS["bypass"]
copy = _OPERATORS["copy"]
equal = _OPERATORS["equal"]
erf = _OPERATORS["erf"]
erf_dx = _OPERATORS["erf_dx"]
exp = _OPERATORS["exp"]
gelu = _OPERATORS["gelu"]
gelu_apprx_sigmoid = _OPERATORS["gelu_apprx_sigmoid"]
gelu_apprx_sigmoid_dx = _OPERATORS["gelu_apprx_sigmoid_dx"]
gelu_apprx_tanh = _OPERATORS["gelu_apprx_tanh"]
gelu_dx = _OPERATORS["gelu_dx"]
greater = _OPERATORS["greater"]
greater_equal = _OPERATORS["greater_equal"]
invert = _OPERATORS["invert"]
left_shift = _OPERATORS["left_shift"]
less = _OPERATORS["less"]
less_equal = _OPERATORS["less_equal"]
log = _OPERATORS["log"]
logical_and = _OPERATORS["logical_and"]
logical_or = _OPERATORS["logical_or"]
logical_xor = _OPERATORS["logical_xor"]
maximum = _OPERATORS["maximum"]
minimum = _OPERATORS["minimum"]
mish = _OPERATORS["mish"]
multiply = _OPERATORS["multiply"]
not_equal = _OPERATORS["not_equal"]
power = _OPERATORS["power"]
prelu = _OPERATORS["prelu"]
reciprocal = _OPERATORS["reciprocal"]
relu = _OPERATORS["relu"]
right_shift = _OPERATORS["right_shift"]
rsqrt = _OPERATORS["rsqrt"]
sigmoid = _OPERATORS["sigmoid"]
sign = _OPERATORS["sign"]
silu = _OPERATORS["silu"]
silu_dx = _OPERATORS["silu_dx"]
sin = _OPERATORS["sin"]
softplus = _OPERATORS["softplus"]
sqrt = _OPERATORS["sqrt"]
square = _OPERATORS["square"]
subtract = _OPERATORS["subtract"]
tanh = _OPERATORS["tanh"]
