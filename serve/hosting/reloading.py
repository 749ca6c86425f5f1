"""Reloaded settings: how the process that serves takes them over."""

from __future__ import annotations

import asyncio

from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.repository import Repository, _tidy
from trnrt.serve.processes.logs import log
from trnrt.serve.processes.rereading import Tables, read_changes, with_tables
from trnrt.serve.settings import ServeSettings
from trnrt.serve.settings_models import BY_COMPILING


class Reloader:
    """Takes over settings in this process, one after the other."""

    def __init__(self, repository: Repository) -> None:
        self._repository, self._changing, self._first = repository, asyncio.Lock(), repository.settings
        self._tasks: set[asyncio.Task[None]] = set()

    def reload_soon(self) -> None:
        """Read the settings again, and take them over; for a server of one process."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self) -> None:
        """See ``reload_soon``."""
        async with self._changing:
            repository = self._repository
            names = [model.name for model in repository.models.values()]
            read = await asyncio.to_thread(read_changes, repository.settings, names)
            if read is not None:
                await self._apply(read)

    async def apply(self, settings: ServeSettings) -> Tables:
        """Take over settings that the supervisor has read; return what models that do not load with them keep."""
        async with self._changing:
            return await self._apply(settings)

    async def _apply(self, settings: ServeSettings) -> Tables:
        """Keys and limits first, at once; then load the models again that have to be compiled for their settings."""
        repository, kept = self._repository, Tables()
        repository.settings = settings
        repository.admission.change(settings)
        _tell_of_fixed(self._first, settings)
        models = [one for one in repository.models.values() if isinstance(one, ServedModel)]
        stale = [model for model in models if model.change_settings(settings.for_model(model.name))]
        for model in stale:
            earlier = model.loaded_settings
            if await model.load() is not None and earlier is not None:
                kept[model.name] = {field: getattr(earlier, field) for field in BY_COMPILING}
        repository.settings = with_tables(settings, kept)
        for model in models:
            if model.name in kept:
                model.change_settings(repository.settings.for_model(model.name))
        if stale:
            _tidy()
            log("info", "reload_done", loaded=sorted({m.name for m in stale} - kept.keys()), kept=sorted(kept))
        return kept


def _tell_of_fixed(first: ServeSettings, settings: ServeSettings) -> None:
    """Log limits that gRPC's library has had since the start (``grpc.server.server_options``): it refuses what is over
    them before this server sees it."""
    if settings.grpc_port is None:
        return
    larger = [name for name in ("max_body_mib", "max_concurrency") if getattr(settings, name) > getattr(first, name)]
    if larger:
        reason = "HTTP has the larger limits now; gRPC keeps those that it started with until a restart"
        log("warning", "reload_partial", settings=larger, reason=reason)
