"""Names from a model are data: only here they become identifiers, comments and file names."""

from __future__ import annotations

import keyword
import re
import unicodedata
from itertools import accumulate

_NOT_IN_IDENTIFIER = re.compile(r"[^0-9a-zA-Z_]+")
_LONGEST = 48


def identifier(name: str) -> str:
    """A Python identifier made of ``name``: ASCII letters, digits and underscores, never a keyword."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = _NOT_IN_IDENTIFIER.sub("_", plain).strip("_")[:_LONGEST].lower()
    if not plain or plain[0].isdigit() or keyword.iskeyword(plain):
        plain = f"t_{plain}" if plain else "t"
    return plain


def printable(text: str, limit: int = 200) -> str:
    """``text`` for a comment, a docstring or a message: one line of printable ASCII, everything else escaped.

    Text beyond ``limit`` is cut between escapes: half an escape would be a syntax error in a docstring.
    """
    characters = [character.encode("unicode_escape").decode("ascii") for character in text[: limit + 1]]
    if sum(map(len, characters)) <= limit:
        return "".join(characters)
    lengths = accumulate(map(len, characters))
    return "".join(c for c, end in zip(characters, lengths, strict=True) if end <= limit - 3) + "..."


class Names:
    """Identifiers of one kernel module: each name gets its own, distinct from those that the module uses itself."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._given: dict[tuple[str, str], str] = {}

    def identifier(self, name: str, part: str = "") -> str:
        """The identifier of ``name``, or of a ``part`` of it; always the same for the same arguments."""
        if (name, part) not in self._given:
            base = candidate = identifier(name) + (f"_{part}" if part else "")
            count = 2
            while candidate in self._taken:
                candidate, count = f"{base}_{count}", count + 1
            self._taken.add(candidate)
            self._given[name, part] = candidate
        return self._given[name, part]
