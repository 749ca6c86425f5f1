"""A server's run, with one worker or several."""

from __future__ import annotations

import os
from contextlib import suppress

from trnrt.report.console import note, say
from trnrt.serve.hosting.files import model_files
from trnrt.serve.processes.links import Share
from trnrt.serve.processes.listening import listen, url_of
from trnrt.serve.processes.spans import check_tracing
from trnrt.serve.processes.summary import SummaryRow, summary_text
from trnrt.serve.settings import MULTIPROC, ServeSettings


def serve(settings: ServeSettings) -> int:
    """Serve until a signal; the exit code. TrnrtError if it can't begin."""
    files = model_files(settings)
    _check(settings)
    from trnrt.neuron.device import device_target
    from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target

    listener = listen(settings.host, settings.port)
    url = url_of(listener)
    say(f"listening on {url}; loading {', '.join(map(repr, files))}")

    def print_summary(rows: list[SummaryRow]) -> None:
        with suppress(OSError):  # continue to serve when nobody reads the output any more
            say(summary_text(rows, url))
            doubts = get_target(settings.target or device_target() or DEFAULT_TARGET).note
            if doubts:
                note(doubts)

    if settings.workers > 1:
        from trnrt.serve.processes.workers import Supervisor

        return Supervisor(settings, files, listener, print_summary).run()
    os.environ.pop(MULTIPROC, None)  # numbers that other processes left there would be added to ours
    from trnrt.serve.processes.worker import leave, run_worker

    return leave(run_worker(Share(settings, files), listener, print_summary))


def _check(settings: ServeSettings) -> None:
    """TrnrtError if every worker, or every model, would fail."""
    check_tracing(settings)
    if settings.backend != "simulator":
        from trnrt.serve.hosting.devices import check_device

        check_device(settings)
    if settings.shape:
        from trnrt.planner.sizes import parse_shape

        for text in settings.shape:
            parse_shape(text)
