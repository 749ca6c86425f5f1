"""Plans for changes of the catalog: to load, to unload, to divide traffic. The worker that has the request makes them.

Loading a model takes its files as they are now. Of a folder of versions it loads those that the policy wants, if they
are new, changed or not ready, and forgets those that the policy wants no more. Naming a version, as in NAME@2, loads it
whatever the policy wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from trnrt.errors import TrnrtError
from trnrt.serve.hosting.catalog import Canary, Catalog, Change, Pinned, newest_first
from trnrt.serve.hosting.files import Source, sources_of
from trnrt.serve.hosting.pins import Store
from trnrt.serve.hosting.policies import choose_versions, versions_wanted
from trnrt.serve.http.problems import Problem, error_text
from trnrt.serve.http.tensors import value_text
from trnrt.serve.settings import ServeSettings

Action = Literal["load", "unload"]
Phase = Literal["prepare", "commit", "abort"]
"""A change is prepared on all workers, and then committed on all or aborted on all."""
IsReady = Callable[[str], bool]
"""True if the version with this key is ready."""


def plan_load(settings: ServeSettings, catalog: Catalog, store: Store, address: str, is_ready: IsReady) -> Change:
    """The change that loads a model, or one version of it. It copies files: call it off the event loop.

    Problem: 404 if there is no such file, 400 if it can't be served or copied.
    """
    name, version = _split(address)
    known = catalog.of_model(name)
    try:
        there = sources_of(settings, name)
        wanted = [version] if version else _choose(settings, catalog, name, there)
    except TrnrtError as error:
        raise Problem(400, f"the model {address!r} can't be loaded: {error_text(error)}") from None
    if not there or version not in ("", *there):
        _refuse_missing(catalog, name, version, there)
    copies: list[Pinned] = []
    for one in wanted:
        pinned = store.pin(there[one])
        served = known.get(pinned.key)
        if pinned.problem:
            store.discard(copy.folder for copy in copies)
            raise Problem(400, f"the model {pinned.key!r} can't be loaded: {pinned.problem}")
        if served is None or version or not pinned.is_versioned or pinned.digest != served.digest:
            copies.append(pinned)
        elif is_ready(pinned.key):
            store.discard([pinned.folder])
        else:
            copies.append(pinned)
    keys = {there[one].key for one in wanted}
    replaced = () if version else tuple(key for key in known if key not in keys)
    return Change(name, tuple(copies), forget=replaced)


def plan_unload(catalog: Catalog, address: str) -> Change:
    """The change that unloads a model, or one version of it. Problem(404) if there is none."""
    name, version = _split(address)
    keys = tuple(key for key, one in catalog.of_model(name).items() if version in ("", one.version))
    if not keys:
        _refuse_missing(catalog, name, version, {})
    return Change(name, unload=keys)


def plan_canary(catalog: Catalog, name: str, canary: Canary) -> Change:
    """The change that gives a version a share of its model's requests. Problem 404 if it isn't served, 400 if no other
    version is."""
    loaded = catalog.loaded_versions(name)
    if canary.version not in loaded:
        _refuse_missing(catalog, name, canary.version, {})
    if len(loaded) == 1:
        text = f"version {canary.version} is the only one of model {value_text(name)} that is served"
        raise Problem(400, f"{text}; load another one to divide its requests")
    return Change(name, canary=canary)


def _choose(settings: ServeSettings, catalog: Catalog, name: str, there: Mapping[str, Source]) -> list[str]:
    policy = versions_wanted(settings, name)
    return choose_versions(there, policy, catalog.canaries.get(name)) if there else []


def _split(address: str) -> tuple[str, str]:
    """A model's name and a version's number, "" if it names none. Problem(400) for a digest."""
    name, _, version = address.partition("@")
    if version and not version.isdecimal():
        raise Problem(400, f"{value_text(address)} is no version to load or unload; write NAME or NAME@2")
    return name, version


def _refuse_missing(catalog: Catalog, name: str, version: str, there: Mapping[str, Source]) -> None:
    known = catalog.of_model(name)
    if not known and not there:
        raise Problem(404, missing_text(catalog, name))
    if version:
        versions = newest_first({*there, *(one.version for one in known.values())})
        raise Problem(404, f"model {value_text(name)} has no version {version}; its versions are {', '.join(versions)}")
    files = ", ".join(repr(str(one.source)) for one in known.values())
    raise Problem(400, f"the model {name!r} can't be loaded: its file is gone: {files}")


def missing_text(catalog: Catalog, name: str) -> str:
    """The text for a name that no model has."""
    names = dict.fromkeys(one.name for one in catalog.pinned.values())
    return f"there is no model {name!r}; the models are {', '.join(map(repr, names))}"
