"""The launch of a kernel: its number of physical cores, and the options of ``nki.jit``."""

from __future__ import annotations

import os
import sys

from trnrt.nki.errors import KernelError
from trnrt.nki.level import Level
from trnrt.nki.machine.program import Source
from trnrt.nki.machine.targets import Target
from trnrt.nki.machine.warning import warn_at
from trnrt.nki.sim.compiler import CompileConfig, SpecializationConfig
from trnrt.nki.sim.trace import JitOptions

LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
_TWO_CORES_FROM = 3  # generation


def check_cores(cores: int, target: Target | None = None) -> int:
    """``cores``, if a kernel can be launched on that many physical cores; else KernelError."""
    if cores not in (1, 2) or (target is not None and cores > 1 and target.generation < _TWO_CORES_FROM):
        where = f" on {target.name}" if target is not None and cores == 2 else ""
        raise KernelError(f"a kernel can't be launched on {cores!r} cores{where}; it runs on 1, from trn2 on also on 2")
    return cores


def degree_of_lnc(name: str, asked: int | None, target: Target, level: Level) -> int:
    """Kernel ``name``'s degree of LNC: physical cores per logical one. ``asked``: that of ``kernel[lnc]``, or None.

    At level 0.6 it is what the brackets say, else 1. From 0.7 on it comes from ``NEURON_LOGICAL_NC_CONFIG``, else it is
    1, and brackets have to agree with the variable (SDK 2.33.1, nki/get-started/about/lnc.html; error NCC_EVRF066).
    """
    value = os.environ.get(LNC_VARIABLE)
    if level is Level.nki_0_6 or not value:
        return 1 if asked is None else asked
    if value not in ("1", "2"):
        raise KernelError(f"{LNC_VARIABLE} is {value!r}; it must be 1 or 2")
    if asked is not None and asked != int(value):
        raise KernelError(
            f"kernel {name} is launched with LNC={asked}, but {LNC_VARIABLE} is {value}: AWS's compiler refuses that, "
            "NCC_EVRF066",
            hint=f"set {LNC_VARIABLE}={asked}, or leave the brackets out",
        )
    return int(value)


def check_options(
    compile_config: CompileConfig | None, specialization_config: SpecializationConfig | None
) -> JitOptions:
    """The options of ``nki.jit``; KernelError if one is of another type."""
    expected = (("compile_config", compile_config, CompileConfig),)
    for what, value, kind in (*expected, ("specialization_config", specialization_config, SpecializationConfig)):
        if value is not None and not isinstance(value, kind):
            raise KernelError(f"nki.jit: {what} is {value!r}; it must be an nki.compiler.{kind.__name__}")
    return JitOptions(compile_config, specialization_config)


def check_level(name: str, options: JitOptions, level: Level) -> None:
    """KernelError if kernel ``name`` has options that the level lacks."""
    if level is Level.nki_0_6 and options != JitOptions():
        raise KernelError(
            f"kernel {name}: nki.jit has no compile_config and no specialization_config in NKI 0.6",
            hint="leave them out, or choose level 0.7",
        )


def check_nested(name: str, nested: JitOptions, outer: JitOptions) -> None:
    """Refuse a kernel that another one calls, if its ``compile_config`` is not that of the outer one.

    With ``SpecializationConfig(allow_nested_config_override=True)`` of the outer kernel, warn only.
    """
    if nested.compile_config is None or nested.compile_config == outer.compile_config:
        return
    message = f"kernel {name} has a compile_config of its own, which differs from that of the kernel that calls it"
    if outer.specialization_config is not None and outer.specialization_config.allow_nested_config_override:
        caller = sys._getframe(2)
        warn_at(Source(caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name), message)
        return
    allow = "SpecializationConfig(allow_nested_config_override=True)"
    raise KernelError(message, hint=f"leave it out, or give the outer kernel specialization_config={allow}")
