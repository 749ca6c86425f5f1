"""``trnrt nki tune``: the best keyword arguments of a kernel, by predicted time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trnrt import __version__
from trnrt.cache.code import code_version
from trnrt.commands.kernel_records import Numbers, Tuning
from trnrt.commands.options import Reporting
from trnrt.commands.profiling import warn
from trnrt.commands.results import deliver
from trnrt.nki.level import Level, choose_level
from trnrt.report.console import note, render
from trnrt.report.files import check_writable
from trnrt.report.progress import counting
from trnrt.text import count_text, quote

if TYPE_CHECKING:
    from trnrt.nki.tuning.tuner import Tuned


def tune_script(
    script: Path, tuning: Tuning, numbers: Numbers, reporting: Reporting, target: str | None, nki: Level | None
) -> bool:
    """Search, and print the best; return whether there is one whose numbers are right."""
    from trnrt.nki.machine.targets import get_target
    from trnrt.nki.sim.kernel import default_target
    from trnrt.nki.tuning.space import read_space
    from trnrt.nki.tuning.tuner import Wish, tune
    from trnrt.report.tuning import tuned_document, tuned_parts

    if reporting.json_out is not None:
        check_writable(reporting.json_out)
    space = read_space(tuning.space)
    results = tuning.results or script.with_suffix(".tune.jsonl")
    wish = Wish(
        script,
        tuning.call,
        space,
        results,
        target=target,
        level=nki,
        trials=tuning.trials,
        seconds=tuning.seconds,
        seed=numbers.seed,
        jobs=tuning.jobs or 0,
        reference=tuning.reference,
        inputs=numbers.reader(),
        rtol=numbers.rtol,
        atol=numbers.atol,
        version=code_version(("nki",)),
    )
    with counting("timing candidates", min(space.size, tuning.trials), unit="candidates") as advance:
        tuned = tune(wish, advance)
    name, level = get_target(target or default_target()).name, choose_level(nki)
    document = tuned_document(tuned, str(script), name, level.value, numbers.seed, version=__version__)
    deliver(reporting, document, render(tuned_parts(tuned, script.name, name)))
    _tell(tuned, results)
    return tuned.best is not None


def _tell(tuned: Tuned, results: Path) -> None:
    """Print notes on what was not done, and where the results are."""
    if tuned.best is not None:
        warn([tuned.best])
    if tuned.unchecked:
        note(f"nothing to compare the numbers with: {tuned.unchecked}; --reference names a function for that")
    if tuned.resumed:
        note(f"{count_text(tuned.resumed, 'candidate')} had results in {quote(str(results))}")
    if tuned.stopped:
        note(f"the time was up; the same command goes on from {quote(str(results))}")
