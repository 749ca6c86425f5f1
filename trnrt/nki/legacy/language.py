"""``neuronxcc.nki.language`` (`nl`): dtypes, memories, index expressions, and the functions of ``legacy/lang``."""

# ruff: noqa: F403 - a family's __all__ says which of its functions kernels get

from __future__ import annotations

from functools import partial as _partial
from typing import Any as _Any

import ml_dtypes as _ml_dtypes
import numpy as _np

from trnrt.nki.legacy import indexing as _indexing
from trnrt.nki.legacy.blocks import par_dim as par_dim
from trnrt.nki.legacy.lang import elementwise as _elementwise
from trnrt.nki.legacy.lang.across import *
from trnrt.nki.legacy.lang.creation import *
from trnrt.nki.legacy.lang.movement import *
from trnrt.nki.legacy.lang.products import *
from trnrt.nki.legacy.lang.program import *
from trnrt.nki.legacy.lang.reductions import *
from trnrt.nki.legacy.lang.selection import *
from trnrt.nki.legacy.launching import nc as nc
from trnrt.nki.legacy.launching import spmd_dim as spmd_dim
from trnrt.nki.machine import dtypes as _dtypes
from trnrt.nki.machine.program import MemoryRegion as _MemoryRegion
from trnrt.nki.sim import language as _today
from trnrt.nki.sim.lang.movement import ds as ds

arange = _indexing.arange
mgrid = _indexing.MeshGrid()

float32, float16 = _np.float32, _np.float16
bfloat16, float8_e4m3, float8_e5m2 = _ml_dtypes.bfloat16, _ml_dtypes.float8_e4m3, _ml_dtypes.float8_e5m2
tfloat32 = _dtypes.tfloat32
int8, int16, int32, uint8, uint16, uint32 = _np.int8, _np.int16, _np.int32, _np.uint8, _np.uint16, _np.uint32
bool_ = _np.bool_

sbuf = _MemoryRegion.sbuf
psum = _MemoryRegion.psum
hbm = _MemoryRegion.shared_hbm
shared_hbm = _MemoryRegion.shared_hbm
private_hbm = _MemoryRegion.private_hbm
tile_size = _today.tile_size

_BINARY = (
    "add subtract multiply divide maximum minimum power mod fmod equal not_equal less less_equal greater greater_equal "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift"
)
_UNARY = (
    "abs arctan ceil cos erf erf_dx exp floor gelu gelu_apprx_sigmoid gelu_apprx_tanh gelu_dx log mish relu rsqrt "
    "sigmoid sign silu silu_dx sin softplus sqrt square tan tanh trunc reciprocal"
)


class _Function:
    """A function that instructions also take as ``op=``: ``nl.add(x, y)``, ``op=nl.add``."""

    def __init__(self, name: str, call: _Any, says: str) -> None:
        self.__name__, self._call, self.__doc__ = name, call, says

    def __call__(self, *args: _Any, **kwargs: _Any) -> _Any:
        return self._call(*args, **{key: value for key, value in kwargs.items() if key in ("dtype", "mask", "x", "y")})

    def __repr__(self) -> str:
        return f"nl.{self.__name__}"


for _name in _BINARY.split():
    _says = _elementwise.describe_binary(_name)
    globals()[_name] = _Function(_name, _partial(_elementwise.binary, _name), _says)
for _name in _UNARY.split():
    globals()[_name] = _Function(_name, _partial(_elementwise.unary, _name), _elementwise.describe_unary(_name))
for _name in ("invert", "logical_not", "negative"):
    globals()[_name] = _Function(_name, getattr(_elementwise, _name), getattr(_elementwise, _name).__doc__)
