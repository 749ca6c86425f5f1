"""The Open Inference Protocol's ``infer``: from a request's bytes to arrays, and from arrays to an answer's bytes.

A request is JSON. With the header ``Inference-Header-Content-Length``, only its first bytes are JSON, and the binary
tensors follow in the order of the inputs. Answers have the same form. All functions are pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http import tensors
from trnrt.serve.http.quick_json import dumps_or_none, loads_or_none
from trnrt.serve.http.tensors import DATATYPES, NAN_POLICIES, Datatype, TensorError, datatype_of, value_text

Array = NDArray[Any]

JSON = "application/json"
BINARY = "application/octet-stream"
HEADER_LENGTH = "Inference-Header-Content-Length"

# Parameters of other servers' extensions, which must not be ignored silently.
REFUSED_PARAMETERS = ("classification", "shared_memory_region")
_LONGEST_LIST = 10
_LONGEST_US = 1 << 53


class RequestError(ValueError):
    """A request that breaks the protocol; ``str(error)`` is for the client. Status 400."""


@dataclass(frozen=True)
class InferRequest:
    """An infer request. ``outputs``: the names asked for, in order; ``binary``: those to send as binary data.

    ``timeout_s``: how long the client waits, if it says so, seconds.
    """

    id: str | None
    feeds: dict[str, Array]
    outputs: list[str]
    binary: frozenset[str]
    nan_policy: str | None
    timeout_s: float | None = None


# -- JSON ----------------------------------------------------------------------------------------------------------


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise RequestError(f"the JSON names {value_text(twice)} twice in one object")
    return made


def _constant(word: str) -> NoReturn:
    raise RequestError(f"the body holds {word}, which is no JSON; NaN and infinity can be sent as binary data")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant)
_ENCODER = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":"))


def loads(body: bytes | bytearray | memoryview) -> Any:
    """Parse JSON strictly: UTF-8, no NaN, each key once.

    Raises:
        RequestError: for anything else, and for JSON that is nested too deeply
    """
    if (value := loads_or_none(body)) is not None:
        return value
    try:
        return _DECODER.decode(str(body, "utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is no UTF-8: byte {error.start}: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: line {error.lineno} column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise RequestError("the JSON is nested too deeply to be read") from None
    except RequestError:
        raise
    except ValueError:
        # Python refuses integers of thousands of digits.
        raise RequestError("the JSON holds an integer with too many digits") from None


def dumps(value: object) -> bytes:
    """JSON in ASCII, which can also hold half a surrogate pair."""
    return dumps_or_none(value) or _ENCODER.encode(value).encode("ascii")


def names_text(names: Sequence[str]) -> str:
    """Names in a message, the first few of many."""
    more = f" and {len(names) - _LONGEST_LIST} more" if len(names) > _LONGEST_LIST else ""
    return ", ".join(value_text(name) for name in names[:_LONGEST_LIST]) + more if names else "none"


# -- requests ------------------------------------------------------------------------------------------------------


def header_length(text: str | None) -> int | None:
    """The value of ``Inference-Header-Content-Length``; None without the header."""
    if text is None:
        return None
    # Not int(): it takes signs, spaces, underscores, and the digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RequestError(f"{HEADER_LENGTH} is {value_text(text)}; it is the number of bytes of the JSON")
    return int(text)


def parse_infer(
    body: bytes | memoryview, length: int | None, described: Description, most_elements: int
) -> InferRequest:
    """Parse a request whose first ``length`` bytes are JSON; None: all of them.

    Checks names, datatypes and data against each other and the model. ``Checker`` checks the shapes, and that no input
    is missing.

    Raises:
        RequestError: names the place, the value given, and what was expected
    """
    if length is not None and length > len(body):
        raise RequestError(f"{HEADER_LENGTH} is {length}, and the body has only {len(body)} bytes")
    binary = memoryview(body)[length:] if length is not None else memoryview(b"")
    request = loads(body if length is None else memoryview(body)[:length])
    if type(request) is not dict:
        raise RequestError(f"the request is {value_text(request)}; it is an object with inputs")
    parameters = _parameters(request, "the request")
    policy = parameters.get("nan_policy")
    if policy is not None and (type(policy) is not str or policy not in NAN_POLICIES):
        raise RequestError(f"nan_policy is {value_text(policy)}; it is {' or '.join(map(repr, NAN_POLICIES))}")
    outputs = described.outputs_by_name
    feeds = _feeds(request.get("inputs"), binary, length is not None, described, most_elements)
    all_binary = _flag(parameters, "binary_data_output", "the request")
    wanted, chosen = _wanted_outputs(request.get("outputs"), outputs, all_binary)
    return InferRequest(_id(request.get("id")), feeds, wanted, chosen, policy, timeout_of(parameters.get("timeout")))


def by_name(metas: Sequence[TensorMeta]) -> dict[str, TensorMeta]:
    """Tensors by their name."""
    return {meta.name: meta for meta in metas}


def _id(given: object) -> str | None:
    if given is None:
        return None
    if type(given) is not str:
        raise RequestError(f"the id is {value_text(given)}; it is a string")
    if not tensors.is_text(given):
        raise RequestError("the id holds half a surrogate pair, which is no text")
    return given


def _parameters(holder: dict[str, Any], title: str) -> dict[str, Any]:
    given = holder.get("parameters")
    if given is None:
        return {}
    if type(given) is not dict:
        raise RequestError(f"the parameters of {title} are {value_text(given)}; they are an object")
    for name in REFUSED_PARAMETERS:
        if name in given:
            raise RequestError(f"{title} has the parameter {name!r}; this server does not serve that extension")
    return given


def _flag(parameters: dict[str, Any], name: str, title: str, default: bool = False) -> bool:
    given = parameters.get(name, default)
    if type(given) is not bool:
        raise RequestError(f"{name} of {title} is {value_text(given)}; it is true or false")
    return given


def timeout_of(given: object) -> float | None:
    """The seconds of the parameter ``timeout``, which Triton and its clients give in microseconds; None for 0, which is
    the server's own."""
    if given is None:
        return None
    if type(given) is not int or given < 0:
        raise RequestError(f"timeout is {value_text(given)}; it is a number of microseconds")
    return min(given, _LONGEST_US) / 1e6 if given else None


def _feeds(
    given: object, binary: memoryview, has_binary: bool, described: Description, most_elements: int
) -> dict[str, Array]:
    if type(given) is not list:
        raise RequestError(f"inputs is {value_text(given)}; it is a list of tensors")
    known = described.inputs_by_name
    feeds: dict[str, Array] = {}
    for place, tensor in enumerate(given):
        if type(tensor) is not dict:
            raise RequestError(f"input {place} is {value_text(tensor)}; it is an object")
        name = tensor.get("name")
        if type(name) is not str:
            raise RequestError(f"the name of input {place} is {value_text(name)}; it is a string")
        if name not in known:
            raise RequestError(f"the model has no input {value_text(name)}; its inputs are {names_text(list(known))}")
        if name in feeds:
            raise RequestError(f"input {value_text(name)} is given twice")
        try:
            shape = tensors.check_shape(tensor.get("shape"), most_elements)
            if shape and name not in described.parameters:
                described.check_rows(shape[0])
            feeds[name], used = _tensor(tensor, known[name], shape, binary, has_binary)
        except TensorError as error:
            raise RequestError(f"input {value_text(name)}: {error}") from None
        binary = binary[used:]
    if len(binary):
        raise RequestError(f"the body has {len(binary)} bytes behind the JSON that belong to no input")
    return feeds


def _tensor(
    tensor: dict[str, Any], meta: TensorMeta, shape: tuple[int, ...], binary: memoryview, has_binary: bool
) -> tuple[Array, int]:
    """One input, and how many bytes of ``binary`` it took."""
    datatype = check_datatype(tensor.get("datatype"), meta)
    parameters = _parameters(tensor, f"input {value_text(meta.name)}") if "parameters" in tensor else {}
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in tensor:
            raise TensorError("it has no data, and no binary_data_size")
        return tensors.from_json(tensor["data"], shape, datatype), 0
    if type(size) is not int or size < 0:
        raise TensorError(f"its binary_data_size is {value_text(size)}; it is a number of bytes")
    if "data" in tensor:
        raise TensorError("it has both data and binary_data_size; it is one of them")
    if not has_binary:
        raise TensorError(f"it has a binary_data_size, and the request no header {HEADER_LENGTH}")
    if size > len(binary):
        raise TensorError(f"its binary_data_size is {value_text(size)}; only {len(binary)} bytes of the body are left")
    return tensors.from_binary(binary[:size], shape, datatype), size


def check_datatype(given: object, meta: TensorMeta) -> Datatype:
    """The client's datatype. TensorError unless it is the model's."""
    if type(given) is not str or given not in DATATYPES:
        raise TensorError(f"its datatype is {value_text(given)}; datatypes are {', '.join(DATATYPES)}")
    wanted = datatype_of(meta.dtype)
    if wanted is None or wanted.name != given:
        raise TensorError(f"its datatype is {given}; the model wants {wanted.name if wanted else meta.dtype}")
    return wanted


def _wanted_outputs(given: object, known: Mapping[str, TensorMeta], binary: bool) -> tuple[list[str], frozenset[str]]:
    """The outputs asked for, by default all, and which of them to send as binary data."""
    if given is None or given == []:
        return list(known), frozenset(known if binary else ())
    if type(given) is not list:
        raise RequestError(f"outputs is {value_text(given)}; it is a list of objects with a name")
    wanted: dict[str, bool] = {}
    for place, output in enumerate(given):
        name = output.get("name") if type(output) is dict else None
        if type(name) is not str:
            raise RequestError(f"output {place} is {value_text(output)}; it is an object with a name")
        if name not in known:
            raise RequestError(f"the model has no output {value_text(name)}; its outputs are {names_text(list(known))}")
        if name in wanted:
            raise RequestError(f"output {value_text(name)} is asked for twice")
        title = f"output {value_text(name)}"
        wanted[name] = _flag(_parameters(output, title), "binary_data", title, binary)
    return list(wanted), frozenset(name for name, chosen in wanted.items() if chosen)


# -- answers -------------------------------------------------------------------------------------------------------


def render_infer(
    model: str,
    request: InferRequest,
    outputs: Mapping[str, Array],
    metas: Sequence[TensorMeta],
    parameters: Mapping[str, float | int | str | bool] | None = None,
    version: str = "1",
) -> tuple[list[bytes | memoryview], int | None]:
    """The parts of an answer's body, and the length of its JSON if binary data follow, else None.

    Raises:
        TensorError: for an output that JSON can't hold; names it and the way out
    """
    known = by_name(metas)
    described: list[dict[str, Any]] = []
    blobs: list[bytes | memoryview] = []
    for name in request.outputs:
        array, datatype = np.asarray(outputs[name]), output_datatype(known[name])
        tensor = tensor_head(name, array, datatype)
        if name in request.binary:
            blobs.append(tensors.to_binary(array, datatype))
            tensor["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            tensor["data"] = json_data(name, array, datatype, request.nan_policy)
        described.append(tensor)
    text = dumps({**answer_head(model, version), "outputs": described, **answer_rest(request, parameters)})
    return [text, *blobs], len(text) if request.binary else None


def answer_head(model: str, version: str) -> dict[str, Any]:
    """An answer's fields before ``outputs``."""
    return {"model_name": model, "model_version": version}


def tensor_head(name: str, array: Array, datatype: Datatype) -> dict[str, Any]:
    """An output without its data."""
    return {"name": name, "datatype": datatype.name, "shape": list(array.shape)}


def json_data(name: str, array: Array, datatype: Datatype, nan_policy: str | None) -> list[Any]:
    """An output's data. TensorError if JSON can't hold them; names the output and the way out."""
    try:
        return tensors.to_json(array, datatype, nan_policy)
    except TensorError as error:
        way_out = "ask for binary data, or say what to send with the request's parameters.nan_policy"
        raise TensorError(f"output {value_text(name)}: {error}; {way_out}") from None


def answer_rest(request: InferRequest, parameters: Mapping[str, float | int | str | bool] | None) -> dict[str, Any]:
    """An answer's fields behind ``outputs``."""
    rest: dict[str, Any] = {} if request.id is None else {"id": request.id}
    if parameters:
        rest["parameters"] = dict(parameters)
    return rest


def output_datatype(meta: TensorMeta) -> Datatype:
    """The datatype of an output. TensorError if the protocol has none for it."""
    datatype = datatype_of(meta.dtype)
    if datatype is None:
        raise TensorError(f"{value_text(meta.name)} is {meta.dtype}, for which the protocol has no datatype")
    return datatype


def describe(meta: TensorMeta) -> dict[str, Any]:
    """A tensor of the model's metadata."""
    return {"name": meta.name, "datatype": output_datatype(meta).name, "shape": list(meta.shape)}
