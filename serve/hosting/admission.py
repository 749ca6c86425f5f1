"""Admission of requests by their keys, their number and the size of their bodies; shared by HTTP and gRPC."""

from __future__ import annotations

import math
import os
from hashlib import blake2b, sha256

from trnrt.serve.hosting.clients import EVERYBODY, FULL_RETRY_S, Client, current_client
from trnrt.serve.hosting.guessing import Guesses
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.problems import Problem
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import ServeSettings

LARGEST_BODIES = 16
"""The limit of all requests' bodies together, in bodies of the largest size: clients must not fill the memory."""


class Admission:
    """Counts the requests inside and the bytes of their bodies, and refuses others. Call it on the event loop."""

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self.draining = False
        """True when the server is shutting down: it takes no more requests."""
        self.inside = self.held = 0
        self._metrics, self._guesses = metrics, Guesses()
        self._secret = os.urandom(32)
        self._clients: dict[bytes, Client] = {}
        self._names: dict[str, Client] = {}
        self.change(settings)

    def change(self, settings: ServeSettings) -> None:
        """Set the keys and the limits. A key that keeps its name keeps what it has used up."""
        self.largest_body, self._most = settings.max_body_mib << 20, settings.max_concurrency
        share = 1.0 / settings.workers
        keys = settings.named_keys
        for name, key in keys.items():
            if name in self._names:
                self._names[name].change(key, share)
            else:
                self._names[name] = Client(name, key, share)
        self._names = {name: self._names[name] for name in keys}
        self._clients = {self._blind(bytes.fromhex(key.sha256)): self._names[name] for name, key in keys.items()}

    def check_key(self, given: bytes | None, address: str = "") -> Client:
        """The holder of this key, from now on ``current_client``; everybody if the server has no keys.

        Problem(401) if it is none of the server's keys, 429 if ``address`` sent too many wrong ones.
        """
        client = EVERYBODY if not self._names else self._find_client(given, address)
        current_client.set(client)
        return client

    def take_message(self, client: Client) -> None:
        """Count a further message of a stream. Problem(401) if its key has been taken away, 429 above its rate."""
        if (self._names.get(client.name) if self._names else EVERYBODY) is not client:
            self._metrics.count_rejection("key")
            raise _key_problem("the API key was taken away")
        client.take_message(self._metrics)

    def enter(self, client: Client | None = None) -> Place:
        """A place for a request and, when they are counted, for the bytes of its body; held while it is a context.

        Problem(503) if the server is shutting down or full, 429 if ``client`` (by default the current one) has used up
        what its key allows.
        """
        if self.draining:
            self._refuse("draining", "the server is shutting down and takes no more requests")
        if self.inside >= self._most:
            self._refuse("concurrency", f"the server answers {self.inside} requests already, which is its limit")
        sender = client or current_client.get()
        sender.take_request(self._metrics)
        self.inside += 1
        return Place(self, sender)

    def leave(self, place: Place, sender: Client) -> None:
        """Free a place."""
        self.inside -= 1
        sender.inside -= 1
        self.held -= place.size

    def hold(self, body: Body, more: int) -> None:
        """Count ``more`` bytes of a body. Problem(413) if it is too large, 503 if all of them together are."""
        body.size += more
        self.held += more
        self.check_size(body.size)
        if self.held > LARGEST_BODIES * self.largest_body:
            self._refuse("concurrency", f"the bodies of the requests that it answers take {self.held} bytes already")

    def check_size(self, size: int) -> None:
        """Problem(413) for a body of ``size`` bytes, if that is over the limit."""
        if size > self.largest_body:
            raise self.too_large()

    def too_large(self) -> Problem:
        """The refusal of a body over the limit; counted."""
        self._metrics.count_rejection("body")
        limit = f"{self.largest_body} bytes ({self.largest_body >> 20} MiB), which is the server's limit"
        return Problem(413, f"the body has more than {limit}")

    def _find_client(self, given: bytes | None, address: str) -> Client:
        if given is None:
            self._metrics.count_rejection("key")
            raise _key_problem("no API key")
        key = self._blind(sha256(given).digest())
        if wait := self._guesses.wait_s(address, key):
            self._metrics.count_rejection("key_slowed")
            text = "too many wrong API keys came from this address; this one was not compared"
            raise Problem(429, text, retry_after=max(1, math.ceil(wait)))
        client = self._clients.get(key)
        if client is None:
            self._metrics.count_rejection("key")
            if self._guesses.note_wrong(address, key):
                log("warning", "wrong_keys", address=address)
            raise _key_problem("a wrong API key")
        self._guesses.note_right(address, key)
        return client

    def _blind(self, digest: bytes) -> bytes:
        """A hash that no client can foresee, so that the time of a look-up reveals nothing about the keys."""
        return blake2b(digest, key=self._secret, digest_size=32).digest()

    def _refuse(self, reason: str, text: str) -> None:
        self._metrics.count_rejection(reason)
        raise Problem(503, text, retry_after=FULL_RETRY_S)


def _key_problem(reason: str) -> Problem:
    way_out = "send one as Authorization: Bearer KEY or as X-API-Key: KEY"
    return Problem(401, f"{reason}; {way_out}", {"WWW-Authenticate": 'Bearer realm="trnrt"'})


class Body:
    """The bytes of a request's body so far; a client need not declare how many will come."""

    def __init__(self, admission: Admission) -> None:
        self._admission, self.size = admission, 0

    def count(self, more: int) -> None:
        """See ``Admission.hold``."""
        self._admission.hold(self, more)


class Place(Body):
    """The place of a request of ``sender``, and the bytes of its body."""

    def __init__(self, admission: Admission, sender: Client) -> None:
        super().__init__(admission)
        self._sender = sender

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_error: object) -> None:
        self._admission.leave(self, self._sender)
