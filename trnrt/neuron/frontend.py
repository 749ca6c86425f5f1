"""How AWS's NKI reads a kernel: it parses the source, or runs it with Python. NKI_COMPILER_FRONTEND chooses.

Two pages name values, and not the same ones:

- aws-neuron/neuron-agentic-development at 1598b060, skills/neuron-nki-docs/references/reference/migration/
  nki-060-dynamic-loop-migration-guide.md, for NKI 0.6: ``parser`` is 0.6's default, ``tracer`` can be chosen there and
  is 0.7's default, and 0.8 has no parser.
- about-neuron/announcements/neuron2.x/announce-nki-specialization-change.rst of SDK 2.33.0, for NKI 0.7: ``custom``
  keeps the way of 0.6; the release after 2.33.0 removes it.

What NKI does with any other value is on neither page, so trnrt refuses others. Nothing here was ever run on a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trnrt.errors import BackendError
from trnrt.neuron.releases import numbers

FRONTEND_VARIABLE = "NKI_COMPILER_FRONTEND"


@dataclass(frozen=True)
class Frontend:
    """The frontend of a compilation. ``value``: what to set the variable to, "" to leave it unset; ``reads``: what NKI
    then does, "parses" or "traces" kernels; ``reason``: in a few words, why."""

    value: str
    reads: str
    reason: str

    @property
    def text(self) -> str:
        """The frontend in one line, for messages."""
        setting = f"{FRONTEND_VARIABLE}={self.value}" if self.value else f"{FRONTEND_VARIABLE} is left unset"
        return f"{setting}: NKI {self.reads} kernels ({self.reason})"


@dataclass(frozen=True)
class _Known:
    """A version's values, with what NKI does for each. ``chosen``: what trnrt sets if nobody asks for another."""

    values: Mapping[str, str]
    chosen: str
    unset: str


_KNOWN: dict[tuple[int, ...], _Known] = {
    (0, 6): _Known({"tracer": "traces", "parser": "parses"}, "tracer", "parses"),
    (0, 7): _Known({"custom": "parses", "tracer": "traces", "parser": "parses"}, "", "traces"),
}


def frontend_values(version: str) -> tuple[str, ...]:
    """The values that the pages name for this version of NKI ("0.6.0"); empty if they name none."""
    known = _KNOWN.get(numbers(version)[:2])
    return () if known is None else tuple(known.values)


def frontend_for(version: str, asked: str | None = None) -> Frontend:
    """The frontend for this version of NKI; ``asked``: the value of NKI_COMPILER_FRONTEND in the user's environment.

    For 0.6 it is the tracer, which is 0.7's way, too; for other versions it is their default. BackendError if a value
    is asked for that no page names for the version.
    """
    known = _KNOWN.get(numbers(version)[:2])
    if asked:
        values = frontend_values(version)
        if known is None or asked not in values:
            said = f"the pages name {', '.join(values)}" if values else "no page names a value"
            ways = f"set it to one of {', '.join(values)}, or unset it" if values else f"unset {FRONTEND_VARIABLE}"
            raise BackendError(f"{FRONTEND_VARIABLE}={asked}: for NKI {version} {said}", hint=ways)
        return Frontend(asked, known.values[asked], "set in the environment")
    if known is None:
        return Frontend("", "reads", f"NKI {version}'s default, which no page states")
    if known.chosen:
        return Frontend(known.chosen, known.values[known.chosen], f"NKI {version} parses if it is unset; 0.7 traces")
    return Frontend("", known.unset, f"NKI {version}'s default")
