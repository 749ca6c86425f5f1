"""``trnrt doctor``: checks this machine, and shows how to fix each finding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt import __version__
from trnrt.commands.options import Reporting
from trnrt.commands.results import deliver
from trnrt.errors import BackendError, OptionError
from trnrt.neuron.findings import BAD
from trnrt.report.console import note, render, say
from trnrt.report.documents import as_text
from trnrt.report.files import check_writable, write_or_keep
from trnrt.report.progress import working
from trnrt.text import count_text

if TYPE_CHECKING:
    from trnrt.neuron.doctor import Diagnosis

REPORT = Path("trnrt-self-test.json")


def set_for_children(route: str | None, *, allow_unsupported: bool) -> None:
    """Set the variables of these flags, for the checks and for the processes of the self-test."""
    from trnrt.neuron.device import ROUTE_VARIABLE, UNSUPPORTED_VARIABLE

    if route is not None:
        os.environ[ROUTE_VARIABLE] = route
    if allow_unsupported:
        os.environ[UNSUPPORTED_VARIABLE] = "1"


def examine(
    backend: str, target: str | None, reporting: Reporting, names: list[str] | None = None, *, device: bool = False
) -> bool:
    """Print the diagnosis; return whether ``backend`` can be used. A user's own target counts with its instances.

    Without a device and AWS's packages their checks are one line, unless ``device`` or ``backend`` asks for them.
    """
    from trnrt.commands.host import NO_DEVICE, check_host, is_laptop
    from trnrt.nki.machine.targets import file_of, get_target
    from trnrt.report.doctor import doctor_parts

    target = target and get_target(target).name
    if names or (target is not None and file_of(target) is None):
        raise OptionError("--target and --case need --self-test", hint="add --self-test")
    with _despite_timing():
        diagnosis = _diagnosis(target)
        with working("running the sample model"):
            host = check_host(diagnosis)
        folded = NO_DEVICE if not device and backend != "neuron" and is_laptop(diagnosis.machine) else ""
        document = _document(diagnosis, backend) | {"host": [asdict(finding) for finding in host]}
        deliver(reporting, document, render(doctor_parts(diagnosis, backend, host, folded)))
        return diagnosis.usable(backend) and all(finding.state not in BAD for finding in host)


@contextmanager
def _despite_timing() -> Iterator[None]:
    """Tell of a wrong file in TRNRT_TIMING, and go on without it: it keeps nobody from looking at a machine."""
    from trnrt.nki.machine.overlays import TIMING_VARIABLE, without_overlay
    from trnrt.nki.machine.targets import overlay_in_use

    with ExitStack() as stack:
        try:
            overlay_in_use()
        except OptionError as error:
            note(f"{TIMING_VARIABLE}: {error}; every verb that predicts refuses it ({error.hint})")
            stack.enter_context(without_overlay())
        yield


def self_test(backend: str, target: str | None, reporting: Reporting, names: list[str] | None = None) -> bool:
    """Run the self-test and write its report; return whether all of it passed.

    Raises BackendError if there is no device, except with ``--backend simulator``.
    """
    from trnrt.neuron.frontend import frontend_values
    from trnrt.neuron.selftest.suite import run_suite
    from trnrt.neuron.selftest.table import CASES
    from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target
    from trnrt.report.selftest import selftest_document, selftest_parts

    target = target and get_target(target).name
    diagnosis = _diagnosis(target)
    backend = "neuron" if backend == "auto" else backend
    if diagnosis.blocking[backend]:
        raise _no_device_error(diagnosis, backend)
    report = reporting.json_out or REPORT
    check_writable(report)
    if backend == "neuron":
        note(f"{count_text(len(names or CASES), 'case')}, each compiled by AWS's compiler first: this may take an hour")
    nki = diagnosis.machine.packages.get("nki")
    frontends = frontend_values(nki.version) if nki is not None and backend == "neuron" else ()
    chosen = target or diagnosis.machine.target or DEFAULT_TARGET
    suite = run_suite(backend, chosen, names or CASES, _tell_running, frontends=frontends)
    _tell_running("")
    text = render(selftest_parts(suite))
    document = as_text(selftest_document(suite, _document(diagnosis, backend), text, version=__version__))
    problem = write_or_keep(report, document)
    say(document if reporting.as_json else text)
    which = "the report to send back" if backend == "neuron" else "the simulator's own report"
    note(problem or f"{which} is {report}")
    if suite.interrupted:
        raise KeyboardInterrupt
    return suite.has_passed and problem is None


def _tell_running(name: str) -> None:
    """Show the running case on a terminal: a case may take minutes to compile."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{name}")
        sys.stderr.flush()


def _diagnosis(target: str | None = None) -> Diagnosis:
    from trnrt.neuron.doctor import diagnose
    from trnrt.neuron.doctor.machine import look
    from trnrt.neuron.doctor.rules import table
    from trnrt.neuron.releases import load_releases
    from trnrt.neuron.requirements import Asked

    with working("looking at this machine"):
        return diagnose(look(), load_releases(), table(Asked(target)))


def _document(diagnosis: Diagnosis, backend: str) -> dict[str, Any]:
    from trnrt.neuron.releases import load_releases
    from trnrt.report.doctor import doctor_document

    return doctor_document(diagnosis, load_releases(), backend, version=__version__)


def _no_device_error(diagnosis: Diagnosis, backend: str) -> BackendError:
    found = [diagnosis.finding(name) for name in diagnosis.blocking[backend]]
    lines = [f"{finding.name}: {finding.found}" for finding in found]
    what = "no NeuronCore can be used on this machine" if backend == "neuron" else f"the {backend} can't be used"
    hint = "`trnrt doctor` shows how to fix each; --self-test --backend simulator runs the suite on any machine"
    return BackendError(f"the self-test needs a device, and {what}:\n  " + "\n  ".join(lines), hint=hint)
