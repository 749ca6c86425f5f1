"""The targets: a NeuronCore's parameters, read from one data file each (``trn1.toml`` ...)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from trnrt.nki.errors import OptionError
from trnrt.nki.machine.pace import Timing, read_timing

DEFAULT_TARGET = "trn2"

# What AWS's NEURON_PLATFORM_TARGET_OVERRIDE takes (nki.jit in the API reference).
ALIASES = {"inf2": "trn1", "gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}


@dataclass(frozen=True, slots=True)
class Target:
    """The parameters of one NeuronCore generation. Sizes are bytes of one partition."""

    name: str
    generation: int
    partitions: int
    sbuf_bytes: int
    sbuf_reserved_bytes: int
    psum_banks: int
    psum_bank_bytes: int
    stationary_max: int
    moving_max: int
    moving_max_16bit: int
    matmul_dtypes: tuple[str, ...]
    psum_matmul_dtypes: tuple[str, ...]
    matmul_crosses_banks: bool
    accumulates_on_foreign: bool
    activation_scalar_bias: bool
    scalar_engine_tensor_copy: bool
    scalar_engine_tensor_scalar: bool
    bit_accurate_transpose: bool
    hardware_dge: bool
    dma_priorities: bool
    timing: Timing

    @property
    def sbuf_usable_bytes(self) -> int:
        return self.sbuf_bytes - self.sbuf_reserved_bytes

    @property
    def psum_bytes(self) -> int:
        return self.psum_banks * self.psum_bank_bytes


@cache
def target_names() -> tuple[str, ...]:
    """Every target there is a data file for."""
    return tuple(sorted(f.name[: -len(".toml")] for f in files(__package__).iterdir() if f.name.endswith(".toml")))


@cache
def get_target(name: str) -> Target:
    """The target called ``name`` (``trn1``, ``trn2``, ``trn3`` or an alias of AWS's); OptionError if there is none."""
    known = ALIASES.get(name, name)
    if known not in target_names():
        raise OptionError(f"unknown target {name!r}", hint=f"targets are {', '.join(target_names())}")
    data = tomllib.loads((files(__package__) / f"{known}.toml").read_text(encoding="utf-8"))
    timing = read_timing(data.pop("timing"))
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Target(**fields, timing=timing)
