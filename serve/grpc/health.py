"""The standard health check, grpc.health.v1.Health.

The package grpcio-health-checking serves statuses that somebody sets, and its generated code binds it to some releases
of protobuf. Ours are asked of the repository when a client asks.
"""

from __future__ import annotations

import asyncio

from trnrt.serve.grpc import messages
from trnrt.serve.grpc.calls import Call, Method
from trnrt.serve.grpc.inference import parse
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.tensors import value_text

SERVICE = "/grpc.health.v1.Health/"
LIVE = "liveness"
"""The name that asks if the process runs, as Kubernetes' probes call it."""
READY = ("", "readiness", "inference.GRPCInferenceService")
WATCH_S = 1.0
"""Between two looks at a status that a client watches."""
MOST_WATCHES = 64
"""Clients that may watch at once: they need no key."""


def make_methods() -> dict[str, Method]:
    """The methods by path."""
    watch = _Watches().answer
    return {
        SERVICE + "Check": Method(check, is_open=True),
        SERVICE + "Watch": Method(watch, is_open=True, streams=True),
    }


async def check(call: Call) -> bytes:
    """The status of the server."""
    name = parse(messages.HealthRequest, await call.read()).service
    status = status_of(call, name)
    if status == "SERVICE_UNKNOWN":
        names = ", ".join(map(repr, (LIVE, *READY)))
        raise Problem(404, f"there is no service {value_text(name)} here; the services are {names}")
    return _encode(status)


class _Watches:
    """Counts the clients that watch."""

    def __init__(self) -> None:
        self._count = 0

    async def answer(self, call: Call) -> bytes:
        """Send a status when it changes, until the server shuts down."""
        name = parse(messages.HealthRequest, await call.read()).service
        if self._count >= MOST_WATCHES:
            call.calls.metrics.count_rejection("concurrency")
            raise Problem(503, f"{MOST_WATCHES} clients watch already, which is the limit; ask with Check")
        self._count += 1
        try:
            last = ""
            while True:
                status = status_of(call, name)
                if status != last:
                    await call.write(_encode(status))
                last = status
                with call.idle():
                    await asyncio.sleep(WATCH_S)
        finally:
            self._count -= 1


def status_of(call: Call, name: str) -> str:
    """The status of a service."""
    if name == LIVE:
        return "SERVING"
    if name in READY:
        return "SERVING" if call.repository.ready else "NOT_SERVING"
    return "SERVICE_UNKNOWN"


def _encode(status: str) -> bytes:
    encoded: bytes = messages.HealthAnswer(status=status).SerializeToString()
    return encoded
