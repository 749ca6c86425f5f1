"""The models that a worker serves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

from trnrt.serve.hosting.admission import Admission
from trnrt.serve.hosting.catalog import Canary, Catalog, Change, Pinned
from trnrt.serve.hosting.changes import Action, Phase, missing_text, plan_canary, plan_load, plan_unload
from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.contents import PREFIX
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.pins import Store
from trnrt.serve.hosting.policies import chosen_sources, pin_sources
from trnrt.serve.hosting.routing import choose_main, choose_model, find_content, find_version
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.tensors import value_text
from trnrt.serve.processes.logs import log, request_id
from trnrt.serve.settings import ServeSettings

Broadcast = Callable[[Change], Coroutine[Any, Any, str | None]]
"""Makes a change on all workers, or on none; returns why it failed on one of them."""

PATIENCE_S = 60.0
"""The longest that a model's load keeps the next one waiting. Loads at the same time would share the processor."""
_INDEX_STATES = {"loading": "LOADING", "ready": "READY", "unloading": "UNLOADING"}
"""The extension's states; all others are UNAVAILABLE."""


class Repository:
    """The versions of models by key (``Pinned.key``), and whether the server takes requests.

    ``catalog``: what to serve at the start, by default what the settings name. ``store``: where copies are made.
    ``broadcast`` makes a change on all workers; by default on this one alone. ``core_lost`` is set when a device
    failed so that this process can't use it again.
    """

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        *,
        catalog: Catalog | None = None,
        store: Store | None = None,
    ) -> None:
        self.settings, self.metrics = settings, metrics
        self.admission = Admission(settings, metrics)
        self.core_lost = asyncio.Event()
        self.others_loading = False
        """True if other workers still load their models: this one answers for all."""
        self.broadcast: Broadcast = self._change_alone
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._prepared: dict[str, ServedModel] = {}
        if catalog is None:
            store = store or Store.make()
            catalog = pin_sources(*chosen_sources(settings), store)
        self._store, self.catalog = store, catalog
        self.models: dict[str, Model] = {key: self._make_model(pinned) for key, pinned in catalog.pinned.items()}
        self._group()

    def _make_model(self, pinned: Pinned) -> Model:
        """A model that is not loaded yet."""
        return ServedModel(
            pinned.name, pinned.file, self.settings.for_model(pinned.name), self.metrics, self.core_lost, pinned
        )

    def _group(self) -> None:
        """Group the versions by model, the newest first."""
        self._families: dict[str, list[Model]] = {}
        for model in sorted(self.models.values(), key=lambda model: int(model.version), reverse=True):
            self._families.setdefault(model.name, []).append(model)

    # -- requests ------------------------------------------------------------------------------------------------------

    def find(self, name: str, version: str = "") -> Model:
        """The model at an address (see ``routing``), in any state; without a version, the one that is chosen for this
        request.

        Problem: 404 if there is no such model, or no such version of it; 400 for an address that is none.
        """
        models, version = self._look_up(name, version)
        if version.startswith(PREFIX):
            return find_content(models, version)
        if version:
            return find_version(models, version)
        if len(models) == 1:
            return models[0]
        return choose_model(models, self.catalog.canaries.get(models[0].name), request_id.get())

    def find_main(self, name: str, version: str = "") -> Model:
        """The same, but never a canary, unless that is named: for what is not a prediction."""
        models, version = self._look_up(name, version)
        return (
            choose_main(models, self.catalog.canaries.get(models[0].name)) if not version else self.find(name, version)
        )

    def versions(self, name: str) -> list[Model]:
        """A model's versions that are not unloaded, the lowest first."""
        return [model for model in reversed(self._families.get(name, [])) if model.state != "unloaded"]

    def _look_up(self, name: str, version: str) -> tuple[list[Model], str]:
        """The versions of a model, the newest first, and the version that the address names."""
        client = current_client.get()
        models = self._families.get(name)
        if models is not None and client.may_use(name):
            return models, version
        base, _, named = name.partition("@")
        models = self._families.get(base)
        if client.models is not None and not (models and client.may_use(base)):
            names = ", ".join(map(repr, dict.fromkeys(one.name for one in client.visible(self.models).values())))
            raise Problem(404, f"there is no model {name!r} for the key {client.name!r}; its models are {names}")
        if models is None:
            raise Problem(404, missing_text(self.catalog, name))
        if version not in ("", named):
            raise Problem(400, f"{value_text(name)} and /versions/{version} name two versions; name one")
        if not named:
            raise Problem(404, f"{value_text(name)} names no version behind its @")
        return models, named

    @property
    def draining(self) -> bool:
        """True when the server is shutting down."""
        return self.admission.draining

    @property
    def ready(self) -> bool:
        """True if every model except the unloaded ones is ready, on all workers, and the server is not shutting
        down."""
        return not self.draining and not self.others_loading and not self.reasons

    @property
    def reasons(self) -> dict[str, str]:
        """Why models are not ready, by key."""
        found = {}
        for key, model in self.models.items():
            if model.state not in ("ready", "unloaded"):
                found[key] = model.reason or model.state
            elif model.state == "ready" and (busy := model.busy) is not None:
                found[key] = busy
        return found

    def index(self) -> list[dict[str, Any]]:
        """The versions with their states, as the repository extension lists them."""
        rows = []
        for model in self.models.values():
            state = _INDEX_STATES.get(model.state, "UNAVAILABLE")
            rows.append({"name": model.name, "version": model.version, "state": state, "reason": model.reason or ""})
        return rows

    # -- loading and unloading -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load every model, in order; return when each is loaded or has failed.

        The next one waits for a load, but for at most ``PATIENCE_S``: a device may hang. One that fails does not stop
        the others, unless the core is lost.
        """
        under_way: set[asyncio.Task[str | None]] = set()
        try:
            for key, model in list(self.models.items()):
                if self.core_lost.is_set():
                    return
                if key in self.catalog.unloaded:
                    await model.unload()
                elif model.state == "loading":  # unless somebody loaded or unloaded it meanwhile
                    task = asyncio.create_task(model.load())
                    under_way.add(task)
                    if not (await asyncio.wait([task], timeout=PATIENCE_S))[0]:
                        log("warning", "load_is_slow", model=key, seconds=PATIENCE_S, told="others load meanwhile")
            await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()
        _tidy()
        log("info", "models_loaded", ready=[key for key, m in self.models.items() if m.state == "ready"])

    async def act_on_all(self, action: Action, name: str) -> None:
        """Load or unload a model, or one version of it, on all workers or on none.

        It goes on if the caller is cancelled. Problem: 404 for an unknown name, 400 if it does not load.
        """
        await self._finish(self._act_on_all(action, name))

    async def _act_on_all(self, action: Action, name: str) -> None:
        if action == "unload":
            await self._change_all(plan_unload(self.catalog, name), name)
            return
        if self._store is None:
            raise RuntimeError("this repository has no store: its models can't be loaded again")
        planned = (self.settings, self.catalog, self._store, name, self._is_ready)
        await self._change_all(await asyncio.to_thread(plan_load, *planned), name)

    def canary_of(self, name: str) -> Canary | None:
        """The canary of a model. Problem(404) if there is no such model."""
        if name not in self._families:
            raise Problem(404, missing_text(self.catalog, name))
        return self.catalog.canaries.get(name)

    async def set_canary(self, name: str, canary: Canary) -> None:
        """Give a version a share of its model's requests, on all workers. Problem: 404 or 400 if that can't be."""
        await self._finish(self._change_all(plan_canary(self.catalog, name, canary), name))

    async def _finish(self, change: Coroutine[Any, Any, None]) -> None:
        """Make a change to its end, or not at all: a client that goes, or its deadline, must not leave it half made."""
        await asyncio.shield(self._begin(change))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that nobody need hold."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def act(self, phase: Phase, change: Change) -> str | None:
        """Do this worker's part of a change on all; return why preparing it failed."""
        if phase == "prepare":
            return await self.prepare(change)
        await (self.commit(change) if phase == "commit" else self.abort())
        return None

    async def prepare(self, change: Change) -> str | None:
        """Load what a change needs, beside what serves; return why that failed."""
        for pinned in change.load:
            model = self.models.get(pinned.key) or self._make_model(pinned)
            assert isinstance(model, ServedModel)
            self._prepared[pinned.key] = model
            failed = await model.prepare(pinned)
            if failed is not None:
                return failed if len(change.load) == 1 else f"version {pinned.version}: {failed}"
        return None

    async def commit(self, change: Change) -> None:
        """Let what was prepared serve, and unload what the change ends. Requests in the queues are answered."""
        prepared, self._prepared = self._prepared, {}
        closing = [await model.commit() for model in prepared.values()]
        for model in prepared.values():
            # They may have been read again since it was prepared; as after a reload, it serves meanwhile.
            if model.change_settings(self.settings.for_model(model.name)):
                self._begin(model.load())
        leaving = [(key, self.models[key]) for key in (*change.unload, *change.forget) if key in self.models]
        self.catalog = self.catalog.apply(change)
        self.models.update(prepared)
        for key in change.forget:
            self.models.pop(key, None)
        self._group()
        for key, ending in leaving:
            # Requests that have chosen a version may still be arriving; those that name it come no more.
            await ending.unload(patient=key in change.forget)
            if key in change.forget:
                self.metrics.forget(ending.name, ending.version)
        for close in closing:
            await close()
        _tidy()

    async def abort(self) -> None:
        """Drop what was prepared: another worker can't load it."""
        prepared, self._prepared = self._prepared, {}
        for key, model in prepared.items():
            await model.abort()
            if key not in self.models:
                await model.unload()
                self.metrics.forget(model.name, model.version)
        _tidy()

    async def _change_all(self, change: Change, name: str) -> None:
        log("info", "changing", model=name, load=[(one.key, one.digest) for one in change.load], unload=change.unload)
        failed = await self.broadcast(change)
        if failed is not None:
            raise Problem(400, f"the model {name!r} can't be loaded: {failed}")

    async def _change_alone(self, change: Change) -> str | None:
        """Make a change on this worker, which is the only one."""
        async with self._changing:
            failed = await self.prepare(change)
            if failed is None:
                before = self.catalog.copies()
                await self.commit(change)
                unneeded = before - self.catalog.copies()
            else:
                await self.abort()
                unneeded = {one.folder for one in change.load if one.folder is not None}
            if self._store is not None:
                await asyncio.to_thread(self._store.discard, unneeded)
            return failed

    def _is_ready(self, key: str) -> bool:
        return key in self.models and self.models[key].state == "ready"

    async def drain(self) -> None:
        """Become not ready, and wait until every request has its answer."""
        self.admission.draining = True
        for model in list(self.models.values()):
            await model.wait_idle()


def _tidy() -> None:
    """Release a model's leftovers, and exempt the rest from garbage collection: a full pass would delay every
    request."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
