"""orjson's way gives what Python's own gives, or nothing."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.serve.http import protocol, quick_json
from trnrt.serve.http.protocol import RequestError, dumps, loads

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
TEXTS = (
    '{"a":1,"a":2}',
    '{"b":{"a":1,"a":1}}',
    '[{"a":[1]},{"a":1,"a":2}]',
    '{"a":[1,{"b":1,"b":2}]}',
    '{"a":":","a":1}',
    '{"a:":1}',
    "NaN",
    '{"a":[Infinity]}',
    "1e999",
    "18446744073709551616",
    "-9223372036854775809",
    "[1,]",
    '"\\ud800"',
    "1" * 5000,
    "[" * 2000 + "]" * 2000,
    "\ufeff{}",
    "",
    "{",
    " {} ",
    "-0",
    "null",
)


@pytest.mark.parametrize("depth", [300, 960, 1000, 1020, 1030, 5000])
@pytest.mark.parametrize(("left", "right"), [('{"a":', "}"), ("[", "]"), ('[{"a":', "}]")])
def test_deep_nesting_is_read_or_refused(left: str, right: str, depth: int) -> None:
    text = (left * depth + "1" + right * depth).encode()
    with suppress(RequestError):
        assert isinstance(loads(text), dict | list)


def outcome(text: bytes) -> Any:
    """The value, in a form that tells 1 from 1.0 and True; or the refusal."""
    try:
        return repr(loads(text))
    except RequestError as error:
        return error.args


def strictly(text: bytes, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "loads_or_none", lambda text: None)
        return outcome(text)


@pytest.mark.parametrize("text", TEXTS)
def test_odd_texts_have_one_outcome(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(text.encode()) == strictly(text.encode(), monkeypatch)


@settings(max_examples=200, deadline=None)
@given(value=VALUES, spaced=st.booleans())
def test_values_have_one_outcome(value: Any, spaced: bool) -> None:
    text = json.dumps(value, separators=None if spaced else (",", ":")).encode()
    quick = quick_json.loads_or_none(text)
    assert quick is None or repr(quick) == repr(json.loads(text))
    assert json.loads(dumps(value)) == value and dumps(value).isascii()


def test_usual_requests_and_answers_take_the_quick_way() -> None:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0.1, -2.5e-7]}
    value = {"id": "1", "inputs": [tensor], "outputs": [{"name": "y"}], "parameters": {"binary_data_output": True}}
    assert quick_json.loads_or_none(json.dumps(value).encode()) == value
    assert json.loads(quick_json.dumps_or_none(value) or b"") == value


def test_large_texts_take_the_bounded_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_json, "LARGEST", 8)
    assert quick_json.loads_or_none(b"[1,2,3]") == [1, 2, 3]
    assert quick_json.loads_or_none(b"[1,2,3,4]") is None


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0, math.nan]])
def test_nan_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        dumps(value)
