"""The bodies of the operator's requests. What this server does not do is refused, not ignored."""

from __future__ import annotations

from typing import Any

from trnrt.serve.hosting.catalog import Canary
from trnrt.serve.http.protocol import RequestError, loads
from trnrt.serve.http.tensors import value_text

_LONGEST_VERSION = 18
"""Digits."""
_ELSEWHERE = "put the file into --model-dir, and the settings on the command line or into --config, and load it then"


def parse_index(body: bytes) -> bool:
    """True if the body asks for models that are ready alone. RequestError for a body that says anything else."""
    given = _object(body, "ready")
    ready = given.get("ready", False)
    if type(ready) is not bool:
        raise RequestError(f"ready is {value_text(ready)}; it is true or false")
    return ready


def check_load(body: bytes) -> None:
    """RequestError for a body that says how or what to load."""
    for name in _parameters(body):
        if name == "config" or name.startswith("file:"):
            raise RequestError(f"load takes no parameter {value_text(name)}: {_ELSEWHERE}")
        raise RequestError(f"load has no parameter {value_text(name)}; it takes none")


def check_unload(body: bytes) -> None:
    """RequestError for a body with other parameters than ``unload_dependents``, true or false: no model has any."""
    for name, value in _parameters(body).items():
        if name != "unload_dependents":
            raise RequestError(f"unload has no parameter {value_text(name)}; it takes unload_dependents")
        if type(value) is not bool:
            raise RequestError(f"unload_dependents is {value_text(value)}; it is true or false")


def parse_canary(body: bytes) -> Canary:
    """The canary of ``{"version": "2", "share": 0.1}``. RequestError for other bodies."""
    given = _object(body, "version", "share")
    for name in ("version", "share"):
        if name not in given:
            raise RequestError(f'the body has no {name}; it is an object as {{"version": "2", "share": 0.1}}')
    version, share = given["version"], given["share"]
    if type(version) is not str or not version.isdecimal() or len(version) > _LONGEST_VERSION:
        raise RequestError(f'version is {value_text(version)}; it is a number as a string: "2"')
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise RequestError(f"share is {value_text(share)}; it is a number from 0 to 1")
    return Canary(version, float(share))


def _parameters(body: bytes) -> dict[str, Any]:
    given = _object(body, "parameters").get("parameters")
    if given is None:
        return {}
    if type(given) is not dict:
        raise RequestError(f"the parameters are {value_text(given)}; they are an object")
    return given


def _object(body: bytes, *known: str) -> dict[str, Any]:
    """The body's object, by default an empty one. RequestError for a key that is not known."""
    given = loads(body) if body.strip() else {}
    if type(given) is not dict:
        raise RequestError(f"the body is {value_text(given)}; it is an object")
    for name in given:
        if name not in known:
            raise RequestError(f"the body has {value_text(name)}; it may have {' and '.join(known)}")
    return given
