"""The values to try: for each keyword argument of a kernel, a tuple of values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from trnrt.nki.calls import parse_values, value_text
from trnrt.nki.errors import OptionError

Point = tuple[int, ...]  # for each argument, the index of its value

_EXAMPLE = "for example 'TILE=128,256,512', 'TILE=range(128, 513, 128)', or a file .toml or .json of lists"


@dataclass(frozen=True)
class Space:
    """The arguments in order, each with its different values."""

    values: Mapping[str, tuple[Any, ...]]

    @property
    def size(self) -> int:
        """The number of candidates."""
        return prod(map(len, self.values.values()))

    def points(self) -> Iterator[Point]:
        """All candidates; the last argument changes fastest."""
        return product(*(range(len(values)) for values in self.values.values()))

    def values_at(self, point: Point) -> dict[str, Any]:
        """The candidate's arguments."""
        return {name: values[index] for (name, values), index in zip(self.values.items(), point, strict=True)}

    def neighbours(self, point: Point) -> Iterator[Point]:
        """The candidates with one other value: of numbers those 1, 2, 4 ... places away, so that a search can step over
        values that are refused; any other of the rest."""
        for place, values in enumerate(self.values.values()):
            ordered = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
            for index in range(len(values)):
                away = abs(index - point[place])
                if away and (not ordered or away.bit_count() == 1):
                    yield (*point[:place], index, *point[place + 1 :])


def read_space(texts: Sequence[str]) -> Space:
    """The space that ``NAME=values`` and files (``.toml``, ``.json``) describe together.

    Raises:
        OptionError: if a text can't be read, an argument has no values, or is there twice.
    """
    values: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        for name, found in (_read_file(Path(text)) if _is_file(text) else _read_text(text)).items():
            if name in values:
                raise OptionError(f"--space has {name!r} twice", hint="give all values of an argument at once")
            if not found:
                raise OptionError(f"--space gives {name!r} no values", hint=_EXAMPLE)
            values[name] = different_values(found)
    if not values:
        raise OptionError("there is nothing to try: --space is missing", hint=_EXAMPLE)
    return Space(values)


def _is_file(text: str) -> bool:
    return Path(text).suffix in (".toml", ".json") and "=" not in text


def _read_text(text: str) -> dict[str, tuple[Any, ...]]:
    name, equals, values = text.partition("=")
    try:
        if not equals or not name.strip().isidentifier():
            raise ValueError("it is not NAME=value,value")
        return {name.strip(): parse_values(values)}
    except SyntaxError as error:
        raise OptionError(f"can't read --space {text!r}: {error.msg}", hint=_EXAMPLE) from None
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise OptionError(f"can't read --space {text!r}: {error}", hint=_EXAMPLE) from None


def _read_file(path: Path) -> dict[str, tuple[Any, ...]]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("it is not a table of lists")
        return {name: _listed_values(name, values) for name, values in document.items()}
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"can't read --space {str(path)!r}: {error}", hint=_EXAMPLE) from None


def _listed_values(name: str, values: Any) -> tuple[Any, ...]:
    """The values of an argument in a file; lists in it become tuples."""
    if not isinstance(values, list):
        raise ValueError(f"{name} is no list of values")
    found = tuple(tuple(value) if isinstance(value, list) else value for value in values)
    for value in found:
        for item in value if isinstance(value, tuple) else (value,):
            if item is not None and not isinstance(item, (bool, int, float, str)):
                raise ValueError(f"{name} has {item!r}, which is no number, string or truth value")
    return found


def different_values(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values without repetitions, and numbers in ascending order: neighbours are then close."""
    found = {value_text(value): value for value in values}
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in found.values())
    return tuple(sorted(found.values())) if numbers else tuple(found.values())
