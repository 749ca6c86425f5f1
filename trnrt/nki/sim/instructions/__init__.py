"""The instructions of `nisa`, each declared once, in its family's file: signature, operands, rules, meaning, cycles.

``trnrt.nki.sim.isa`` offers what the families list in ``__all__``; ``OPERATIONS`` maps a name to its record. What some
families share (a rule, a formula of cycles, a way to spread) stands in ``trnrt/nki/machine``.
"""

from __future__ import annotations

from trnrt.nki.sim.declaring import OPERATIONS as OPERATIONS
