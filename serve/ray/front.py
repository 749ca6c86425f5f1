"""The front of a Ray Serve application: the server's HTTP application, around models that replicas compute."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ray import serve
from ray.exceptions import RayError
from trnrt.serve.hosting.catalog import ONLY_VERSION, Catalog, Pinned
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.app import make_app
from trnrt.serve.processes.logs import log, start_logging
from trnrt.serve.processes.spans import start_tracing
from trnrt.serve.processes.worker import LINGER_S
from trnrt.serve.ray.doorkeeper import Doorkeeper
from trnrt.serve.ray.messages import Whereabouts
from trnrt.serve.ray.models import RayModel
from trnrt.serve.ray.proxy import BODY
from trnrt.serve.ray.replica import own_replica, whereabouts
from trnrt.serve.settings import ServeSettings

PAGES_S = 3.0
"""How long other fronts and replicas may take to send their metrics; later ones are omitted."""


class Front:
    """Takes requests, checks them, and asks the models' replicas. ``sources``: handle and version by model."""

    async def __init__(self, settings: ServeSettings, sources: Mapping[str, tuple[Any, str]]) -> None:  # type: ignore[misc]  # Ray awaits it
        self._logs = start_logging(settings.log_level, None, replica=own_replica())
        start_tracing(settings)
        log("info", "replica_started", process=os.getpid())
        application = serve.get_replica_context().app_name
        name = serve.get_replica_context().deployment
        handles = [serve.get_deployment_handle(name, application), *(handle for handle, _ in sources.values())]
        self.repository = RayRepository(settings, RayMetrics(handles), sources)
        await self.repository.start()
        self._app = make_app(self.repository)
        self._keeper = Doorkeeper(self._app)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application that Ray serves."""
        return _entrance(self._keeper, self._app)

    async def page(self) -> tuple[str, bytes]:
        """Return this front's id and metrics."""
        return own_replica(), self.repository.metrics.own_page()

    async def where(self) -> Whereabouts:
        """Return this front's place."""
        return whereabouts()

    async def drain(self) -> None:
        """Become not ready, refuse new requests, and wait until the accepted ones are answered."""
        self.repository.admission.draining = True
        log("info", "draining", accepted=self._keeper.pending_requests)
        await asyncio.gather(self._keeper.leave(), self.repository.drain(), asyncio.sleep(LINGER_S))


def _entrance(keeper: ASGIApp, app: ASGIApp) -> ASGIApp:
    """Send HTTP requests through the keeper, and Ray's lifespan messages past it.

    Ray's proxy puts the request's id into the answer, too: remove ours, so that it is not there twice.
    """

    async def enter(scope: Scope, receive: Receive, send: Send) -> None:
        async def sender(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
                message = {**message, "headers": headers}
            await send(message)

        if scope["type"] == "http":
            await keeper(scope, _receiver(scope, receive), sender)
        else:
            await app(scope, receive, send)

    return enter


def _receiver(scope: Scope, receive: Receive) -> Receive:
    """ASGI's ``receive``; if the body came along with the request's head, it returns that first."""
    content = (scope.get("extensions") or {}).get(BODY)
    if content is None:
        return receive
    given = False

    async def receive_body() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": content, "more_body": False}
        while (message := await receive())["type"] != "http.disconnect":
            pass  # the proxy's copy of the body, unless an earlier front took it
        return message

    return receive_body


class RayRepository(Repository):
    """The models of an application of Ray Serve."""

    metrics: RayMetrics

    def __init__(self, settings: ServeSettings, metrics: RayMetrics, sources: Mapping[str, tuple[Any, str]]) -> None:
        self._sources = sources
        pinned = {name: Pinned(name, ONLY_VERSION, Path(name), Path(name)) for name in sources}
        super().__init__(settings, metrics, catalog=Catalog(pinned))

    def _make_model(self, pinned: Pinned) -> Model:
        own = self.settings.for_model(pinned.name)
        return RayModel(pinned.name, own, self.metrics, self._sources[pinned.name])


class RayMetrics(Metrics):
    """The metrics of a front; ``collect_all`` returns those of all fronts and replicas, with the label ``replica``."""

    def __init__(self, handles: Sequence[Any]) -> None:
        super().__init__()
        self._handles = handles

    def own_page(self) -> bytes:
        """The metrics of this front alone."""
        return generate_latest(super().collect_all())

    def collect_all(self) -> CollectorRegistry:
        """The metrics of all fronts and replicas. Call it off the event loop."""
        responses = [handle.broadcast("page") for handle in self._handles]
        pages: list[tuple[str, bytes]] = []
        for response in responses:
            try:
                found = response.results(timeout_s=PAGES_S, return_exceptions=True)
            except (RayError, TimeoutError, RuntimeError) as error:  # there is no replica
                found = [error]
            for page in found:  # a replica may be starting or ending
                if isinstance(page, BaseException):
                    log("warning", "metrics_missing", error=type(page).__name__)
                else:
                    pages.append(page)
        registry = CollectorRegistry()
        registry.register(_Pages(pages))
        return registry


class _Pages:
    """The samples of several pages, each with the label ``replica``."""

    def __init__(self, pages: Iterable[tuple[str, bytes]]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        """Each family once, as Prometheus requires."""
        families: dict[str, Metric] = {}
        for replica, page in self._pages:
            for family in text_string_to_metric_families(page.decode("utf-8")):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged.samples += [
                    sample._replace(labels={**sample.labels, "replica": replica}) for sample in family.samples
                ]
        yield from families.values()
