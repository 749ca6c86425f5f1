"""Random requests over gRPC: every tensor means what numpy says, and nothing that a client sends is our own fault."""

from __future__ import annotations

import random
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from engines import run
from grpc_serving import InferRequest, serving_grpc
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import MadeUpModel, MadeUpRepository, doubling, echo

from trnrt.serve.grpc import messages
from trnrt.serve.grpc.contents import CHUNK, from_contents, has_contents, to_contents
from trnrt.serve.grpc.inference import parse, parse_infer
from trnrt.serve.hosting.description import TensorMeta
from trnrt.serve.http.protocol import RequestError
from trnrt.serve.http.tensors import DATATYPES, TensorError

TYPED = [datatype for datatype in DATATYPES.values() if has_contents(datatype)]


def random_array(datatype: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Any elements of a datatype, its extremes among them."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape, dtype=int))
    if datatype.kind == "str":
        made = np.empty(size, object)
        made[:] = ["".join(map(chr, rng.integers(32, 0x2000, rng.integers(0, 9)))) for _ in range(size)]
        return made.reshape(shape)
    if datatype.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(size * datatype.dtype.itemsize), datatype.dtype).reshape(shape)


@settings(max_examples=150, deadline=None)
@given(datatype=st.sampled_from(TYPED), shape=st.lists(st.integers(0, 5), max_size=4), seed=st.integers(0, 999))
def test_typed_contents_hold_any_tensor(datatype: Any, shape: list[int], seed: int) -> None:
    array = random_array(datatype, tuple(shape), seed)
    contents = messages.InferContents()
    to_contents(array, datatype, contents)
    sent = messages.InferContents.FromString(contents.SerializeToString())
    got = from_contents(sent, array.shape, datatype)
    assert got.dtype == datatype.dtype
    np.testing.assert_array_equal(got, array)


def test_typed_contents_of_more_than_a_chunk() -> None:
    contents = messages.InferContents()
    array = np.arange(CHUNK + 3, dtype=np.int64)
    to_contents(array, DATATYPES["INT64"], contents)
    np.testing.assert_array_equal(from_contents(contents, array.shape, DATATYPES["INT64"]), array)


WRONG: list[tuple[str, dict[str, list[Any]], str]] = [
    ("INT8", {"int_contents": [1, 128]}, "element 1 of its contents is 128; INT8 holds -128 to 127"),
    ("UINT16", {"uint_contents": [65536, 0]}, "element 0 of its contents is 65536"),
    ("FP32", {"fp32_contents": [1.0]}, "its fp32_contents have 1 elements; shape [2] has 2"),
    ("FP32", {"fp64_contents": [1.0, 2.0]}, "it has fp64_contents; the elements of FP32 are in fp32_contents"),
    ("BYTES", {"bytes_contents": [b"a", b"\xff"]}, "string 1 of its bytes_contents is no UTF-8"),
    ("FP16", {"fp32_contents": [1.0, 2.0]}, "FP16 has no typed contents; send it in raw_input_contents"),
    ("BF16", {}, "BF16 has no typed contents"),
    ("BOOL", {}, "its bool_contents have 0 elements"),
]


@pytest.mark.parametrize(("datatype", "fields", "told"), WRONG)
def test_wrong_contents_are_told(datatype: str, fields: dict[str, list[Any]], told: str) -> None:
    with pytest.raises(TensorError) as caught:
        from_contents(messages.InferContents(**fields), (2,), DATATYPES[datatype])
    assert told in str(caught.value)


@pytest.mark.parametrize("datatype", DATATYPES.values(), ids=lambda datatype: datatype.name)
def test_raw_contents_of_every_datatype(datatype: Any) -> None:
    dtype = "str" if datatype.kind == "str" else str(datatype.dtype)
    array = random_array(datatype, (3, 2), 1)
    raw = array.tobytes()
    if datatype.kind == "str":
        raw = b"".join(len(t.encode()).to_bytes(4, "little") + t.encode() for t in array.reshape(-1))

    async def work() -> None:
        async with serving_grpc(MadeUpRepository(echo(dtype))) as caller:
            request = InferRequest(model_name="echo", raw_input_contents=[raw])
            request.inputs.add(name=f"in_{dtype}", datatype=datatype.name, shape=[3, 2])
            answer = await caller.infer(request)
            assert answer.raw_output_contents[0] == raw and answer.outputs[0].datatype == datatype.name

    run(work())
    assert ml_dtypes.bfloat16 in {d.dtype.type for d in DATATYPES.values()}


REQUESTS: list[tuple[Any, str]] = [
    (lambda r: r.ClearField("inputs"), "raw_input_contents has 1 items for 0 inputs"),
    (lambda r: r.raw_input_contents.append(b""), "raw_input_contents has 2 items for 1 inputs"),
    (lambda r: r.inputs[0].contents.fp32_contents.append(1), "it has both contents and raw_input_contents"),
    (lambda r: r.ClearField("raw_input_contents"), "its fp32_contents have 0 elements; shape [1, 4] has 4"),
    (lambda r: r.inputs.add(name="x"), "raw_input_contents has 1 items for 2 inputs"),
    (lambda r: (r.inputs.add(name="x"), r.raw_input_contents.append(b"")), "input 'x' is given twice"),
    (lambda r: setattr(r.inputs[0], "name", "z"), "the model has no input 'z'; its inputs are 'x'"),
    (lambda r: setattr(r.inputs[0], "datatype", "FP33"), "input 'x': its datatype is 'FP33'; datatypes are BOOL"),
    (lambda r: r.inputs[0].shape.append(2), "its binary data has 16 bytes; FP32 [1, 4, 2] has 32"),
    (lambda r: (r.outputs.add(name="y"), r.outputs.add(name="y")), "output 'y' is asked for twice"),
    (lambda r: r.outputs.add(name="z"), "the model has no output 'z'; its outputs are 'y'"),
    (lambda r: r.outputs.add(name="y").parameters["classification"], "output 'y' has the parameter 'classification'"),
    (lambda r: r.inputs[0].parameters["shared_memory_region"], "input 'x' has the parameter 'shared_memory_region'"),
    (lambda r: r.parameters["classification"], "the request has the parameter 'classification'"),
]


@pytest.mark.parametrize(("change", "told"), REQUESTS)
def test_wrong_requests_are_told(change: Any, told: str) -> None:
    request = InferRequest(raw_input_contents=[bytes(16)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    change(request)
    with pytest.raises(RequestError) as caught:
        parse_infer(parse(messages.InferCall, request.SerializeToString()), doubling().described, 1000)
    assert told in str(caught.value)


# -- nothing is our own fault ----------------------------------------------------------------------------------------

NAMES = ("x", "y", "s", "", "image", "\u00e4\ud7ff", "a" * 300)
SIZES = (0, 1, 2, 4, -1, 7, 2**31, 2**62)
ALLOWED = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


def fuzzed_model() -> MadeUpModel:
    """Takes floats and strings."""
    metas = [TensorMeta("x", "float32", (-1, 4)), TensorMeta("s", "str", (-1,))]
    return MadeUpModel("m", metas, metas, lambda feeds: feeds)


def random_request(rng: random.Random) -> bytes:
    """A request that is right, or wrong in some places, and perhaps cut or bent."""
    rate = rng.choice((0.0, 0.05, 0.3))

    def wrong() -> bool:
        return rng.random() < rate

    request = InferRequest(model_name="n" if wrong() else "m", model_version="2" if wrong() else "")
    raw = rng.random() < 0.5
    for name in rng.choices(NAMES, k=rng.randrange(4)) if wrong() else rng.sample(("x", "s"), 2):
        datatype = rng.choice((*DATATYPES, "", "FP8")) if wrong() else {"s": "BYTES"}.get(name, "FP32")
        shape = rng.choices(SIZES, k=rng.randrange(5)) if wrong() else [1] if name == "s" else [1, 4]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        if wrong():
            tensor.parameters[rng.choice(("classification", "binary_data"))].int64_param = rng.randrange(9)
        if raw != wrong():
            data = b"\1\0\0\0a" if name == "s" else bytes(16)
            request.raw_input_contents.append(rng.randbytes(rng.randrange(40)) if wrong() else data)
        if raw == wrong():
            field = "bytes_contents" if name == "s" else "fp32_contents"
            value: Any = (b"\xff" if wrong() else b"a") if name == "s" else rng.choice((0.5, float("nan")))
            getattr(tensor.contents, field).extend([value] * (rng.randrange(5) if wrong() else 1 if name == "s" else 4))
    for name in rng.choices(("x", "s", "z"), k=2) if wrong() else rng.choice(([], ["s"])):
        request.outputs.add(name=name)
    sent = bytearray(request.SerializeToString())
    if wrong():
        del sent[rng.randrange(len(sent) + 1) :]
    for place in rng.choices(range(len(sent)), k=3) if wrong() and sent else ():
        sent[place] = rng.randrange(256)
    return rng.randbytes(rng.randrange(100)) if wrong() else bytes(sent)


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_are_answered_or_refused(seed: int, count: int = 400) -> None:
    async def work() -> None:
        rng, found = random.Random(seed), dict[Any, int]()
        repository = MadeUpRepository(fuzzed_model())
        async with serving_grpc(repository) as caller:
            for _ in range(count):
                request, code = random_request(rng), grpc.StatusCode.OK
                try:
                    answer = messages.InferAnswer.FromString(await caller.call("ModelInfer", request))
                    assert [output.datatype for output in answer.outputs]
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                    assert error.details() and code in ALLOWED, (code, error.details(), request)
                found[code] = found.get(code, 0) + 1
        assert found[grpc.StatusCode.OK] > count // 4 and found[grpc.StatusCode.INVALID_ARGUMENT] > count // 8, found

    run(work())
