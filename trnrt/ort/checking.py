"""Checks of the values that a script gives to options: onnxruntime refuses those of another type, too."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from functools import cache
from typing import Any

from trnrt.errors import OptionError


def fit_value(owner: type, name: str, value: Any) -> object:
    """Convert a value for a dataclass's field to the type of its default: onnxruntime's constants become trnrt's.

    Fields without a plain default, and names that are no fields, stay as they are. OptionError for a value that doesn't
    fit.
    """
    default = _defaults(owner).get(name)
    place = f"{owner.__name__}.{name}"
    if isinstance(default, IntEnum):
        kind, numbers = type(default), [int(member) for member in type(default)]
        if hasattr(value, "__int__") and not isinstance(value, str) and int(value) in numbers:
            return kind(int(value))
        raise _misfit(place, value, f"{kind.__name__}.{default.name}, or another of its members")
    if isinstance(default, bool):
        if isinstance(value, int) or type(value).__name__ == "bool":  # numpy's bool, too
            return bool(value)
        raise _misfit(place, value, "True or False")
    if isinstance(default, int):
        if hasattr(value, "__index__"):
            return value.__index__()
        raise _misfit(place, value, "an int")
    return check_text(place, value) if isinstance(default, str) else value


def check_text(place: str, value: object) -> str:
    """The text, or the path as text; OptionError for anything else."""
    if isinstance(value, (str, os.PathLike)) and isinstance(text := os.fspath(value), str):
        return text
    raise _misfit(place, value, "a str")


def check_lengths(**lists: Sequence[object]) -> None:
    """OptionError unless all lists are as long as each other."""
    if len({len(each) for each in lists.values()}) > 1:
        found = ", ".join(f"{len(each)} {name}" for name, each in lists.items())
        raise OptionError(f"the lists differ in length: {found}", hint="give one of each for each")


@cache
def _defaults(owner: type) -> Mapping[str, object]:
    """The plain defaults of a dataclass's public fields."""
    return {each.name: each.default for each in fields(owner) if not each.name.startswith("_")}


def _misfit(place: str, value: object, wanted: str) -> OptionError:
    return OptionError(f"{place} is {value!r}, of type {type(value).__name__}", hint=f"give {wanted}")
