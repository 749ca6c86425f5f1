"""The number formats: what rounds to what, and which host dtypes mean which format."""

from __future__ import annotations

import copy
import json
import math
import pickle
import sys
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import NUMPY, Array

from trnrt.nki.installing import install_briefly
from trnrt.nki.machine.dtypes import DTYPES, DType, as_dtype, bool_, float32, rounder, tfloat32
from trnrt.nki.machine.operators import Operator
from trnrt.nki.sim.lang.packed import LEFT_OUT

FLOATS = st.floats(width=32)
WIDE = st.one_of(FLOATS, st.integers(-(2**33), 2**33).map(float), st.integers(-600, 600).map(lambda n: n / 2))


def round_to(value: float, dtype: DType) -> Any:
    function = rounder(dtype)
    assert function is not None
    with np.errstate(all="ignore"):
        return function(np.array([value], np.float32))[0]


def to_tfloat32(value: float) -> float:
    """The nearest number of 11 significant bits and float32's exponents, ties to the even one, in exact arithmetic."""
    if not math.isfinite(value) or value == 0:
        return value
    _, exponent = math.frexp(value)
    quantum = max(exponent - 11, -126 - 10)
    nearest = math.ldexp(round(math.ldexp(value, -quantum)), quantum)
    return math.copysign(nearest if abs(nearest) < 2.0**128 else math.inf, value)


def equal(got: Any, expected: Any) -> bool:
    """Equal, or both NaN; with the sign of zero."""
    got, expected = float(got), float(expected)
    if math.isnan(expected):
        return math.isnan(got)
    return got == expected and math.copysign(1, got) == math.copysign(1, expected)


@settings(max_examples=500)
@given(FLOATS)
def test_tfloat32_has_ten_bits_of_mantissa(value: float) -> None:
    assert equal(round_to(value, tfloat32), to_tfloat32(value))


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F800FFF, 0x3F800000),  # just below the middle
        (0x3F801000, 0x3F800000),  # the middle, to the even side
        (0x3F803000, 0x3F804000),
        (0x3F801001, 0x3F802000),
        (0xBF801001, 0xBF802000),
        (0x7F7FFFFF, 0x7F800000),  # overflows to infinity
        (0x00001000, 0x00000000),
        (0x00003000, 0x00004000),
        (0x80000001, 0x80000000),
        (0x7F800000, 0x7F800000),
    ],
)
def test_tfloat32_bit_by_bit(bits: int, rounded: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    got: Array = rounder(tfloat32)(value)  # type: ignore[misc]
    assert hex(got.view(np.uint32)[0]) == hex(rounded)


@settings(max_examples=200)
@given(FLOATS)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"])
def test_floats_round_as_ml_dtypes_does(name: str, value: float) -> None:
    with np.errstate(all="ignore"):
        expected = np.float32(value).astype(NUMPY[name])
    got = round_to(value, DTYPES[name])
    assert got.dtype == np.float32
    assert equal(got, expected)


@settings(max_examples=200)
@given(WIDE)
@pytest.mark.parametrize("name", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_integers_round_to_even_and_saturate(name: str, value: float) -> None:
    value = float(np.float32(value))
    limits = np.iinfo(NUMPY[name])
    if math.isnan(value):
        expected = 0
    elif math.isinf(value):
        expected = limits.max if value > 0 else limits.min
    else:
        expected = min(max(round(value), limits.min), limits.max)
    got = round_to(value, DTYPES[name])
    assert got.dtype == NUMPY[name]
    assert int(got) == expected


def test_float8_e4m3_ends_at_240() -> None:
    assert round_to(240.0, DTYPES["float8_e4m3"]) == 240
    assert round_to(256.0, DTYPES["float8_e4m3"]) == math.inf
    assert round_to(448.0, DTYPES["float8_e4m3fn"]) == 448
    assert round_to(57344.0, DTYPES["float8_e5m2"]) == 57344


def test_booleans_and_float32() -> None:
    assert [bool(round_to(value, bool_)) for value in (0.0, -0.0, 0.5, math.nan, -2.0)] == [False, False, *[True] * 3]
    assert rounder(float32) is None


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_twice_changes_nothing(name: str) -> None:
    function = rounder(DTYPES[name])
    if function is not None:
        with np.errstate(all="ignore"):
            values = function(np.random.default_rng(0).standard_normal(1000).astype(np.float32) * 100)
            np.testing.assert_array_equal(function(values.astype(np.float32)), values)


@pytest.mark.parametrize("name", DTYPES)
def test_names_and_host_dtypes(name: str) -> None:
    dtype = DTYPES[name]
    assert as_dtype(name) is dtype
    assert as_dtype(dtype) is dtype
    assert dtype == name
    assert repr(dtype) == name
    assert {dtype: 1}[DTYPES[name]] == 1
    assert dtype != "complex64"
    assert dtype != object()
    if name != "tfloat32":  # which the host has not
        assert as_dtype(dtype.numpy) is dtype
        assert dtype.itemsize == dtype.numpy.itemsize
    assert np.zeros(2, dtype).astype(dtype).dtype == dtype.numpy  # numpy takes it as a dtype
    assert dtype.array_dtype == (np.float32 if dtype.is_float else dtype.numpy)


def test_host_types_that_mean_a_format() -> None:
    assert as_dtype(np.float32) is float32
    assert as_dtype(ml_dtypes.bfloat16).name == "bfloat16"
    assert as_dtype("bool") is bool_


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint64, np.complex64, "str", "float99", None, object])
def test_formats_that_the_device_has_not(dtype: object) -> None:
    with pytest.raises(TypeError, match=r"the NeuronCore has no dtype .*; it has float32, tfloat32"):
        as_dtype(dtype)


# What a kernel's config may hold: dtypes, operators, engines, modes. AWS's dtypes are strings (nki.language.DType).
@dataclass
class Config:
    held: Any


def public_values() -> list[Any]:
    """Every public value of the modules that kernels import that is no function, class or module."""
    with install_briefly() as ours:
        assert ours
        modules = [module for name, module in sys.modules.items() if name == "nki" or name.startswith("nki.")]
        found = [
            (f"{m.__name__}.{n}", v) for m in modules for n in dir(m) if not n.startswith("_") for v in [getattr(m, n)]
        ]
    kinds = (DType, Operator, Enum)
    enums = [(n, v) for n, v in found if isinstance(v, type) and issubclass(v, Enum)]
    members = [(f"{n}.{member.name}", member) for n, enum in enums for member in enum]
    return [pytest.param(v, id=n) for n, v in [*found, *members] if isinstance(v, kinds)]


def test_public_values_are_found() -> None:
    values = [param.values[0] for param in public_values()]
    assert len([v for v in values if isinstance(v, DType)]) >= 2 * len(DTYPES)
    assert {type(v).__name__ for v in values} >= {"DType", "Operator", "MemoryRegion", "Engine", "oob_mode"}


@pytest.mark.parametrize("value", public_values())
def test_what_a_config_holds_survives_it(value: Any) -> None:
    """Rules and meanings ask for identity: a copy would be another dtype, or an operator that nothing knows."""
    assert asdict(Config([value]))["held"][0] is value
    assert copy.copy(value) is value
    assert copy.deepcopy({"held": value})["held"] is value
    assert all(pickle.loads(pickle.dumps(value, protocol)) is value for protocol in range(pickle.HIGHEST_PROTOCOL + 1))
    assert {value: 1}[copy.deepcopy(value)] == 1
    assert replace(Config(value), held=value) == Config(value)
    assert f"{value}" == str(value)


@pytest.mark.parametrize("dtype", [*DTYPES.values(), *LEFT_OUT.values()], ids=str)
def test_a_dtype_is_its_name(dtype: DType) -> None:
    assert isinstance(dtype, str)
    assert dtype == dtype.name == str(dtype) == f"{dtype}" == repr(dtype)
    assert f"{dtype:>20}" == dtype.name.rjust(20)
    assert json.loads(json.dumps(asdict(Config(dtype)))) == {"held": dtype.name}
    assert {dtype.name: 1}[dtype] == 1
    assert as_dtype(dtype) is as_dtype(dtype.name) is dtype
    assert np.zeros(3, dtype).astype(dtype).itemsize == dtype.itemsize


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_numpy_knows_a_dtype_by_its_name(dtype: DType) -> None:
    assert np.dtype(dtype) == dtype.numpy == np.zeros(3, dtype).dtype


def test_dtypes_differ() -> None:
    every = [*DTYPES.values(), *LEFT_OUT.values()]
    assert len(set(every)) == len(every)
    assert sorted(every) == sorted(dtype.name for dtype in every)
