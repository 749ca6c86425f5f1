"""The one seam to AWS's package: kernels say ``from trnrt.nki import nki, nl, nisa``.

They get AWS's modules where its `nki` 0.6 is installed, and the simulator's elsewhere;
``TRNRT_NKI=simulator`` asks for the simulator on a machine that has both.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trnrt.nki.sim.kernel import Simulated, Spec, simulate, trace

__all__ = ["USES_AWS", "Simulated", "Spec", "nisa", "nki", "nl", "simulate", "trace"]


def _aws_nki_installed() -> bool:
    """Whether AWS's `nki` is here. The PyPI package of that name is an empty placeholder without these modules."""
    try:
        return find_spec("nki.language") is not None and find_spec("nki.isa") is not None
    except Exception:  # a placeholder may raise whatever it likes when it is imported to look inside
        return False


USES_AWS = os.environ.get("TRNRT_NKI", "auto") != "simulator" and _aws_nki_installed()

if TYPE_CHECKING or not USES_AWS:
    from trnrt.nki import sim as nki
    from trnrt.nki.sim import isa as nisa
    from trnrt.nki.sim import language as nl
else:
    import nki
    import nki.isa as nisa
    import nki.language as nl
