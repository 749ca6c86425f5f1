"""Who may come in: keys, and the limits on requests and their bodies. HTTP and gRPC share them."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager

from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings

FULL_RETRY_S = 1
LARGEST_BODIES = 16
"""The limit of all requests' bodies together, in bodies of the largest size: clients must not fill the memory."""


class Admission:
    """Counts the requests inside and the bytes of their bodies, and refuses others. Call it on the event loop."""

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self.draining = False
        """True when the server is shutting down: it takes no more requests."""
        self.inside = self.held = 0
        self.largest_body = settings.max_body_mib << 20
        self._keys = [key.get_secret_value().encode("utf-8") for key in settings.api_keys]
        self._most, self._metrics = settings.max_concurrency, metrics

    def check_key(self, given: bytes | None) -> None:
        """Problem(401) if the server has keys, and this is none of them."""
        if not self._keys:
            return
        # Compare with every key, each in constant time, so that the time reveals nothing about them.
        if sum([hmac.compare_digest(given or b"", key) for key in self._keys]) and given is not None:
            return
        self._metrics.count_rejection("key")
        reason = "no API key" if given is None else "a wrong API key"
        way_out = "send one as Authorization: Bearer KEY or as X-API-Key: KEY"
        raise Problem(401, f"{reason}; {way_out}", {"WWW-Authenticate": 'Bearer realm="trnrt"'})

    @contextmanager
    def enter(self) -> Iterator[Body]:
        """Hold a place for a request and, when they are counted, for the bytes of its body. Problem(503) if the
        server is shutting down or full."""
        if self.draining:
            self._refuse("draining", "the server is shutting down and takes no more requests")
        if self.inside >= self._most:
            self._refuse("concurrency", f"the server answers {self.inside} requests already, which is its limit")
        body = Body(self)
        self.inside += 1
        try:
            yield body
        finally:
            self.inside -= 1
            self.held -= body.size

    def hold(self, body: Body, more: int) -> None:
        """Count ``more`` bytes of a body. Problem(413) if it is too large, 503 if all of them together are."""
        body.size += more
        self.held += more
        self.check_size(body.size)
        if self.held > LARGEST_BODIES * self.largest_body:
            self._refuse("concurrency", f"the bodies of the requests that it answers take {self.held} bytes already")

    def check_size(self, size: int) -> None:
        """Problem(413) if a body of so many bytes is too large."""
        if size > self.largest_body:
            raise self.too_large()

    def too_large(self) -> Problem:
        """The refusal of a body over the limit; counted."""
        self._metrics.count_rejection("body")
        limit = f"{self.largest_body} bytes ({self.largest_body >> 20} MiB), which is the server's limit"
        return Problem(413, f"the body has more than {limit}")

    def _refuse(self, reason: str, text: str) -> None:
        self._metrics.count_rejection(reason)
        raise Problem(503, text, retry_after=FULL_RETRY_S)


class Body:
    """The bytes of a request's body so far; a client need not declare how many will come."""

    def __init__(self, admission: Admission) -> None:
        self._admission, self.size = admission, 0

    def count(self, more: int) -> None:
        """See ``Admission.hold``."""
        self._admission.hold(self, more)
