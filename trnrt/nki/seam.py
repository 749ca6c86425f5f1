"""The simulator beside AWS's package in one process, to predict and compare on a machine with a device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from types import ModuleType

from trnrt.nki import sim
from trnrt.nki.sim import isa, language

_KERNELS = "trnrt.kernels"
_OURS = {"nki": sim, "nisa": isa, "nl": language}
_LOCK = RLock()
# The kernels imported for the simulator, while AWS's have their names.
_set_aside: dict[str, ModuleType] = {}


@contextmanager
def use_simulator() -> Iterator[None]:
    """Modules imported inside, including ``trnrt.kernels``, get the simulator from ``trnrt.nki``, whatever is
    installed.

    A function keeps its module's imports, so kernels of both kinds can exist side by side.
    """
    seam = sys.modules["trnrt.nki"]
    if seam.nki is sim:
        yield
        return
    with _LOCK:
        aws = {name: getattr(seam, name) for name in _OURS}
        theirs = _exchange_kernels(_set_aside)
        vars(seam).update(_OURS)
        try:
            yield
        finally:
            vars(seam).update(aws)
            _set_aside.clear()
            _set_aside.update(_exchange_kernels(theirs))


def _exchange_kernels(modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Replace the imported kernels by ``modules``; return the replaced ones."""
    names = [name for name in sys.modules if name == _KERNELS or name.startswith(f"{_KERNELS}.")]
    taken = {name: sys.modules.pop(name) for name in names}
    sys.modules.update(modules)
    return taken
