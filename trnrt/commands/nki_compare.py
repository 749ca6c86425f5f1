"""``trnrt nki compare``: two kernels side by side, their predicted times and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt import __version__
from trnrt.commands.kernel_records import Numbers, SecondCalls
from trnrt.commands.options import Reporting
from trnrt.commands.profiling import warn
from trnrt.commands.results import deliver
from trnrt.commands.views import Tracing
from trnrt.errors import OptionError
from trnrt.report.console import note, render
from trnrt.report.files import check_writable
from trnrt.report.progress import working

if TYPE_CHECKING:
    from trnrt.nki.pairing import Comparison


def compare_scripts(
    files: tuple[Path, Path | None], tracing: Tracing, second: SecondCalls, numbers: Numbers, reporting: Reporting
) -> bool:
    """Print the comparison of each pair of calls; return whether all numbers agree and no second is too slow."""
    from trnrt.nki.level import choose_level
    from trnrt.nki.machine.targets import get_target
    from trnrt.nki.pairing import Asking, compare_kernels
    from trnrt.nki.sim.kernel import default_target
    from trnrt.report.pairs import compare_document, compare_parts

    if reporting.json_out is not None:
        check_writable(reporting.json_out)
    first, other = files
    asking = Asking(
        (first, other or first),
        _calls(tracing.calls or [], second.calls_b or [], alone=other is None),
        target=tracing.target,
        level=tracing.nki,
        capacity=not tracing.no_capacity,
        inputs=numbers.reader(),
        rtol=numbers.rtol,
        atol=numbers.atol,
    )
    with working("timing and running both kernels"):
        found = compare_kernels(asking)
    target, level = get_target(tracing.target or default_target()).name, choose_level(tracing.nki)
    document = compare_document(found, target, level.value, second.max_slower, version=__version__)
    deliver(reporting, document, render(compare_parts(found, second.max_slower)))
    _tell(found)
    return is_accepted(found, second.max_slower)


def is_accepted(found: Sequence[Comparison], max_slower: float | None) -> bool:
    """True if all numbers agree, and no second kernel is slower than allowed."""
    slow = max_slower is not None and any(comparison.slowdown > max_slower for comparison in found)
    return not slow and all(comparison.equal for comparison in found)


def _calls(first: list[str], second: list[str], *, alone: bool) -> tuple[Sequence[str], Sequence[str]]:
    """The calls of each side; OptionError if they are not as many."""
    if second and len(second) != len(first):
        raise OptionError(
            f"{len(first)} times --call and {len(second)} times --call-b: each pair needs one of each",
            hint="give --call the first kernel's call, and --call-b the second's",
        )
    if alone and not second:
        raise OptionError(
            "there is only one file: nothing says what to compare it with",
            hint="name two calls, --call 'a(f32[128,512])' --call-b 'b(f32[128,512])', or a second file",
        )
    return first, second or first


def _tell(found: Sequence[Comparison]) -> None:
    """Print notes on how far to trust the predictions, and why numbers could not be compared."""
    warn([side.profile for comparison in found for side in (comparison.first, comparison.second)])
    note(*dict.fromkeys(f"no numbers to compare: {c.problem.splitlines()[0]}" for c in found if c.problem))
