"""Our ``nki.language`` (`nl`): dtypes, memories, tile sizes, operators, and the functions of ``sim/lang``."""

# ruff: noqa: F403 - a family's __all__ says which of its functions kernels get

from __future__ import annotations

from trnrt.nki.machine import dtypes as _dtypes
from trnrt.nki.machine import program as _program
from trnrt.nki.machine.operators import OPERATORS as _OPERATORS
from trnrt.nki.sim import tensor as _tensor
from trnrt.nki.sim.instructions import control as _control
from trnrt.nki.sim.lang import tokens as _tokens  # noqa: F401  # makes operators callable
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
from trnrt.nki.sim.lang.sizes import TileSize as _TileSize  # noqa: F401  # the class of tile_size, under NKI's name
from trnrt.nki.sim.lang.trigonometry import *

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

dynamic_range = _control.dynamic_range
fori_loop = _control.fori_loop
while_loop = _control.while_loop

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
