"""Reading the settings again: what of them may change while the server runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trnrt.errors import TrnrtError
from trnrt.serve.hosting.files import find_sources
from trnrt.serve.http.problems import error_text
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import RELOADED, ServeSettings, check_names

Tables = dict[str, dict[str, Any]]
"""Settings of models, as in ``ServeSettings.model``."""


def read_changes(current: ServeSettings, models: Iterable[str]) -> ServeSettings | None:
    """The settings as the file and the key files have them now; None if they are wrong, which changes nothing.

    ``models``: the names of those that are served. A setting that needs a restart keeps its value. The log has the
    names of settings, and never their values, as they may be keys.
    """
    try:
        read = current.read_again()
        check_names(read, [*models, *_found_names(current)])
    except TrnrtError as error:
        log("error", "reload_failed", file=str(current.config), reason=error_text(error), kept="the settings so far")
        return None
    if current.has_keys and not read.has_keys:  # as of a file that is being written
        reason = "there are no keys any more, so that everybody would be let in: restart the server for that"
        log("error", "reload_failed", file=str(current.config), reason=reason, kept="the settings so far")
        return None
    changed = [name for name in type(current).model_fields if getattr(read, name) != getattr(current, name)]
    fixed = [name for name in changed if name not in RELOADED]
    if fixed:
        log("warning", "reload_ignored", settings=fixed, reason="a change of these needs a restart")
    log("info", "reloaded", settings=[name for name in changed if name not in fixed])
    return read.model_copy(update={name: getattr(current, name) for name in fixed})


def _found_names(settings: ServeSettings) -> list[str]:
    """The models that lie where the settings say: one may be loaded later."""
    try:
        return list(find_sources(settings))
    except TrnrtError:  # that one of them is wrong is told when it is loaded
        return []


def with_tables(settings: ServeSettings, tables: Tables) -> ServeSettings:
    """The settings with these values in the models' tables."""
    own = {name: {**settings.model.get(name, {}), **table} for name, table in tables.items()}
    return settings.model_copy(update={"model": {**settings.model, **own}}) if own else settings
