"""The warning for what a script for onnxruntime says, and trnrt ignores: once in a process for each name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping

from trnrt.errors import InterfaceWarning

ERROR_SEVERITY = 3
"""onnxruntime's level of errors: at this one and above, warnings stay out."""

_UNSET = -1
_PAGE = "docs/onnxruntime-api.md"
_warned: set[str] = set()
_severity = {"default": 2}


def set_severity(severity: int) -> None:
    """Set the level for sessions and runs that have none of their own."""
    _severity["default"] = severity


def warn_ignored(reasons: Mapping[str, str], severity: int = _UNSET) -> None:
    """Warn once that these names are ignored, each with its reason; names that were warned about are left out.

    ``severity``: the lowest level to show, in onnxruntime's numbers; -1 is the default one.
    """
    if (_severity["default"] if severity == _UNSET else severity) >= ERROR_SEVERITY:
        return
    new = {name: reason for name, reason in reasons.items() if name not in _warned}
    if not new:
        return
    _warned.update(new)
    by_reason: dict[str, list[str]] = {}
    for name, reason in new.items():
        by_reason.setdefault(reason, []).append(name)
    found = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    warnings.warn(f"trnrt ignores {found}. See {_PAGE}", InterfaceWarning, stacklevel=_depth_of_caller())


def warn_of(owner: str, names: Iterable[str], severity: int = _UNSET) -> None:
    """Warn once that these names of the table are ignored."""
    from trnrt.ort.table import MODULE, note_of  # most sessions need no table

    prefix = "" if owner == MODULE else f"{owner}."
    warn_ignored({f"{prefix}{name}": note_of(owner, name) for name in names}, severity)


def forget_warnings() -> None:
    """Warn again about names that were warned about, at onnxruntime's default level; for tests."""
    _warned.clear()
    _severity["default"] = 2


def _depth_of_caller() -> int:
    """The ``stacklevel`` of the first frame outside of trnrt, as seen by the function that calls this one."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "trnrt":
        depth, frame = depth + 1, frame.f_back
    return depth
