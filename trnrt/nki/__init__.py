"""The only link to AWS's package: kernels use ``from trnrt.nki import nki, nl, nisa``.

They get AWS's modules if its `nki` is installed, and the simulator's otherwise; ``TRNRT_NKI=simulator`` selects the
simulator on a machine that has both. For kernels that use ``import nki``, ``install()`` replaces a missing AWS package
by the simulator.

Names are loaded on first use, so that the errors can be imported without the simulator.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnrt.nki import sim as nki
    from trnrt.nki.installing import install, uninstall
    from trnrt.nki.profiling import Profile, profile
    from trnrt.nki.sim import isa as nisa
    from trnrt.nki.sim import language as nl
    from trnrt.nki.sim.kernel import Simulated, Spec, simulate, trace

    USES_AWS: bool

__all__ = [
    "USES_AWS",
    "Profile",
    "Simulated",
    "Spec",
    "install",
    "nisa",
    "nki",
    "nl",
    "profile",
    "simulate",
    "trace",
    "uninstall",
]

_HOMES = {
    "Profile": "trnrt.nki.profiling",
    "Simulated": "trnrt.nki.sim.kernel",
    "Spec": "trnrt.nki.sim.kernel",
    "install": "trnrt.nki.installing",
    "profile": "trnrt.nki.profiling",
    "simulate": "trnrt.nki.sim.kernel",
    "trace": "trnrt.nki.sim.kernel",
    "uninstall": "trnrt.nki.installing",
}
# AWS's module, and ours.
_MODULES = {
    "nki": ("nki", "trnrt.nki.sim"),
    "nisa": ("nki.isa", "trnrt.nki.sim.isa"),
    "nl": ("nki.language", "trnrt.nki.sim.language"),
}


@cache
def _uses_aws() -> bool:
    installing = import_module("trnrt.nki.installing")
    return os.environ.get("TRNRT_NKI", "auto") != "simulator" and bool(installing.aws_nki_installed())


def __getattr__(name: str) -> Any:
    if name == "USES_AWS":
        value: Any = _uses_aws()
    elif name in _MODULES:
        aws, ours = _MODULES[name]
        value = import_module(aws if _uses_aws() else ours)
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'trnrt.nki' has no attribute {name!r}")
    return globals().setdefault(name, value)
