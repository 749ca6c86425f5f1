"""Infer requests and answers as bytes: a table of what is refused, and what is understood."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.protocol import (
    InferRequest,
    RequestError,
    describe,
    dumps,
    header_length,
    loads,
    parse_infer,
    render_infer,
)
from trnrt.serve.http.tensors import TensorError, value_text

INPUTS = (TensorMeta("x", "float32", (-1, 2)), TensorMeta("s", "str", (-1,)))
OUTPUTS = (TensorMeta("y", "float32", (-1, 2)), TensorMeta("t", "str", (-1,)))
X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
S = {"name": "s", "shape": [1], "datatype": "BYTES", "data": ["a"]}


def parse(body: bytes, length: int | None = None) -> InferRequest:
    return parse_infer(body, length, Description(INPUTS, OUTPUTS), 100)


def request(**members: Any) -> bytes:
    return json.dumps({"inputs": [X], **members}).encode()


def binary_request(*tensors: dict[str, Any], rest: bytes, **members: Any) -> tuple[bytes, int]:
    head = json.dumps({"inputs": list(tensors), **members}).encode()
    return head + rest, len(head)


BAD_BODIES = [
    (b"", "no JSON: line 1 column 1"),
    (b"{", "no JSON: line 1 column 2"),
    (b"[]", "the request is a list; it is an object"),
    (b"null", "the request is null"),
    (b"\xff{}", "no UTF-8: byte 0"),
    (b"\xef\xbb\xbf{}", "no JSON"),
    ('{"inputs": []}'.encode("utf-16"), "no UTF-8"),
    (b'{"inputs": [], "inputs": []}', "names 'inputs' twice"),
    (b'{"inputs": [{"name": "x", "name": "x"}]}', "names 'name' twice"),
    (b'{"inputs": NaN}', "holds NaN"),
    (b'{"inputs": [-Infinity]}', "holds -Infinity"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"a":' * 100_000, "nested too deeply"),
    (b"1" * 5000, "too many digits"),
    (b"{} x", "no JSON: line 1 column 4"),
    (b'{"a": 01}', "no JSON"),
    (b"{'a': 1}", "no JSON"),
    (b'{"a": "\n"}', "no JSON"),
    (b"{}", "inputs is null; it is a list"),
    (b'{"inputs": {}}', "inputs is an object"),
    (b'{"inputs": [1]}', "input 0 is 1; it is an object"),
    (b'{"inputs": [{}]}', "the name of input 0 is null"),
    (request(inputs=[X | {"name": "z"}]), "no input 'z'; its inputs are 'x', 's'"),
    (request(inputs=[X | {"name": "\ud800"}]), "no input '\\ud800'"),
    (request(inputs=[X, X]), "input 'x' is given twice"),
    (request(inputs=[X | {"datatype": "FP64"}]), "input 'x': its datatype is FP64; the model wants FP32"),
    (request(inputs=[X | {"datatype": "float"}]), "its datatype is 'float'; datatypes are BOOL"),
    (request(inputs=[X | {"datatype": 7}]), "its datatype is 7"),
    (request(inputs=[X | {"datatype": None}]), "its datatype is null"),
    (request(inputs=[X | {"shape": [2, 2]}]), "input 'x': its data has 2 elements; shape [2, 2] has 4"),
    (request(inputs=[X | {"shape": [101, 1]}]), "input 'x': its shape asks for 101 elements"),
    (request(inputs=[{k: X[k] for k in ("name", "shape", "datatype")}]), "it has no data, and no binary_data_size"),
    (request(inputs=[X | {"parameters": {"binary_data_size": 8}}]), "it has both data and binary_data_size"),
    (request(inputs=[X | {"parameters": []}]), "the parameters of input 'x' are a list"),
    (request(inputs=[X | {"parameters": {"shared_memory_region": "r"}}]), "does not serve that extension"),
    (request(parameters="fast"), "the parameters of the request are 'fast'"),
    (request(parameters={"binary_data_output": 1}), "binary_data_output of the request is 1"),
    (request(parameters={"nan_policy": "zero"}), "nan_policy is 'zero'; it is 'null' or 'string'"),
    (request(parameters={"nan_policy": ["null"]}), "nan_policy is a list"),
    (request(id=7), "the id is 7; it is a string"),
    (request(id="\udfff"), "the id holds half a surrogate pair"),
    (request(outputs={"name": "y"}), "outputs is an object"),
    (request(outputs=["y"]), "output 0 is 'y'; it is an object with a name"),
    (request(outputs=[{}]), "output 0 is an object; it is an object with a name"),
    (request(outputs=[{"name": "z"}]), "no output 'z'; its outputs are 'y', 't'"),
    (request(outputs=[{"name": "y"}, {"name": "y"}]), "output 'y' is asked for twice"),
    (request(outputs=[{"name": "y", "parameters": {"binary_data": "yes"}}]), "binary_data of output 'y' is 'yes'"),
    (request(outputs=[{"name": "y", "parameters": {"classification": 3}}]), "the parameter 'classification'"),
]


@pytest.mark.parametrize(("body", "told"), BAD_BODIES, ids=lambda value: value_text(str(value)))
def test_bad_requests(body: bytes, told: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 300


BX = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
EIGHT = struct.pack("<2f", 1, 2)
BAD_BINARY = [
    ([BX], EIGHT + b"1", "1 bytes behind the JSON that belong to no input"),
    ([BX], EIGHT[:7], "its binary_data_size is 8; only 7 bytes of the body are left"),
    ([BX | {"parameters": {"binary_data_size": 4}}], EIGHT, "its binary data has 4 bytes; FP32 [1, 2] has 8"),
    ([BX | {"parameters": {"binary_data_size": -1}}], EIGHT, "its binary_data_size is -1"),
    ([BX | {"parameters": {"binary_data_size": True}}], EIGHT, "its binary_data_size is true"),
    ([BX | {"parameters": {"binary_data_size": 8.0}}], EIGHT, "its binary_data_size is 8.0"),
    ([BX | {"parameters": {"binary_data_size": 10**30}}], EIGHT, "only 8 bytes of the body are left"),
    ([X], EIGHT, "8 bytes behind the JSON"),
]


@pytest.mark.parametrize(("tensors", "rest", "told"), BAD_BINARY, ids=value_text)
def test_bad_binary_requests(tensors: list[dict[str, Any]], rest: bytes, told: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(*binary_request(*tensors, rest=rest))
    assert told in str(caught.value)


def test_binary_data_need_the_header() -> None:
    with pytest.raises(RequestError, match="no header Inference-Header-Content-Length"):
        parse(request(inputs=[BX]))


@pytest.mark.parametrize("text", ["-1", "+1", " 1", "1_0", "٣", "1.0", "", "x", "9" * 5000])
def test_bad_header_lengths(text: str) -> None:
    with pytest.raises(RequestError, match="it is the number of bytes of the JSON"):
        header_length(text, 100)


def test_header_lengths() -> None:
    assert header_length(None, 5) is None
    assert header_length("0", 5) == 0
    assert header_length("5", 5) == 5
    with pytest.raises(RequestError, match="is 6, and the body has only 5 bytes"):
        header_length("6", 5)


def test_the_length_is_that_of_the_json() -> None:
    body, length = binary_request(BX, rest=EIGHT)
    for wrong in (length - 1, length + 1, 0):
        with pytest.raises(RequestError):
            parse(body, wrong)
    assert parse(body, length).feeds["x"].tolist() == [[1, 2]]


def test_json_and_binary_inputs_in_one_request() -> None:
    strings = {"name": "s", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 10}}
    body, length = binary_request(strings, BX, rest=b"\1\0\0\0a\1\0\0\0b" + EIGHT)
    feeds = parse(body, length).feeds
    assert feeds["s"].tolist() == ["a", "b"]
    assert feeds["x"].tolist() == [[1, 2]]
    body, length = binary_request(S, BX, rest=EIGHT)
    assert parse(body, length).feeds["s"].tolist() == ["a"]


def test_what_a_request_says_is_understood() -> None:
    got = parse(request(id="7ü", outputs=[{"name": "t", "parameters": {"binary_data": True}}, {"name": "y"}]))
    assert (got.id, got.outputs, got.binary, got.nan_policy) == ("7ü", ["t", "y"], frozenset({"t"}), None)
    got = parse(request(parameters={"binary_data_output": True, "nan_policy": "null", "priority": 3}))
    assert (got.id, got.outputs, got.binary, got.nan_policy) == (None, ["y", "t"], frozenset({"y", "t"}), "null")
    said = [{"name": "y", "parameters": {"binary_data": False}}, {"name": "t"}]
    assert parse(request(parameters={"binary_data_output": True}, outputs=said)).binary == {"t"}
    assert parse(request(outputs=[])).outputs == ["y", "t"]
    assert parse(request(id=None, outputs=None, parameters=None)).outputs == ["y", "t"]
    assert parse(request(unknown=1)).feeds["x"].tolist() == [[1, 2]]


ANSWER = {"y": np.array([[1.5, 2]], np.float32), "t": np.array(["ü"], object)}


def test_answers_in_json() -> None:
    body, length = render_infer("m", parse(request(id="i")), ANSWER, OUTPUTS, {"rows": 1})
    assert length is None
    assert json.loads(body) == {
        "model_name": "m",
        "model_version": "1",
        "id": "i",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.0]},
            {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["ü"]},
        ],
        "parameters": {"rows": 1},
    }
    assert "id" not in json.loads(render_infer("m", parse(request()), ANSWER, OUTPUTS)[0])


def test_answers_in_binary_and_both() -> None:
    body, length = render_infer("m", parse(request(parameters={"binary_data_output": True})), ANSWER, OUTPUTS)
    head = json.loads(body[:length])
    assert [tensor["parameters"]["binary_data_size"] for tensor in head["outputs"]] == [8, 6]
    assert not [tensor for tensor in head["outputs"] if "data" in tensor]
    assert body[length:] == struct.pack("<2f", 1.5, 2) + b"\2\0\0\0" + "ü".encode()
    wanted = [{"name": "t"}, {"name": "y", "parameters": {"binary_data": True}}]
    body, length = render_infer("m", parse(request(outputs=wanted)), ANSWER, OUTPUTS)
    assert [tensor.get("data") for tensor in json.loads(body[:length])["outputs"]] == [["ü"], None]
    assert body[length:] == struct.pack("<2f", 1.5, 2)


def test_an_output_with_nan() -> None:
    answer = ANSWER | {"y": np.array([[np.nan, -np.inf]], np.float32)}
    with pytest.raises(TensorError, match=r"output 'y': it holds NaN .* parameters\.nan_policy"):
        render_infer("m", parse(request()), answer, OUTPUTS)
    for policy, data in (("null", [None, None]), ("string", ["NaN", "-Infinity"])):
        body, _ = render_infer("m", parse(request(parameters={"nan_policy": policy})), answer, OUTPUTS)
        assert json.loads(body)["outputs"][0]["data"] == data
    body, length = render_infer("m", parse(request(parameters={"binary_data_output": True})), answer, OUTPUTS)
    assert body[length:].startswith(struct.pack("<2f", np.nan, -np.inf))


def test_metadata_of_a_tensor() -> None:
    assert describe(INPUTS[0]) == {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    with pytest.raises(TensorError, match="no datatype"):
        describe(TensorMeta("m", "seq(map(int64, float32))", ()))


def test_json_is_written_as_ascii_and_strictly() -> None:
    assert dumps({"a": "ü\ud800"}) == b'{"a":"\\u00fc\\ud800"}'
    with pytest.raises(ValueError, match="JSON"):
        dumps(float("nan"))
    assert loads(b' {"a": [1e999, "\\ud83d\\ude00"]}') == {"a": [float("inf"), "\U0001f600"]}
