"""A target's data file: from TOML to the dataclasses that describe a target, every key checked.

The dataclasses are the schema: a field's name is its key, its type that of the value. ``_LIMITS`` has the range of
numbers that have tighter limits than 0 or more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from trnrt.nki.errors import OptionError

_MOST = 1e12
_LEAST_RATE = 1e-3
_FIXED = "kernels and nl.tile_size have this number for every target"

# Key, or the end of it -> least, most, why.
_LIMITS: dict[str, tuple[float, float, str]] = {
    "generation": (2, 99, "the simulator begins with NeuronCore-v2"),
    "partitions": (128, 128, _FIXED),
    "psum_bank_bytes": (2048, 2048, _FIXED),
    "stationary_max": (128, 128, _FIXED),
    "moving_max": (512, 65536, "kernels use operands of nl.tile_size.gemm_moving_fmax columns"),
    "moving_max_16bit": (512, 65536, "kernels use operands of nl.tile_size.gemm_moving_fmax columns"),
    "psum_banks": (8, 64, "kernels use eight banks"),
    "sbuf_bytes": (65536, 2**30, "bytes of one partition"),
    "clock_ghz": (_LEAST_RATE, _MOST, "a clock that stands still ends no instruction"),
    "gbps": (_LEAST_RATE, _MOST, "at a rate of 0 no transfer ends"),
    "wide_stride_factor": (1, _MOST, "how many times longer an access takes"),
    "ramp_share": (0, 1, "a share"),
    "ramp_offset": (0, 1, "a share"),
    "transpose_share": (_LEAST_RATE, 1, "a share"),
    "peak_tflops": (_LEAST_RATE, _MOST, "a product takes some time"),
    "places": (1, 64, "the times that a loop's tiles are held"),
    "engines": (2, 128, "each serves some of the partitions"),
    "most_lnc": (1, 2, "physical cores in a logical one"),
    "cores": (1, 1024, "physical NeuronCores of a chip"),
    "chips": (1, 65536, "chips of an instance"),
    "vcpus": (1, 2**20, "virtual CPUs of an instance"),
    "memory_gib": (1, 2**20, "memory of an instance"),
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


class TableReader:
    """Reads the tables of one file; ``file`` is its name in errors."""

    def __init__(self, file: str) -> None:
        self.file = file

    def refuse(self, what: str, hint: str) -> OptionError:
        """An error about the file."""
        return OptionError(f"{self.file}: {what}", hint=hint)

    def table(self, cls: Any, table: Any, key: str = "") -> Any:
        """The dataclass ``cls`` from the table at ``key``; OptionError for a missing, unknown or wrong key."""
        if not isinstance(table, dict):
            raise self._wrong(key, table, "a table")
        within = f"{key}." if key else ""
        types = _types(cls)
        for name in table:
            if name not in types:
                import difflib  # for a message only

                near = difflib.get_close_matches(name, types, 1)
                hint = f"did you mean {near[0]}?" if near else f"keys are {', '.join(types)}"
                raise self.refuse(f"{within}{name} is no key of a target", hint)
        values = {}
        for name, kind in types.items():
            if name not in table:
                missing = f"[{within}{name}] is missing" if _is_table(kind) else f"{within}{name} is missing"
                raise self.refuse(missing, "copy it from a similar target, or name one: like = ...")
            values[name] = self.value(kind, table[name], within + name)
        return cls(**values)

    def named_value(self, cls: Any, name: str, value: Any, key: str) -> None:
        """Check a value for the field ``name`` of ``cls`` or of its parts ("dma.packet_ns")."""
        head, _, rest = name.partition(".")
        kind = _types(cls).get(head)
        if kind is None or is_dataclass(kind) != bool(rest):
            raise self.refuse(f"{key}.{name} is no key of [timing]", "write it as it stands there: dma.packet_ns")
        if rest:
            self.named_value(kind, rest, value, f"{key}.{head}")
        else:
            self.value(kind, value, f"{key}.{name}")

    def value(self, kind: Any, value: Any, key: str) -> Any:
        """The value at ``key``, if it is of this type."""
        if is_dataclass(kind):
            return self.table(kind, value, key)
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise self._wrong(key, value, f"one of {', '.join(map(str, get_args(kind)))}")
            return value
        if get_origin(kind) is tuple:
            return self._sequence(get_args(kind)[0], value, key)
        if kind is str or (isinstance(value, str) and str in get_args(kind)):
            if not isinstance(value, str) or (key == "name" and not _NAME.fullmatch(value)):
                raise self._wrong(key, value, "letters, digits, - and _" if key == "name" else "a text")
            return value
        if kind is bool:
            if not isinstance(value, bool):
                raise self._wrong(key, value, "true or false")
            return value
        return self._number(value, key, whole=kind is int)

    def _sequence(self, kind: Any, value: Any, key: str) -> tuple[Any, ...]:
        """A list; or a table of pairs if ``kind`` is one; or a table of tables, whose keys are their names."""
        if get_origin(kind) is tuple and isinstance(value, dict):
            return tuple((name, self.value(get_args(kind)[1], one, f"{key}.{name}")) for name, one in value.items())
        if is_dataclass(kind) and isinstance(value, dict):
            for name, one in value.items():
                if not isinstance(one, dict):
                    raise self._wrong(f"{key}.{name}", one, "a table")
            return tuple(self.table(kind, {"name": n, **one}, f'{key}."{n}"') for n, one in value.items())
        if not isinstance(value, list) or get_origin(kind) is tuple:
            raise self._wrong(key, value, "a table" if get_origin(kind) is tuple else "a list")
        return tuple(self.value(kind, one, f"{key}[{k}]") for k, one in enumerate(value))

    def _number(self, value: Any, key: str, *, whole: bool) -> float:
        least, most, why = limits(key)
        allowed = "a whole number" if whole else "a number"
        allowed += f" from {least:g} to {most:g}" if least != most else f", {least:g}"
        allowed += f" ({why})" if why else ""
        numeric = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not numeric or not math.isfinite(value) or not least <= value <= most:
            raise self._wrong(key, value, allowed)
        return value  # type: ignore[no-any-return]

    def _wrong(self, key: str, value: Any, allowed: str) -> OptionError:
        return self.refuse(f"{key} = {str(value)[:60]!r}", f"it is {allowed}")


def limits(key: str) -> tuple[float, float, str]:
    """The least and the largest value of a number, and the reason."""
    name = key.rpartition(".")[2]
    if key.startswith("timing.tensor.peak_tflops."):
        name = "peak_tflops"
    return _LIMITS.get(name) or _LIMITS.get(name.rpartition("_")[2]) or (0, _MOST, "")


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``: tables key by key, anything else whole."""
    merged = dict(base)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(name), dict) and name != "instances"
        merged[name] = merge(base[name], value) if both else value
    return merged


@cache
def _types(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _is_table(kind: Any) -> bool:
    return is_dataclass(kind) or (get_origin(kind) is tuple and is_dataclass(get_args(kind)[0]))
