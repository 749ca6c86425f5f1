"""The language level: the release of NKI whose language and API the simulator follows.

NKI 0.6 compiles a subset of Python; NKI 0.7 runs a kernel as Python, and removed the loops over registers (SDK 2.33.0,
"NKI specialization change"). A level is chosen by, in this order: an ``nki=`` argument; ``install(nki=)``, the flag
``--nki`` or ``use_level``; the environment variable ``TRNRT_NKI_VERSION``; otherwise it is 0.7.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

from trnrt.nki.errors import OptionError

LEVEL_VARIABLE = "TRNRT_NKI_VERSION"


class Level(StrEnum):
    """A release of NKI; its value is the version."""

    nki_0_6 = "0.6"
    nki_0_7 = "0.7"


DEFAULT_LEVEL = Level.nki_0_7


class _Chosen:
    """The level of this process, None if nothing chose one. Not a context variable: scripts have threads."""

    level: ClassVar[Level | None] = None


def as_level(value: Level | str, what: str = "nki") -> Level:
    """The level of that version; OptionError, which names ``what``, if the simulator has none."""
    try:
        return Level(value)
    except ValueError:
        raise OptionError(
            f"{what}: there is no language level {value!r}", hint=f"levels are {', '.join(Level)}"
        ) from None


def default_level() -> Level:
    """The level that holds where no argument names one."""
    if _Chosen.level is not None:
        return _Chosen.level
    value = os.environ.get(LEVEL_VARIABLE)
    return as_level(value, LEVEL_VARIABLE) if value else DEFAULT_LEVEL


def choose_level(value: Level | str | None) -> Level:
    """The level ``value``, or the default."""
    return default_level() if value is None else as_level(value)


def set_default_level(value: Level | str | None) -> None:
    """Choose the level of this process; None leaves it to the environment."""
    _Chosen.level = None if value is None else as_level(value)


@contextmanager
def use_level(value: Level | str | None) -> Iterator[Level]:
    """Choose the level inside the context; None changes nothing."""
    before = _Chosen.level
    if value is not None:
        set_default_level(value)
    try:
        yield default_level()
    finally:
        _Chosen.level = before
