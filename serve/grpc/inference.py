"""ModelInfer's messages: from a request's bytes to arrays, and from arrays to an answer's bytes. Pure functions.

A message can take much more memory than it has bytes: two bytes are an empty input, for which protobuf takes over 80.
So the parts of a large message are counted before it is parsed, and each part is parsed after the ones before it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trnrt.serve.grpc import messages
from trnrt.serve.grpc.contents import from_contents, has_contents, to_contents
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.protocol import (
    REFUSED_PARAMETERS,
    RequestError,
    by_name,
    check_datatype,
    names_text,
    output_datatype,
    timeout_of,
)
from trnrt.serve.http.tensors import (
    MOST_DIMENSIONS,
    TensorError,
    check_shape,
    from_binary,
    to_binary,
    value_text,
)

Array = NDArray[Any]

MOST_PARTS = 1024
"""The most fields of a message: names, inputs, outputs, parameters."""
SMALL = 1 << 16
"""Messages up to this size, bytes, are parsed without counting: they take at most 3 MB."""
LARGEST_TYPED = 16 << 20
"""The largest typed contents of an input, bytes. Parsed, they take up to 16 times as much, and are slow to convert."""
_FIXED = {1: 8, 5: 4}
"""The bytes of a field's value by its wire type."""
_GZIP = b"\x1f\x8b"
"""The first bytes of gzip. No message of the protocol begins so: a field's first byte ends in a wire type of 0 to 5."""


@dataclass(frozen=True)
class InferRequest:
    """An infer request. ``outputs``: the names asked for, in order; ``raw``: its tensors came in raw_input_contents.

    ``timeout_s``: how long the client waits, if a parameter says so, seconds.
    """

    id: str
    feeds: dict[str, Array]
    outputs: list[str]
    raw: bool
    timeout_s: float | None = None


def unpack(message: bytes, largest: int, too_large: Callable[[], Exception]) -> bytes:
    """A message as it was before a client compressed it; ``too_large()`` is raised if it has over ``largest`` bytes."""
    if not message.startswith(_GZIP):
        return message
    inflater = zlib.decompressobj(wbits=31)
    try:
        plain = inflater.decompress(message, largest + 1)
    except zlib.error as error:
        raise RequestError(f"the message is compressed, but no gzip: {error}") from None
    if len(plain) > largest:
        raise too_large()
    if not inflater.eof or inflater.unused_data:
        raise RequestError("the message is compressed, and is not one whole gzip stream")
    return plain


def parse(kind: Any, data: bytes, title: str = "the message") -> Any:
    """The message of class ``kind`` in ``data``. RequestError if it is none, or has too many parts."""
    if len(data) > SMALL:
        _check_parts(data, title)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RequestError(f"{title} is no {kind.DESCRIPTOR.name} of the protocol: its bytes can't be read") from None


def parse_infer(call: Any, described: Description, most_elements: int) -> InferRequest:
    """The request in an InferCall.

    Checks names, datatypes and contents against each other and the model. ``Checker`` checks the shapes, and that no
    input is missing.

    Raises:
        RequestError: names the place, the value given, and what was expected
    """
    timeout_s = _timeout_in(_check_parameters(call.parameters, "the request"))
    raw = call.raw_input_contents
    if raw and len(raw) != len(call.inputs):
        count = len(call.inputs)
        raise RequestError(f"raw_input_contents has {len(raw)} items for {count} inputs; it has one for each")
    known, feeds = by_name(described.inputs), dict[str, Array]()
    for place, part in enumerate(call.inputs):
        tensor = parse(messages.InferInput, part, f"input {place}")
        if tensor.name not in known:
            names = names_text(list(known))
            raise RequestError(f"the model has no input {value_text(tensor.name)}; its inputs are {names}")
        if tensor.name in feeds:
            raise RequestError(f"input {value_text(tensor.name)} is given twice")
        try:
            feeds[tensor.name] = _tensor(tensor, known[tensor.name], raw[place] if raw else None, most_elements)
        except TensorError as error:
            raise RequestError(f"input {value_text(tensor.name)}: {error}") from None
    return InferRequest(call.id, feeds, _wanted_outputs(call.outputs, described.outputs), bool(raw), timeout_s)


def render_infer(
    model: tuple[str, str],
    request: InferRequest,
    outputs: Mapping[str, Array],
    metas: Sequence[TensorMeta],
    parameters: Mapping[str, float],
) -> Any:
    """The answer of a model, given as its name and version.

    It is raw if the request was, or if an output's datatype has no typed contents: a message is raw as a whole.
    """
    known = by_name(metas)
    wanted = [(name, np.asarray(outputs[name]), output_datatype(known[name])) for name in request.outputs]
    raw = request.raw or not all(has_contents(datatype) for _, _, datatype in wanted)
    answer = messages.InferAnswer(model_name=model[0], model_version=model[1], id=request.id)
    for name, array, datatype in wanted:
        tensor = answer.outputs.add(name=name, datatype=datatype.name, shape=array.shape)
        if raw:
            answer.raw_output_contents.append(bytes(to_binary(array, datatype)))
        else:
            to_contents(array, datatype, tensor.contents)
    for name, value in parameters.items():
        parameter = answer.parameters[name]
        if isinstance(value, int):
            parameter.int64_param = value
        else:
            parameter.double_param = value
    return answer


def _check_parts(data: bytes, title: str) -> None:
    """RequestError if a message has over MOST_PARTS fields. One that is cut off is left to the parser."""
    at, parts = 0, 0
    while at < len(data):
        parts += 1
        if parts > MOST_PARTS:
            raise RequestError(f"{title} has more than {MOST_PARTS} fields, which is the limit")
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
            at += size
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:  # groups, which no message of the protocol has; what they hold would go uncounted
            raise RequestError(f"{title} is none of the protocol: a field has the wire type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place of a message, and the place behind it."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, len(data)


def _check_parameters(entries: Sequence[bytes], title: str) -> dict[str, bytes]:
    """The parameters by name, not parsed. RequestError for those of extensions that must not be ignored."""
    if len(entries) > MOST_PARTS:
        raise RequestError(f"{title} has {len(entries)} parameters; the limit is {MOST_PARTS}")
    found = {parse(messages.ParameterName, entry, f"a parameter of {title}").key: entry for entry in entries}
    for name in REFUSED_PARAMETERS:
        if name in found:
            raise RequestError(f"{title} has the parameter {name!r}; this server does not serve that extension")
    return found


def _timeout_in(parameters: Mapping[str, bytes]) -> float | None:
    """The parameter ``timeout``, in seconds."""
    if "timeout" not in parameters:
        return None
    value = parse(messages.Parameter, parameters["timeout"], "the parameter timeout").value
    kind = value.WhichOneof("parameter_choice")
    return timeout_of(None if kind is None else getattr(value, kind))


def _tensor(tensor: Any, meta: TensorMeta, raw: bytes | None, most_elements: int) -> Array:
    datatype = check_datatype(tensor.datatype, meta)
    if len(tensor.shape) > MOST_DIMENSIONS:  # before they are objects of Python
        raise TensorError(f"its shape has {len(tensor.shape)} dimensions; the limit is {MOST_DIMENSIONS}")
    shape = check_shape(list(tensor.shape), most_elements)
    _check_parameters(tensor.parameters, f"input {value_text(meta.name)}")
    if raw is not None:
        if tensor.contents:
            raise TensorError("it has both contents and raw_input_contents; it is one of them")
        return from_binary(raw, shape, datatype)
    data = b"".join(tensor.contents)
    if len(data) > LARGEST_TYPED:
        limit = f"the limit is {LARGEST_TYPED} ({LARGEST_TYPED >> 20} MiB)"
        raise TensorError(f"its typed contents have {len(data)} bytes; {limit}; send it in raw_input_contents")
    try:
        contents = messages.InferContents.FromString(data)
    except DecodeError:
        raise TensorError("its contents are no InferTensorContents of the protocol: the bytes can't be read") from None
    return from_contents(contents, shape, datatype)


def _wanted_outputs(parts: Sequence[bytes], metas: Sequence[TensorMeta]) -> list[str]:
    """The outputs asked for, by default all."""
    known = by_name(metas)
    wanted: list[str] = []
    for place, part in enumerate(parts):
        output = parse(messages.InferOutput, part, f"output {place}")
        if output.name not in known:
            names = names_text(list(known))
            raise RequestError(f"the model has no output {value_text(output.name)}; its outputs are {names}")
        if output.name in wanted:
            raise RequestError(f"output {value_text(output.name)} is asked for twice")
        _check_parameters(output.parameters, f"output {value_text(output.name)}")
        wanted.append(output.name)
    return wanted or list(known)
