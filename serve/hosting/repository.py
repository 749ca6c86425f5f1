"""The models that a worker serves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

from trnrt.serve.hosting.admission import Admission
from trnrt.serve.hosting.files import folder_files, model_files
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.tensors import value_text
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import ServeSettings

Action = Literal["load", "unload"]
Broadcast = Callable[[Action, str], Coroutine[Any, Any, str | None]]
"""Does an action to a model on all workers; returns why it failed on one of them."""

_INDEX_STATES = {"loading": "LOADING", "ready": "READY", "unloading": "UNLOADING"}
"""The extension's states; all others are UNAVAILABLE."""


class Repository:
    """The models by name, and whether the server takes requests.

    ``files``: the models at the start, by default those of the settings. ``unloaded``: the names of those not to load.
    ``broadcast`` performs an action on all workers; by default on this one alone. ``core_lost`` is set when a device
    failed so that this process can't use it again.
    """

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        *,
        files: dict[str, Path] | None = None,
        unloaded: frozenset[str] = frozenset(),
    ) -> None:
        self.settings, self.metrics = settings, metrics
        self.admission = Admission(settings, metrics)
        self.core_lost = asyncio.Event()
        self.others_loading = False
        """True if other workers still load their models: this one answers for all."""
        self.broadcast: Broadcast = self.act
        self._unloaded = unloaded
        known = model_files(settings) if files is None else files
        self.models: dict[str, Model] = {name: self._make_model(name, path) for name, path in known.items()}

    def _make_model(self, name: str, path: Path) -> Model:
        """A model that is not loaded yet."""
        return ServedModel(name, path, self.settings, self.metrics, self.core_lost)

    def find(self, name: str, version: str = "") -> Model:
        """The model called ``name``, in any state; "" is the version of the server's choice.

        Problem(404) if there is no such model, or no such version of it.
        """
        model = self.models.get(name)
        if model is None:
            raise Problem(404, f"there is no model {name!r}; the models are {', '.join(map(repr, self.models))}")
        if version not in ("", model.version):
            known = f"its only version is {model.version}"
            raise Problem(404, f"model {value_text(name)} has no version {value_text(version)}; {known}")
        return model

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
        """Why models are not ready, by name."""
        return {
            name: model.reason or model.state
            for name, model in self.models.items()
            if model.state not in ("ready", "unloaded")
        }

    async def start(self) -> None:
        """Load every model, one after the other. One that fails does not stop the others, unless the core is lost."""
        for name, model in list(self.models.items()):
            if self.core_lost.is_set():
                return
            if name in self._unloaded:
                await model.unload()
            elif model.state == "loading":  # unless somebody loaded or unloaded it meanwhile
                await model.load()
        _tidy()
        log("info", "models_loaded", ready=[m.name for m in self.models.values() if m.state == "ready"])

    async def act_on_all(self, action: Action, name: str) -> None:
        """Load or unload a model on all workers. Problem(404) for an unknown name, 400 if it does not load."""
        self._find(action, name)
        failed = await self.broadcast(action, name)
        if failed is not None:
            raise Problem(400, f"the model {name!r} can't be loaded: {failed}")

    async def act(self, action: Action, name: str) -> str | None:
        """Load or unload a model on this worker; return why that failed. Problem(404) for an unknown name.

        A loaded model is reloaded; an unloaded one finishes its queue.
        """
        model = self._find(action, name)
        failed = None
        if action == "load":
            failed = await model.load()
        else:
            await model.unload()
        _tidy()
        return failed

    def index(self) -> list[dict[str, Any]]:
        """The models with their states, as the repository extension lists them."""
        rows = []
        for name, model in self.models.items():
            state = _INDEX_STATES.get(model.state, "UNAVAILABLE")
            rows.append({"name": name, "version": model.version, "state": state, "reason": model.reason or ""})
        return rows

    async def drain(self) -> None:
        """Become not ready, and wait until nothing is queued or running."""
        self.admission.draining = True
        for model in list(self.models.values()):
            await model.wait_idle()

    def _find(self, action: Action, name: str) -> Model:
        """The model; to be loaded, it may be a file that was put into the folder after the start."""
        if action == "load" and name not in self.models:
            for path in folder_files(self.settings.model_dir):
                if path.stem == name:  # compared with the files there: no name leads out of the folder
                    self.models[name] = self._make_model(name, path)
        return self.find(name)


def _tidy() -> None:
    """Release a model's leftovers, and exempt the rest from garbage collection: a full pass would delay every
    request."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
