"""The choice of a model's versions to serve, and the division of requests between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trnrt.errors import OptionError
from trnrt.serve.hosting.catalog import Canary, Catalog, newest_first, parse_canary
from trnrt.serve.hosting.files import Source, Sources, find_sources
from trnrt.serve.hosting.pins import Store
from trnrt.serve.settings import ServeSettings


def versions_wanted(settings: ServeSettings, _name: str) -> str:
    """The policy for a model: "latest", "all", or versions separated by commas."""
    return settings.versions


def choose_versions(sources: Mapping[str, Source], policy: str, canary: Canary | None) -> list[str]:
    """The versions to serve of those that are there; a file of its own has only one.

    With a canary, "latest" are the canary's version and the highest other one. OptionError if no wanted version is
    there.
    """
    there = newest_first(sources)
    if policy == "all" or not all(source.is_versioned for source in sources.values()):
        return there
    if policy != "latest":
        wanted = policy.split(",")
        if not (found := [version for version in there if version in wanted]):
            name = next(iter(sources.values())).name
            text = f"--versions {policy}: model {name!r} has none of them; its versions are {', '.join(there)}"
            raise OptionError(text, hint="latest serves the highest one, all serves every one")
        return found
    if canary is None or canary.version not in there:
        return there[:1]
    others = [version for version in there if version != canary.version]
    return newest_first([canary.version, *others[:1]])


def canaries_of(settings: ServeSettings, sources: Sources) -> dict[str, Canary]:
    """The settings' canaries by model. OptionError if one has no such version, or no other one beside it."""
    found: dict[str, Canary] = {}
    for text in settings.canary:
        named, canary = parse_canary(text)
        having = [name for name, versions in sources.items() if canary.version in versions and len(versions) > 1]
        names = [name for name in having if named in ("", name)]
        if not names:
            model = f"model {named!r} has not" if named else "no model has"
            raise OptionError(f"--canary {text!r}: {model} version {canary.version} and another one beside it")
        if len(names) > 1:
            raise OptionError(
                f"--canary {text!r}: the models {_list(names)} have version {canary.version}",
                hint=f"name one: --canary {names[0]}:{text}",
            )
        if names[0] in found:
            raise OptionError(f"--canary gives model {names[0]!r} two canaries", hint="a model has one at a time")
        found[names[0]] = canary
    return found


def chosen_sources(settings: ServeSettings) -> tuple[list[Source], dict[str, Canary]]:
    """The files to serve at the start, and the canaries. OptionError or ModelFileError for wrong ones."""
    sources = find_sources(settings)
    canaries = canaries_of(settings, sources)
    chosen: list[Source] = []
    for name, versions in sources.items():
        wanted = choose_versions(versions, versions_wanted(settings, name), canaries.get(name))
        if name in canaries and (canaries[name].version not in wanted or len(wanted) < 2):
            text = f"--canary: --versions {settings.versions} leaves model {name!r} only {_list(wanted)}"
            raise OptionError(text, hint="serve the canary's version and another one")
        chosen += [versions[version] for version in wanted]
    return chosen, canaries


def pin_sources(sources: Iterable[Source], canaries: dict[str, Canary], store: Store) -> Catalog:
    """The catalog at the start: copies of all files to serve."""
    pinned = [store.pin(source) for source in sources]
    return Catalog({one.key: one for one in pinned}, canaries=canaries)


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
