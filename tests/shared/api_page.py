"""``docs/api.md``: what a Python script can use of trnrt, from the docstrings of the code."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import trnrt
from trnrt import errors, hf, samples
from trnrt.running.results import RunResult
from trnrt.validate.outputs import validate

INTRO = """# Python

From the docstrings; `help(trnrt.InferenceSession)` shows the same. The names of onnxruntime's interface
(`SessionOptions`, `IOBinding`, `OrtValue` and so on) are in [onnxruntime's interface](onnxruntime-api.md), those for
tests of kernels in [Testing kernels](testing-kernels.md). Arrays are numpy's.
"""
CLASSES = (trnrt.InferenceSession, RunResult, trnrt.NodeArg, trnrt.Choices)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "trnrt.validate": validate,
    "trnrt.hf.pipeline": hf.pipeline,
    "trnrt.samples.find_sample": samples.find_sample,
}


def api_page() -> str:
    """The whole page."""
    parts = [INTRO]
    for owner in CLASSES:
        parts += [f"## {owner.__module__}.{owner.__name__}\n" if owner is RunResult else f"## trnrt.{owner.__name__}\n"]
        parts += [_signed(owner.__name__, owner), _text(owner)]
        parts += [f"### {name}\n\n{text}" for name, text in _members(owner)]
    for name, function in FUNCTIONS.items():
        parts += [f"## {name}\n", _signed(function.__name__, function), _text(function)]
    parts += ["## trnrt.errors\n", "Every error is a `TrnrtError` with a `hint`: the way out.\n", _error_table(errors)]
    return "\n".join(parts)


def _members(owner: type) -> Iterator[tuple[str, str]]:
    """The public methods and properties, in the order of the source; those of onnxruntime's interface are elsewhere."""
    for name, value in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property) and value.__doc__:
            yield name, _text(value)
        elif inspect.isfunction(value) and value.__doc__:
            yield f"{name}()", f"{_signed(name, value)}\n{_text(value)}"


def _signed(name: str, value: Callable[..., Any]) -> str:
    parameters = list(inspect.signature(value).parameters.values())
    shown = ", ".join(_parameters([one for one in parameters if one.name != "self"]))
    return "```text\n" + textwrap.fill(f"{name}({shown})", 80, subsequent_indent="    ") + "\n```\n"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Names and defaults; the docstring says which values they take."""
    starred = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        prefix = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        starred = starred or one.kind is one.VAR_POSITIONAL
        plain = one.default is one.empty or not isinstance(one.default, (str, int, float, tuple, type(None)))
        yield f"{prefix}{one.name}" if plain else f"{prefix}{one.name}={one.default!r}"


def _text(value: object) -> str:
    """A docstring as Markdown: code in single backticks."""
    text = inspect.getdoc(value) or ""
    assert text, f"{value} has no docstring"
    return re.sub(r"``([^`]+)``", r"`\1`", text) + "\n"


def _error_table(module: ModuleType) -> str:
    rows = ["| error | when |", "|---|---|"]
    for name, value in vars(module).items():
        if inspect.isclass(value) and issubclass(value, (errors.TrnrtError, Warning)):
            first = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
            rows.append(f"| `{name}` | {first} |".replace(" |  |", " | |"))
    return "\n".join(rows) + "\n"
