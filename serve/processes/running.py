"""A server's run, with one worker or several."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from trnrt.report.console import note, say
from trnrt.serve.hosting.files import check_readable
from trnrt.serve.hosting.pins import Store
from trnrt.serve.hosting.policies import chosen_sources, pin_sources
from trnrt.serve.processes.links import Share
from trnrt.serve.processes.listening import address_of, listen, reserve_port, url_of
from trnrt.serve.processes.spans import check_tracing
from trnrt.serve.processes.summary import SummaryRow, summary_text
from trnrt.serve.settings import MULTIPROC, ServeSettings, check_names, is_loopback


def serve(settings: ServeSettings) -> int:
    """Serve until a signal; the exit code. TrnrtError if it can't begin."""
    sources, canaries = chosen_sources(settings)
    check_names(settings, {source.name for source in sources})
    for each in (settings, *map(settings.for_model, settings.model)):
        _check(each)
    if settings.models:  # else the folder's owner may still be putting files there
        check_readable(sources)
    if settings.config is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the worker or the supervisor obeys it
    from trnrt.neuron.device import device_target
    from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target

    listener = listen(settings.host, settings.port)
    url = url_of(listener)
    reserved = None if settings.grpc_port is None else reserve_port(settings.host, settings.grpc_port)
    address = None if reserved is None else address_of(reserved)
    also = f" gRPC on {address};" if address else ""
    say(f"listening on {url};{also} loading {', '.join(repr(source.key) for source in sources)}")
    store = Store.make()
    catalog = pin_sources(sources, canaries, store)

    if settings.admin and not (settings.has_keys or is_loopback(settings.host)):
        note("--admin has no effect without API keys at an address that others reach: set TRNRT_API_KEYS")

    def print_summary(rows: list[SummaryRow]) -> None:
        with suppress(OSError):  # continue to serve when nobody reads the output any more
            say(summary_text(rows, url, address))
            doubts = get_target(settings.target or device_target() or DEFAULT_TARGET).note
            if doubts:
                note(doubts)

    if settings.workers > 1:
        from trnrt.serve.processes.workers import Supervisor

        try:
            return Supervisor(settings, catalog, store, listener, print_summary, address).run()
        finally:
            store.close()
    os.environ.pop(MULTIPROC, None)  # numbers that other processes left there would be added to ours
    from trnrt.serve.processes.worker import leave, run_worker

    try:
        share = Share(settings, catalog, store.folder, grpc_address=address)
        code = run_worker(share, listener, print_summary, reserved)
    finally:
        store.close()
    return leave(code)


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
