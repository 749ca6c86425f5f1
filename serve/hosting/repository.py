"""The models that a worker serves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

from trnrt.serve.hosting.files import folder_files, model_files
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.problems import Problem
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import ServeSettings

Action = Literal["load", "unload"]
Broadcast = Callable[[Action, str], Coroutine[Any, Any, str | None]]
"""Does an action to a model on all workers; why it failed on one of them, None if it did not."""

VERSION = "1"
_INDEX_STATES = {
    "loading": "LOADING",
    "ready": "READY",
    "recovering": "UNAVAILABLE",
    "failed": "UNAVAILABLE",
    "unloading": "UNLOADING",
    "unloaded": "UNAVAILABLE",
}


class Repository:
    """The models by name, and whether the server takes requests.

    ``files``: the models at the start, by default those of the settings. ``unloaded``: the names of those that are not
    to be loaded. ``broadcast`` is None where this is the only worker. ``core_lost`` is set when a device failed in such
    a way that this process can't use it again.
    """

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        *,
        files: dict[str, Path] | None = None,
        unloaded: frozenset[str] = frozenset(),
        broadcast: Broadcast | None = None,
    ) -> None:
        self.settings, self.metrics = settings, metrics
        self.draining = False
        self.core_lost = asyncio.Event()
        self.others_loading = False
        """Whether other workers still load their models: who asks one of them asks all."""
        self._broadcast, self._unloaded = broadcast, unloaded
        known = model_files(settings) if files is None else files
        self.models: dict[str, Model] = {name: self._make_model(name, path) for name, path in known.items()}

    def _make_model(self, name: str, path: Path) -> Model:
        """A model that is not loaded yet; where something else computes its batches, another one."""
        return ServedModel(name, path, self.settings, self.metrics, self.core_lost)

    def get(self, name: str) -> Model:
        """The model called ``name``, in whatever state; Problem(404) where there is none."""
        model = self.models.get(name)
        if model is None:
            raise Problem(404, f"there is no model {name!r}; the models are {', '.join(map(repr, self.models))}")
        return model

    @property
    def ready(self) -> bool:
        """Whether every model is ready (those apart that were unloaded), here and on the other workers, and the server
        is not about to go."""
        return not self.draining and not self.others_loading and not self.reasons

    @property
    def reasons(self) -> dict[str, str]:
        """Why models are not ready, by name."""
        return {
            name: model.reason or model.state
            for name, model in self.models.items()
            if model.state not in ("ready", "unloaded")
        }

    async def start(self) -> None:
        """Load every model, one after the other: one that does not load does not take the others down.

        Where the core is lost there is no use in trying the rest.
        """
        for name, model in list(self.models.items()):
            if self.core_lost.is_set():
                return
            if name in self._unloaded:
                await model.unload()
            elif model.state == "loading":  # unless somebody loaded or unloaded it meanwhile
                await model.load()
        _tidy()
        log("info", "models_loaded", ready=[m.name for m in self.models.values() if m.state == "ready"])

    async def load(self, name: str) -> None:
        """Load a model, or load it anew, on all workers. Problem(404) for an unknown name, 400 if it does not load."""
        await self._on_all("load", name)

    async def unload(self, name: str) -> None:
        """Finish a model's queue and let it go, on all workers. Problem(404) for an unknown name."""
        await self._on_all("unload", name)

    async def act(self, action: Action, name: str) -> str | None:
        """Load or unload a model on this worker; why that failed, None if it did not. Problem(404) as above."""
        if action == "load" and name not in self.models:
            self._discover(name)
        model = self.get(name)
        failed = None
        if action == "load":
            failed = await model.load()
        else:
            await model.unload()
        _tidy()
        return failed

    def index(self) -> list[dict[str, Any]]:
        """The models with their states, as the repository extension lists them."""
        return [
            {"name": name, "version": VERSION, "state": _INDEX_STATES[model.state], "reason": model.reason or ""}
            for name, model in self.models.items()
        ]

    async def drain(self) -> None:
        """Be ready no more, and wait until nothing is queued or computed."""
        self.draining = True
        for model in list(self.models.values()):
            await model.wait_idle()

    async def _on_all(self, action: Action, name: str) -> None:
        if name not in self.models and action == "load":
            self._discover(name)
        self.get(name)
        failed = await (self._broadcast(action, name) if self._broadcast else self.act(action, name))
        if failed is not None:
            raise Problem(400, f"the model {name!r} can't be loaded: {failed}")

    def _discover(self, name: str) -> None:
        """Take up a file that was put into the folder after the start."""
        for path in folder_files(self.settings.model_dir):
            if path.stem == name:  # compared with what is there: no name leads out of the folder
                self.models[name] = self._make_model(name, path)


def _tidy() -> None:
    """Free what a model left, and keep the collector from the others: to look through them all takes it so long that
    every request would feel it."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
