"""The recorded reference, and functions that take no other arguments than it states."""

from __future__ import annotations
import __future__

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "neuron" / "reference.json").read_text(encoding="utf-8")
)


ROUTES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "neuron" / "routes.json").read_text(encoding="utf-8")
)
_RULES = {**REFERENCE["rules"], **ROUTES["rules"]}


class NotDocumented(AssertionError):
    """Something was done that the reference does not allow. ``VIOLATIONS`` keeps it, should somebody catch it.

    ``rule`` is one of the reference's ``rules``: what is stated, and on which page, or that it is ours.
    """

    def __init__(self, rule: str, message: str) -> None:
        stated = _RULES[rule]
        source = stated.get("source", {"path": "the fake's own"})
        where = f"{source['page']}, {source['version']}" if "page" in source else source["path"]
        where += f":{source['line']}" if "line" in source else ""
        message = f"{message} ({stated['says']}; {where})"
        super().__init__(message)
        VIOLATIONS.append(message)


VIOLATIONS: list[str] = []


def signature(stated: str) -> inspect.Signature:
    """A signature as the reference writes it; what its annotations say is not looked at."""
    namespace: dict[str, Any] = {}
    code = compile(f"def stated({stated}): ...", "<reference>", "exec", flags=__future__.annotations.compiler_flag)
    exec(code, namespace)
    return inspect.signature(namespace["stated"])


SIGNATURES = {entry["name"]: signature(entry["signature"]) for entry in REFERENCE["functions"]}


def documented(name: str, *, method: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Bind a call of ``name`` to the recorded signature; the function gets all its parameters, by keyword."""
    stated = SIGNATURES[name]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            own, args = (args[:1], args[1:]) if method else ((), args)
            try:
                bound = stated.bind(*args, **kwargs)
            except TypeError as error:
                raise NotDocumented("signature", f"{name}{stated}: {error}") from None
            bound.apply_defaults()
            if bound.arguments.pop("_", ()):
                raise NotDocumented("keywords by name", f"{name}: keyword arguments are no longer taken by position")
            return function(*own, **bound.arguments)

        return called

    return decorate
