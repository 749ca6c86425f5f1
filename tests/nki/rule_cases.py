"""How a rule is tested: a kernel that breaks it once, and, little different, keeps it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

HERE = "# here"


@dataclass(frozen=True)
class Case:
    """A kernel that breaks a rule at the line that ends in ``# here``, or, called with False, keeps it."""

    body: Callable[[bool], None]
    says: tuple[str, ...]
    target: str

    @property
    def place(self) -> str:
        lines, first = inspect.getsourcelines(self.body)
        at = [number for number, line in enumerate(lines, first) if line.rstrip().endswith(HERE)]
        assert len(at) == 1, f"{self.body.__name__} has {len(at)} lines marked {HERE}"
        return f"{inspect.getsourcefile(self.body)}:{at[0]}"


CASES: dict[str, Case] = {}


def case(name: str, *says: str, target: str = "trn2") -> Callable[[Callable[[bool], None]], None]:
    """``says``: the operand, the value and the limit, as the complaint has them."""

    def register(body: Callable[[bool], None]) -> None:
        assert name not in CASES
        CASES[name] = Case(body, says, target)

    return register
