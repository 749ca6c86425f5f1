"""A pytest plugin with stand-ins for modules that nki-library's tests import but its repository lacks.

Its harness has a mode for a CPU simulator, for which this plugin provides trnrt's. All other such imports serve remote
hosts, S3 and dashboards: no test of ``families.py`` calls them, and a call is an error.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest

from trnrt.nki import install, simulate
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.sim.lang.packed import LEFT_OUT

CAPACITY_VARIABLE = "TRNRT_NKI_LIBRARY_CAPACITY"  # 0: kernels needn't fit SBUF
# The library's names for the generations of NeuronCores, for the variable that selects one.
_TARGETS = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}
# Packages that no simulated test uses. If one is installed, there is no stand-in for it.
_UNUSED = (
    "attr",
    "aws_embedded_metrics.logger.metrics_context",
    "aws_embedded_metrics.serializers.log_serializer",
    "boto3",
    "botocore.credentials",
    "botocore.exceptions",
    "debugpy",
    "fabric2",
    "filelock",
    "paramiko",
    "plotext",
    "pytest_html.extras",
)


# Modules of the library that its repository leaves out.
_NOT_SHIPPED = (
    "test.utils.perf_analysis_private",
    "test.utils.scripts",
    "test.utils.scripts.remote_lock_scripts",
)


class _Unused(ModuleType):
    """An importable module whose names are classes that raise when instantiated."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Exception,), {"__init__": _refuse, "__module__": self.__name__})
        setattr(self, name, made)
        return made


def _refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(f"{type(self).__module__}.{type(self).__name__} has no stand-in; a simulated test needs none")


def _module(name: str, contents: dict[str, Any] | None = None) -> ModuleType:
    """Add a module to ``sys.modules`` and to its package, which is created if missing."""
    parent, _, own = name.rpartition(".")
    if parent and parent not in sys.modules:
        _module(parent)
    module = ModuleType(name) if contents is not None else _Unused(name)
    module.__path__ = []
    vars(module).update(contents or {})
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], own, module)
    return module


def static_cast(array: Any, dtype: Any) -> Any:
    """``array`` converted to ``dtype``."""
    return np.asarray(array).astype(as_dtype(dtype).numpy)


def is_float_type(dtype: Any) -> bool:
    """True if ``dtype`` is a floating-point dtype."""
    return as_dtype(dtype).is_float


def cpu_simulate(kernel: Any) -> Any:
    """``cpu_simulate(kernel)[cores](**arguments)``, on the target that the harness sets in the environment."""
    capacity = os.environ.get(CAPACITY_VARIABLE, "1") != "0"
    return simulate(kernel, target=_TARGETS[os.environ["NKI_NC_VERSION"]], capacity=capacity)


def _install_simulator() -> None:
    """Install the simulator as ``nki``, and under the names by which the harness imports AWS's own."""
    os.environ["TRNRT_NKI"] = "simulator"
    install()
    nki = sys.modules["nki"]
    vars(nki)["cpu_simulate"] = cpu_simulate
    _module("nki_cpu_simulator", {"nki": nki})
    sys.modules["nki_cpu_simulator.nki"] = nki
    for name in ("isa", "isa.constants", "language", "tensor", "typing"):
        sys.modules[f"nki_cpu_simulator.nki.{name}"] = sys.modules[f"nki.{name}"]
    sys.modules["nki_cpu_simulator.nki.language.dtypes"] = sys.modules["nki.dtype"]
    vars(sys.modules["nki.language"])["dtypes"] = sys.modules["nki.dtype"]
    for name in ("builtin", "compiler"):
        vars(nki)[name] = sys.modules[f"nki_cpu_simulator.nki.{name}"] = ModuleType(f"nki.{name}")
    # kernels for several devices import it at the top; none of the tests here runs one
    vars(nki)["collectives"] = sys.modules["nki.collectives"] = _Unused("nki.collectives")


def _install_others() -> None:
    _module("neuron_dtypes", {"static_cast": static_cast, "is_float_type": is_float_type, **LEFT_OUT})
    missing = [name for name in _UNUSED if find_spec(name.partition(".")[0]) is None]
    for name in missing:
        _module(name)
    if "attr" in missing:
        vars(sys.modules["attr"])["dataclass"] = dataclasses.dataclass
    for name in _NOT_SHIPPED:
        sys.modules[name] = _Unused(name)


_install_simulator()
_install_others()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Turn off the harness's renaming of a compiled kernel's outputs; a simulated one has none."""
    from test.utils.test_orchestrator import Orchestrator  # type: ignore[import-not-found]

    Orchestrator._compiled_kernel = None
