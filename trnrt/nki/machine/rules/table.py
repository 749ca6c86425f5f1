"""The table of what the hardware refuses: one row a rule, registered by the decorator that declares it."""

from __future__ import annotations

from collections.abc import Callable

from trnrt.nki.machine.program import Check, Rule

RULES: dict[str, Rule] = {}


def rule(name: str, says: str, source: str, *, refuses: bool = True) -> Callable[[Check], Rule]:
    """Register the decorated check as a row of the table; a second claim on a name is a programming error.

    ``refuses=False``: a broken row is warned of, and the instruction goes on.
    """

    def register(check: Check) -> Rule:
        if name in RULES:
            raise ValueError(f"rule {name!r} is declared twice")
        RULES[name] = Rule(name, says, source, check, refuses)
        return RULES[name]

    return register
