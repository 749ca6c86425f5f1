"""A server from its first line to its last, with one worker or several."""

from __future__ import annotations

import os
from contextlib import suppress

from trnrt.report.console import say
from trnrt.serve.hosting.files import model_files
from trnrt.serve.processes.listening import listen, url_of
from trnrt.serve.processes.summary import SummaryRow, summary_text
from trnrt.serve.settings import MULTIPROC, ServeSettings


def serve(settings: ServeSettings) -> int:
    """Serve until a signal says to stop; the exit code. TrnrtError where it can't begin."""
    files = model_files(settings)
    _check(settings)
    listener = listen(settings.host, settings.port)
    url = url_of(listener)
    say(f"listening on {url}; loading {', '.join(map(repr, files))}")

    def tell(rows: list[SummaryRow]) -> None:
        with suppress(OSError):  # nobody reads it any more: that is no reason to stop serving
            say(summary_text(rows, url))

    if settings.workers > 1:
        from trnrt.serve.processes.workers import Supervisor

        return Supervisor(settings, files, listener, tell).run()
    os.environ.pop(MULTIPROC, None)  # a folder of numbers that other processes left would be added to ours
    from trnrt.serve.processes.worker import Share, leave, run_worker

    return leave(run_worker(Share(settings, files), listener, tell))


def _check(settings: ServeSettings) -> None:
    """TrnrtError for what every worker, or every model, would fail with."""
    if settings.backend != "simulator":
        from trnrt.serve.hosting.devices import check_device

        check_device(settings)
    if settings.shape:
        from trnrt.planner.sizes import parse_shape

        for text in settings.shape:
            parse_shape(text)
