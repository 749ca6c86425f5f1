"""The holders of keys: who sends the current request, what they may do, and their limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Protocol, TypeVar

from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.tensors import value_text
from trnrt.serve.settings_keys import Key


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Value = TypeVar("Value", bound=_Named)
FULL_RETRY_S = 1


class Allowance:
    """A token bucket: ``rate`` tokens a second, and at most ``burst`` at once.

    It may be overdrawn: a request of many rows passes when the bucket is not empty, and the next ones wait longer.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._tokens, self._since = burst, clock()

    def wait_s(self, least: float = 1.0) -> float:
        """Seconds until there are ``least`` tokens; 0 if there are."""
        self._refill()
        return max(0.0, (least - self._tokens) / self.rate)

    def take(self, count: float = 1.0) -> None:
        """Take tokens, also more than there are."""
        self._refill()
        self._tokens -= count

    def give_back(self, count: float) -> None:
        """Return tokens that were taken in vain."""
        self._refill()
        self._tokens = min(self.burst, self._tokens + count)

    def change(self, rate: float, burst: float) -> None:
        """Set new limits; what was taken stays taken."""
        self._refill()
        self._tokens = min(burst, self._tokens + burst - self.burst)
        self.rate, self.burst = rate, burst

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._since) * self.rate)
        self._since = now


class Client:
    """A key's holder. The same object serves the name while the server runs: a reload changes its limits alone.

    ``share``: this process's part of the limits; 1 / workers. Call it on the event loop.
    """

    def __init__(self, name: str, key: Key, share: float = 1.0) -> None:
        self.name, self.inside = name, 0
        self._requests: Allowance | None = None
        self._rows: Allowance | None = None
        self.change(key, share)

    def change(self, key: Key, share: float) -> None:
        """Set the key's limits."""
        self.may_administer = key.admin
        self.models = None if key.models is None else frozenset(key.models)
        self._most = None if key.concurrency is None else max(1, int(key.concurrency * share))
        burst = None if key.burst is None else key.burst * share
        self._requests = _make_allowance(self._requests, key.requests_per_second, share, burst)
        self._rows = _make_allowance(self._rows, key.rows_per_second, share, None)

    def take_request(self, metrics: Metrics) -> None:
        """Count a request as being answered, until ``inside`` is decreased. Problem(429) above the key's limits."""
        if self._most is not None and self.inside >= self._most:
            text = f"{self._owner} has {self.inside} requests here already, which is its limit"
            raise _refuse(metrics, text, FULL_RETRY_S)
        self.take_message(metrics)
        self.inside += 1

    def take_message(self, metrics: Metrics) -> None:
        """Count a further message of a stream, which is one request inside. Problem(429) above the key's rate."""
        if self._requests is not None:
            if wait := self._requests.wait_s():
                raise self._too_many(metrics, "requests", self._requests, wait)
            self._requests.take()

    def take_rows(self, rows: int, metrics: Metrics) -> None:
        """Count a request's rows. Problem(429) if earlier ones used up the key's rows."""
        if self._rows is not None:
            if wait := self._rows.wait_s():
                raise self._too_many(metrics, "rows", self._rows, wait)
            self._rows.take(rows)

    def give_rows_back(self, rows: int) -> None:
        """Don't count the rows of a request that was refused after all."""
        if self._rows is not None:
            self._rows.give_back(rows)

    def may_use(self, model: str) -> bool:
        """True if the key is for this model."""
        return self.models is None or model in self.models

    def visible(self, models: Mapping[str, Value]) -> dict[str, Value]:
        """Those of the models that the key is for."""
        return {key: model for key, model in models.items() if self.may_use(model.name)}

    def check_administers(self) -> None:
        """Problem(403) unless the key may load and unload models."""
        if not self.may_administer:
            raise Problem(403, f"{self._owner} may not load or unload models; its settings have no admin = true")

    def check_sees_all(self) -> None:
        """Problem(403) if the key is for some models only: the answer would show the others, too."""
        if self.models is not None:
            raise Problem(403, f"{self._owner} is for some models only, and this page shows all; take another key")

    @property
    def _owner(self) -> str:
        return f"the key {value_text(self.name)}"

    def _too_many(self, metrics: Metrics, what: str, allowance: Allowance, wait_s: float) -> Problem:
        text = f"{self._owner} may send {allowance.rate:g} {what} a second here, and sent more"
        return _refuse(metrics, text, max(1, math.ceil(wait_s)))


def _refuse(metrics: Metrics, text: str, retry_s: int) -> Problem:
    metrics.count_rejection("key_limit")
    return Problem(429, text, retry_after=retry_s)


def _make_allowance(now: Allowance | None, rate: float | None, share: float, burst: float | None) -> Allowance | None:
    """An allowance with these limits; ``burst`` is by default what comes in a second."""
    if rate is None:
        return None
    limits = rate * share, max(1.0, rate * share if burst is None else burst)
    if now is None:
        return Allowance(*limits)
    now.change(*limits)
    return now


EVERYBODY = Client("", Key(sha256="0" * 64, admin=True))
"""Whoever sends a request that needs no key."""

current_client: ContextVar[Client] = ContextVar("current_client", default=EVERYBODY)
"""The sender of the request that is being answered; set when its key is checked."""
