"""Overlays: numbers of a target's timing that were fitted to measurements of a device, with where they come from.

``trnrt calibrate`` writes an overlay's file. TRNRT_TIMING (or ``--timing``) names the one that a process uses: its
target then has these numbers, under the same name.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trnrt.nki.errors import OptionError
from trnrt.nki.machine.pace import TIMING_VARIABLE as TIMING_VARIABLE
from trnrt.nki.machine.pace import Timing, Uncertain, with_value
from trnrt.nki.machine.reading import TableReader

CAUSE = "measured numbers"
_LARGEST_FILE = 2**20
_RATES = ("gbps", "ghz", "share")


@dataclass(frozen=True, slots=True)
class MeasuredNumber:
    """A number of ``Timing`` ("dma.packet_ns"): its fitted value, its 95 % interval, and that of the target's file."""

    name: str
    value: float
    low: float
    high: float
    before: float


@dataclass(frozen=True, slots=True)
class MeasuredReport:
    """A self-test's report: the SHA-256 of its file, the day it was made, and the versions of the packages."""

    digest: str
    made: str
    versions: str


@dataclass(frozen=True, slots=True)
class Overlay:
    """An overlay's file. ``like``: the target it is for. ``error_before`` and ``error_after``: the median error of the
    reports' cases, as a share, with the target's numbers and with these."""

    like: str
    made: str
    trnrt: str
    error_before: float
    error_after: float
    reports: tuple[MeasuredReport, ...]
    numbers: tuple[MeasuredNumber, ...]
    digest: str

    def apply(self, timing: Timing) -> Timing:
        """The timing with these numbers. Their intervals replace those of the target's file."""
        names = {number.name for number in self.numbers}
        for number in self.numbers:
            timing = with_value(timing, number.name, number.value)
        kept = tuple(_drop_numbers(one, names) for one in timing.uncertain)
        least = tuple((n.name, n.high if is_rate(n.name) else n.low) for n in self.numbers)
        most = tuple((n.name, n.low if is_rate(n.name) else n.high) for n in self.numbers)
        return replace(timing, uncertain=(*kept, Uncertain(CAUSE, least, most, self.describe(), "")))

    def describe(self) -> str:
        """Where the numbers come from, in one line."""
        count = len(self.numbers)
        reports = f"{len(self.reports)} self-test report{'s' if len(self.reports) != 1 else ''}"
        return (
            f"{count} of {self.like}'s timing numbers fitted to {reports} on {self.made} ({self.digest}): "
            f"median error {self.error_after:.1%}, {self.error_before:.1%} without"
        )


def read_overlay(path: Path) -> Overlay:
    """The overlay in a file; OptionError names a wrong key or value."""
    reader = TableReader(str(path))
    example = "`trnrt calibrate REPORT -o timing.toml` writes one"
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise reader.refuse(f"it has more than {_LARGEST_FILE} bytes", example)
        content = path.read_bytes()
        data = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise OptionError(f"can't read the timing in {str(path)!r}: {error.strerror}", hint=example) from None
    except (ValueError, RecursionError) as error:
        raise reader.refuse(f"it is not TOML: {error}", example) from None
    import hashlib  # it loads OpenSSL, and most processes use no overlay

    overlay: Overlay = reader.table(Overlay, {**data, "digest": hashlib.sha256(content).hexdigest()[:12]})
    if not overlay.numbers:
        raise reader.refuse("numbers is empty", example)
    for k, number in enumerate(overlay.numbers):
        for key in ("value", "low", "high"):
            reader.named_value(Timing, number.name, getattr(number, key), f"numbers[{k}].{key}")
        if not 0 < number.low <= number.value <= number.high:
            what = f"numbers[{k}]: value = {number.value:g}, and its interval is {number.low:g} to {number.high:g}"
            raise reader.refuse(what, "low, value and high ascend, and are more than 0")
    return overlay


@contextmanager
def without_overlay() -> Iterator[str | None]:
    """Targets with their own numbers inside the context; gives the overlay's file that TRNRT_TIMING names, if any."""
    before = os.environ.pop(TIMING_VARIABLE, None)
    try:
        yield before
    finally:
        if before is not None:
            os.environ[TIMING_VARIABLE] = before


def overlay_text(overlay: Overlay) -> str:
    """The file of an overlay."""
    lines = [
        "# Timing numbers that `trnrt calibrate` fitted to self-test reports. Use it with --timing FILE.",
        *(f"{key} = {_toml_text(getattr(overlay, key))}" for key in ("like", "made", "trnrt")),
        f"error_before = {overlay.error_before:.4f}  # median over the reports' cases, with the target's own numbers",
        f"error_after = {overlay.error_after:.4f}   # with these",
    ]
    for report in overlay.reports:
        lines += [
            "",
            "[[reports]]",
            *(f"{key} = {_toml_text(getattr(report, key))}" for key in ("digest", "made", "versions")),
        ]
    for number in overlay.numbers:
        lines += ["", "[[numbers]]", f"name = {_toml_text(number.name)}"]
        lines += [f"{key} = {getattr(number, key):.6g}" for key in ("value", "low", "high", "before")]
    return "\n".join(lines) + "\n"


def _drop_numbers(one: Uncertain, names: Iterable[str]) -> Uncertain:
    least, most = (tuple(pair for pair in side if pair[0] not in names) for side in (one.least, one.most))
    return replace(one, least=least, most=most)


def _toml_text(text: str) -> str:
    """A text of ASCII characters as TOML's string."""
    return json.dumps(text.encode("ascii", "replace").decode())


def is_rate(name: str) -> bool:
    """True for a number that makes kernels faster the larger it is."""
    return name.rpartition("_")[2] in _RATES
