"""The instructions of `nisa`, each declared once, in its family's file: signature, operands, rules, meaning, cycles.

``trnrt.nki.sim.isa`` offers the ``__all__`` of the families; ``OPERATIONS`` maps a name to its record. Code shared by
several families (a rule, a formula of cycles, a way to spread) is in ``trnrt/nki/machine``.
"""

from __future__ import annotations

from trnrt.nki.sim.declaring import OPERATIONS as OPERATIONS
