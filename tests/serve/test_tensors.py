"""Tensors of the protocol: what is refused, with words that help, and what comes back just as it went."""

from __future__ import annotations

import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trnrt.serve.http.tensors import (
    DATATYPES,
    TensorError,
    check_shape,
    datatype_of,
    from_binary,
    from_json,
    to_binary,
    to_json,
    value_text,
)

LIMIT = 1000

BAD_SHAPES = [
    ("4", "its shape is '4'"),
    (None, "its shape is null"),
    ({"a": 1}, "its shape is an object"),
    ([1.0], "dimension 0 of its shape is 1.0"),
    ([1, True], "dimension 1 of its shape is true"),
    ([-1], "dimension 0 of its shape is -1"),
    (["1"], "dimension 0 of its shape is '1'"),
    ([None], "dimension 0 of its shape is null"),
    ([1001], "asks for 1001 elements; the limit of this server is 1000"),
    ([10, 101], "asks for 1010 elements"),
    ([2**63, 2**63], f"asks for {2**126} elements"),
    ([2**32, 2**32], f"asks for {2**64} elements"),
    ([0, 10**30], "asks for 1000000000000000000000000000000 elements"),
    ([10**4000] * 2, "an integer of"),
    ([1] * 33, "33 dimensions; the limit is 32"),
]


@pytest.mark.parametrize(("shape", "told"), BAD_SHAPES, ids=value_text)
def test_bad_shapes(shape: Any, told: str) -> None:
    with pytest.raises(TensorError) as caught:
        check_shape(shape, LIMIT)
    assert told in str(caught.value)


@pytest.mark.parametrize("shape", [[], [0], [1000], [10, 100], [0, 7], [1] * 32])
def test_good_shapes(shape: list[int]) -> None:
    assert check_shape(shape, LIMIT) == tuple(shape)


BAD_DATA = [
    ("FP32", [2], [1.0, 2.0, 3.0], "has 3 elements; shape [2] has 2"),
    ("FP32", [2], [1.0], "has 1 elements; shape [2] has 2"),
    ("FP32", [2, 2], [[1, 2], [3]], "a list of 1 at level 1, item 1"),
    ("FP32", [2, 2], [[1, 2], 3], "3 at level 1, item 1"),
    ("FP32", [2, 2], [[1, 2], [3, [4]]], "element 3 of its data is a list; it is a number"),
    ("FP32", [2, 2], [[[1], [2]], [[3], [4]]], "element 0 of its data is a list"),
    ("FP32", [2, 2], [1, [2], 3, 4], "element 1 of its data is a list"),
    ("FP32", [1], "1", "its data is '1'; it is a list"),
    ("FP32", [1], {"0": 1}, "its data is an object"),
    ("FP32", [1], None, "its data is null"),
    ("FP32", [2], [1, True], "element 1 of its data is true; it is a number"),
    ("FP32", [1], ["1"], "element 0 of its data is '1'; it is a number"),
    ("FP32", [1], [None], "element 0 of its data is null; it is a number"),
    ("FP32", [2], [0, 1e39], "element 1 of its data is 1e+39; FP32 holds"),
    ("FP32", [1], [math.inf], "element 0 of its data is inf"),
    ("FP64", [1], [-math.inf], "element 0 of its data is -inf"),
    ("FP64", [1], [10**400], "an integer of 1329 bits; FP64 holds"),
    ("FP16", [1], [70000], "70000; FP16 holds -65504.0 to 65504.0"),
    ("BF16", [1], [3.5e38], "3.5e+38; BF16 holds"),
    ("INT8", [1], [128], "element 0 of its data is 128; INT8 holds -128 to 127"),
    ("UINT8", [2], [0, -1], "element 1 of its data is -1; UINT8 holds 0 to 255"),
    ("UINT64", [1], [2**64], "UINT64 holds 0 to 18446744073709551615"),
    ("INT64", [1], [-(2**63) - 1], "INT64 holds"),
    ("INT32", [1], [1.5], "element 0 of its data is 1.5; it is a whole number"),
    ("INT64", [1], [1e300], "element 0 of its data is 1e+300; it is a whole number"),
    ("INT64", [1], [True], "element 0 of its data is true; it is a whole number"),
    ("INT64", [1], ["1"], "element 0 of its data is '1'; it is a whole number"),
    ("BOOL", [1], [1], "element 0 of its data is 1; it is true or false"),
    ("BOOL", [1], ["true"], "element 0 of its data is 'true'"),
    ("BYTES", [1], [1], "element 0 of its data is 1; it is a string"),
    ("BYTES", [2], ["a", "\ud800"], "element 1 of its data holds half a surrogate pair"),
]


@pytest.mark.parametrize(("name", "shape", "data", "told"), BAD_DATA, ids=value_text)
def test_bad_data(name: str, shape: list[int], data: Any, told: str) -> None:
    with pytest.raises(TensorError) as caught:
        from_json(data, check_shape(shape, LIMIT), DATATYPES[name])
    assert told in str(caught.value)


GOOD_DATA: list[tuple[str, list[int], Any, list[Any]]] = [
    ("FP32", [2, 2], [[1, 2.5], [3, 4]], [1, 2.5, 3, 4]),
    ("FP32", [2, 2], [1, 2.5, 3, 4], [1, 2.5, 3, 4]),
    ("FP32", [], [7], [7]),
    ("FP32", [], 7, [7]),
    ("FP32", [0, 3], [], []),
    ("FP32", [2, 0], [[], []], []),
    ("FP16", [1], [65504], [65504]),
    ("BF16", [1], [1.5], [1.5]),
    ("FP64", [1], [2**60], [2**60]),
    ("INT64", [2], [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    ("UINT64", [2], [0, 2**64 - 1], [0, 2**64 - 1]),
    ("INT8", [3], [1.0, -128, 1e2], [1, -128, 100]),
    ("BOOL", [2, 1], [[True], [False]], [True, False]),
    ("BYTES", [2], ["", "naïve \U0001f600\0"], ["", "naïve \U0001f600\0"]),
]


@pytest.mark.parametrize(("name", "shape", "data", "flat"), GOOD_DATA, ids=value_text)
def test_good_data(name: str, shape: list[int], data: Any, flat: list[Any]) -> None:
    array = from_json(data, tuple(shape), DATATYPES[name])
    assert array.shape == tuple(shape)
    assert array.dtype == DATATYPES[name].dtype
    assert array.reshape(-1).tolist() == flat


def random_bits(name: str, shape: tuple[int, ...], seed: int) -> Any:
    """A tensor of any values that the datatype has."""
    generator = np.random.default_rng(seed)
    datatype = DATATYPES[name]
    if datatype.kind == "str":
        made = np.empty(shape, np.object_)
        made[...] = [["", "ü"], ["a" * 300, "\U0001f600\0x"]]
        return made
    if datatype.kind == "bool":
        return generator.random(shape) < 0.5
    count = math.prod(shape) * datatype.dtype.itemsize
    return np.frombuffer(generator.bytes(count), datatype.dtype).reshape(shape)


@pytest.mark.parametrize("name", DATATYPES)
@pytest.mark.parametrize("seed", range(20))
def test_binary_data_come_back_bit_for_bit(name: str, seed: int) -> None:
    array = random_bits(name, (2, 2), seed)
    raw = to_binary(array, DATATYPES[name])
    # Behind one byte more, as behind JSON of any length, nothing is aligned.
    back = from_binary(memoryview(b"x" + raw)[1:], (2, 2), DATATYPES[name])
    assert back.dtype == array.dtype and back.flags.aligned and back.flags.writeable
    if name == "BYTES":
        assert back.tolist() == array.tolist()
    else:
        assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", DATATYPES)
@pytest.mark.parametrize("seed", range(20))
def test_json_data_come_back_bit_for_bit(name: str, seed: int) -> None:
    array = random_bits(name, (2, 2), seed)
    if DATATYPES[name].kind == "float":
        array = np.where(np.isfinite(array), array, array.dtype.type(0.1))
    back = from_json(to_json(array, DATATYPES[name], None), (2, 2), DATATYPES[name])
    assert back.tolist() == array.tolist()
    if name != "BYTES":
        assert back.tobytes() == array.tobytes()


def test_binary_data_are_little_endian_and_row_major() -> None:
    array = np.array([[1, 2], [3, 4]], np.int32)
    assert to_binary(array, DATATYPES["INT32"]) == struct.pack("<4i", 1, 2, 3, 4)
    assert to_binary(array.T, DATATYPES["INT32"]) == struct.pack("<4i", 1, 3, 2, 4)
    assert to_binary(array.astype(">i4"), DATATYPES["INT32"]) == struct.pack("<4i", 1, 2, 3, 4)
    strings = np.array(["ab", ""], np.object_)
    assert to_binary(strings, DATATYPES["BYTES"]) == b"\x02\0\0\0ab\0\0\0\0"


BAD_BINARY = [
    ("FP32", [2], b"1234567", "has 7 bytes; FP32 [2] has 8"),
    ("FP32", [1], b"", "has 0 bytes; FP32 [1] has 4"),
    ("BOOL", [3], b"\0\1\2", "byte 2 of its BOOL data is 2"),
    ("BYTES", [2], b"\0\0\0\0", "2 strings need at least 8"),
    ("BYTES", [1], b"\5\0\0\0abc", "string 0 of its binary data ends beyond its 7 bytes"),
    ("BYTES", [2], b"\4\0\0\0abcd\0\0", "string 1 of its binary data ends beyond"),
    ("BYTES", [1], b"\xff\xff\xff\xffabc", "ends beyond"),
    ("BYTES", [1], b"\1\0\0\0\xff", "string 0 of its binary data is no UTF-8"),
    ("BYTES", [1], b"\0\0\0\0rest", "has 8 bytes; its 1 strings end after 4"),
]


@pytest.mark.parametrize(("name", "shape", "raw", "told"), BAD_BINARY, ids=value_text)
def test_bad_binary_data(name: str, shape: list[int], raw: bytes, told: str) -> None:
    with pytest.raises(TensorError) as caught:
        from_binary(memoryview(raw), tuple(shape), DATATYPES[name])
    assert told in str(caught.value)


@pytest.mark.parametrize("name", DATATYPES)
def test_tensors_without_elements(name: str) -> None:
    assert from_binary(b"", (0, 3), DATATYPES[name]).shape == (0, 3)
    assert from_json([], (0, 3), DATATYPES[name]).shape == (0, 3)
    assert to_binary(np.empty((0, 3), DATATYPES[name].dtype), DATATYPES[name]) == b""


@pytest.mark.parametrize("name", ["FP16", "BF16", "FP32", "FP64"])
def test_json_has_no_nan(name: str) -> None:
    array = np.array([math.nan, math.inf, -math.inf, 1.5], DATATYPES[name].dtype)
    with pytest.raises(TensorError, match="NaN or infinity"):
        to_json(array, DATATYPES[name], None)
    assert to_json(array, DATATYPES[name], "null") == [None, None, None, 1.5]
    assert to_json(array, DATATYPES[name], "string") == ["NaN", "Infinity", "-Infinity", 1.5]


def test_datatypes_are_found_by_the_importers_names() -> None:
    assert {datatype_of(name): name for name in ("float32", "str", "bool", "bfloat16", "uint8")} == {
        DATATYPES["FP32"]: "float32",
        DATATYPES["BYTES"]: "str",
        DATATYPES["BOOL"]: "bool",
        DATATYPES["BF16"]: "bfloat16",
        DATATYPES["UINT8"]: "uint8",
    }
    assert datatype_of("seq(map(int64, float32))") is None
    assert datatype_of("complex64") is None


def test_strings_that_a_model_gives_as_bytes() -> None:
    array = np.array([b"\xff", "b"], np.object_)
    assert to_binary(array, DATATYPES["BYTES"]) == b"\1\0\0\0\xff\1\0\0\0b"
    assert to_json(array, DATATYPES["BYTES"], None) == ["\udcff", "b"]


@pytest.mark.parametrize(
    "value", ["x" * 10**6, "\ud800\n\x1b", 10**5000, [[]], {"a": 1}, None, True, 1e308], ids=value_text
)
def test_what_a_client_sent_is_short_and_escaped_in_a_message(value: Any) -> None:
    assert len(value_text(value)) < 80
    assert value_text(value).isascii() and value_text(value).isprintable()


def test_bfloat16_is_rounded_as_numpy_does() -> None:
    assert from_json([0.1], (1,), DATATYPES["BF16"])[0] == ml_dtypes.bfloat16(0.1)
