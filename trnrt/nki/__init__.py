"""The one seam to AWS's package: kernels say ``from trnrt.nki import nki, nl, nisa``.

They get AWS's modules where its `nki` 0.6 is installed, and the simulator's elsewhere;
``TRNRT_NKI=simulator`` asks for the simulator on a machine that has both. For kernels that say ``import nki``,
``install()`` puts the simulator in the place of AWS's package where that is missing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trnrt.nki.installing import aws_nki_installed, install, uninstall
from trnrt.nki.profiling import Profile, profile
from trnrt.nki.sim.kernel import Simulated, Spec, simulate, trace

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


USES_AWS = os.environ.get("TRNRT_NKI", "auto") != "simulator" and aws_nki_installed()

if TYPE_CHECKING or not USES_AWS:
    from trnrt.nki import sim as nki
    from trnrt.nki.sim import isa as nisa
    from trnrt.nki.sim import language as nl
else:
    import nki
    import nki.isa as nisa
    import nki.language as nl
