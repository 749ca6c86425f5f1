"""The table of the hardware's rules, each registered by its decorator."""

from __future__ import annotations

from collections.abc import Callable

from trnrt.nki.machine.program import Check, Rule

RULES: dict[str, Rule] = {}


def rule(name: str, says: str, source: str, *, refuses: bool = True) -> Callable[[Check], Rule]:
    """Register the decorated check as a rule; registering a name twice is a programming error.

    ``refuses=False``: breaking the rule is only a warning.
    """

    def register(check: Check) -> Rule:
        if name in RULES:
            raise ValueError(f"rule {name!r} is declared twice")
        RULES[name] = Rule(name, says, source, check, refuses)
        return RULES[name]

    return register
