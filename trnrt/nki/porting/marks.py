"""Marks on code that the port leaves as it is: a comment in the ported file, and a line of the verb's list."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "# trnrt: "
IN_THE_KERNEL = "make it in the kernel that uses it"
NOT_PUBLIC = "copy what you need from it, or use nki-library (nkilib)"


@dataclass(frozen=True)
class Mark:
    """A construct without a translation: its line in the old file, the reason, and what to write."""

    line: int
    reason: str
    instead: str

    @property
    def comment(self) -> str:
        return f"{PREFIX}{self.reason}; {self.instead}"


class UntranslatedError(Exception):
    """A construct that has no translation by syntax: the reason, and what to write."""

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(f"{reason}; {instead}")
        self.reason = reason
        self.instead = instead
