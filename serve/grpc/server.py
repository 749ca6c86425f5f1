"""A worker's gRPC server: its limits, its start, and its end."""

from __future__ import annotations

import logging
import os
from typing import Any

# Before grpc is imported: its core writes to stderr for each bad client, outside the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from trnrt.errors import OptionError
from trnrt.serve.grpc.calls import Calls
from trnrt.serve.grpc.health import MOST_WATCHES
from trnrt.serve.grpc.methods import make_methods
from trnrt.serve.hosting.repository import Repository

STOP_S = 1.0
"""The longest wait for late calls at the end. They are refused, so it is soon over."""
RESERVE = 64
"""Calls above the server's limits that are still answered: refusals, and health checks."""
MOST_CONNECTIONS = 256
"""Connections at once; a client needs one for any number of calls."""
MOST_STREAMS = 128
"""Calls of a connection at once; a client's library queues the others."""
_GZIP_OR_NOTHING = 0b101
"""Compression of messages: none, and gzip, as grpc numbers them."""


def server_options(calls: Calls, *, shared: bool) -> list[tuple[str, int]]:
    """grpc's options. ``shared``: other workers listen on the same port."""
    settings = calls.repository.settings
    return [
        ("grpc.so_reuseport", int(shared)),
        ("grpc.max_receive_message_length", calls.largest_message),
        ("grpc.max_send_message_length", -1),
        # grpc has no limit for what a compressed message unpacks to; ``unpack`` has.
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", _GZIP_OR_NOTHING),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.absolute_max_metadata_size", 16 << 10),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", 10_000),
        # A connection without calls; then one whose client has vanished.
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Clients that leave answers unread hold places no longer than this. Others connect again, and lose no call.
        ("grpc.max_connection_age_ms", 600_000),
        ("grpc.max_connection_age_grace_ms", int(settings.request_timeout * 1000) + 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


class GrpcServer:
    """The gRPC side of a worker; its calls go to the same repository as HTTP's."""

    def __init__(self, repository: Repository, address: str, *, shared: bool) -> None:
        self._calls = Calls(repository, make_methods())
        # It logs a traceback for each client that goes before its answer; errors of our own are logged by the calls.
        logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
        most = repository.settings.max_concurrency + MOST_WATCHES + RESERVE
        self._server: Any = grpc.aio.server(
            handlers=(self._calls,),
            options=server_options(self._calls, shared=shared),
            maximum_concurrent_rpcs=most,
        )
        try:
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            hint = "take another with --grpc-port, or any free one with --grpc-port 0"
            raise OptionError(f"can't listen for gRPC on {address}: it is in use", hint=hint)

    @property
    def pending_calls(self) -> int:
        """Calls that are not answered yet."""
        return self._calls.pending

    async def start(self) -> None:
        """Serve from now on."""
        await self._server.start()

    async def leave(self) -> None:
        """Wait until the calls so far are answered."""
        await self._calls.leave()

    async def stop(self, *, at_once: bool = False) -> None:
        """Close all connections. Calls that came since ``leave`` have a moment, unless ``at_once``."""
        await self._server.stop(None if at_once else STOP_S)
