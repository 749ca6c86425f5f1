"""``trnrt nki profile``: predicted latencies of a script's kernel calls on the device; runs nothing."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt import __version__
from trnrt.commands.against import add_differences, differences_text, read_runs
from trnrt.commands.options import Reporting
from trnrt.commands.profiling import Files, compare, page_text, prepare, warn
from trnrt.commands.views import Tracing, Views
from trnrt.errors import OptionError
from trnrt.report.console import complain, note, say
from trnrt.text import count_text, names_text, quote

if TYPE_CHECKING:
    from trnrt.nki.checking import CheckedCall, Report
    from trnrt.nki.machine.program import Program
    from trnrt.nki.profiling import Profile
    from trnrt.nki.sim.subset_source import Finding
    from trnrt.report.against import Difference
    from trnrt.report.comparing import Baseline
    from trnrt.report.documents import Document
    from trnrt.report.runs import Run


def profile_script(
    script: Path, tracing: Tracing, views: Views, reporting: Reporting, against: Path | None = None
) -> bool:
    """Predict and print the latency of each call; return whether all were traced and none is slower than allowed.

    ``against``: another run to compare each call with.
    """
    baseline = prepare(views, reporting, "calls")
    report, profiles = _profile_calls(script, tracing)
    if not profiles and not report.failures:
        raise OptionError(f"{quote(str(script))} calls no kernel: there is nothing to profile", hint=_example(script))
    document = {}
    if baseline is not None or against is not None or reporting.as_json or reporting.json_out is not None:
        from trnrt.report.documents import nki_profile_document

        document = nki_profile_document(report, profiles, version=__version__)
    comparisons = compare(_comparable(baseline, report), document)
    named = [(f"{call.kernel}({call.arguments})", predicted) for call, predicted in profiles]
    differences = _compare_runs(against, script, tracing, document, named)
    files = Files()
    files.write_document(reporting, document)
    files.write_views(views, named, differences=differences)
    if reporting.as_json:
        from trnrt.report.documents import as_text

        say(as_text(document))
    elif named:
        say(page_text(named, comparisons, baseline) + differences_text(differences))
    warn([predicted for _, predicted in profiles])
    _tell(report, {text for _, predicted in profiles for text in predicted.notes})
    files.close()
    return not report.failures and not any(comparison.regressed for comparison in comparisons)


def _compare_runs(
    against: Path | None, script: Path, tracing: Tracing, document: Document, named: list[tuple[str, Profile]]
) -> list[Difference]:
    """Each call's difference from the other run, which is added to ``document``; none without ``--against``."""
    if against is None or not named:
        return []
    from trnrt.report.against import pair_runs
    from trnrt.report.runs import run_of

    before = read_runs(against, "calls", len(named)) or _other_calls(against, tracing)
    after = [run_of(name, str(script), call) for (name, _), call in zip(named, document["calls"], strict=True)]
    found = pair_runs(before, after)
    if found is None:
        raise OptionError(
            f"{quote(str(against))} has the calls {names_text(run.name for run in before) or 'none'}; "
            f"these are {names_text(name for name, _ in named)}",
            hint="name the same calls, or as many, with --call",
        )
    return add_differences(document, found)


def _other_calls(against: Path, tracing: Tracing) -> list[Run]:
    """The runs of another script's calls."""
    from trnrt.report.comparing import call_name
    from trnrt.report.documents import nki_profile_document
    from trnrt.report.page.reading import run_of_profile

    report, others = _profile_calls(against, tracing)
    if not others:
        raise OptionError(
            f"{quote(str(against))} has no call to compare with"
            + "".join(f": {failure.message}" for failure in report.failures[:1]),
            hint="--against takes a script, an HTML report of `trnrt nki profile`, or a --json-out file",
        )
    document = nki_profile_document(report, others, version=__version__)
    return [
        run_of_profile(call_name(call), str(against), profile, call)
        for (_, profile), call in zip(others, document["calls"], strict=True)
    ]


def _profile_calls(script: Path, tracing: Tracing) -> tuple[Report, list[tuple[CheckedCall, Profile]]]:
    from trnrt.nki.checking import check
    from trnrt.nki.profiling import profile_programs

    profiles: list[tuple[CheckedCall, Profile]] = []

    def observe(call: CheckedCall, programs: list[Program]) -> None:
        profiles.append((call, profile_programs(programs)))

    capacity = not tracing.no_capacity
    report = check(
        script, tracing.calls or [], target=tracing.target, nki=tracing.nki, observer=observe, capacity=capacity
    )
    return report, profiles


def _comparable(baseline: Baseline | None, report: Report) -> Baseline | None:
    """The baseline, if it is of the same target; None if calls failed: then the failures matter more."""
    if baseline is not None:
        baseline.check_same(target=report.target)
    return None if report.failures else baseline


def _tell(report: Report, known: Set[str]) -> None:
    """Print a report's notes and failures; the ``known`` notes were printed with the profiles."""
    note(*(text for text in report.notes if text not in known))
    refused = [finding for finding in report.findings if finding not in report.failures]
    if refused:
        note(
            f"AWS's compiler (NKI {report.level}) would refuse this file for {count_text(len(refused), 'reason')}; "
            f"`trnrt nki check --nki {report.level}` lists them"
        )
    for failure in dict.fromkeys(report.failures):
        complain(_with_code(failure), failure.instead or None)


def _with_code(failure: Finding) -> str:
    """The failure's message with its source line."""
    code = linecache.getline(failure.file, failure.line).strip()
    return f"{failure.message}\n  at {failure.file}:{failure.line}" + (f"\n    {code}" if code else "")


def _example(script: Path) -> str:
    """An example for --call, with a kernel of the file if there is one."""
    kernel, tensors = "kernel", 2
    for node in ast.walk(ast.parse(script.read_bytes())):
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
            kernel, tensors = node.name, max(1, len(node.args.args) - len(node.args.defaults))
            break
    return f"name a call, for example --call '{kernel}({', '.join(['f32[128,512]'] * tensors)})'"
