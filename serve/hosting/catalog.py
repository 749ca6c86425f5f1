"""The catalog: each version of each model, with the digest of its content, and the traffic between two versions.

Every worker has the same ``Catalog``, and the supervisor keeps it for their successors. A ``Change`` leads from one to
the next. All of them are plain data, which processes send to each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trnrt.cache.places import golden_file
from trnrt.errors import OptionError

ONLY_VERSION = "1"
"""The version of a model that is a file of its own, not a folder of versions."""
_CANARY = re.compile(r"(?:(?P<name>[^:=]+):)?(?P<version>[1-9][0-9]{0,17})=(?P<share>[0-9.]+)(?P<percent>%?)", re.ASCII)


@dataclass(frozen=True)
class Pinned:
    """A version of a model. Whatever happens to ``source``, its content is served from a private copy.

    ``file``: the copy's model file; ``folder``: the copy's folder; ``digest``: of the content. If no copy could be
    made, ``problem`` tells why, and the model can't be loaded. Without a digest and a problem, it is ``source`` itself.
    """

    name: str
    version: str
    source: Path
    file: Path
    is_versioned: bool = False
    digest: str = ""
    folder: Path | None = None
    problem: str = ""

    @property
    def key(self) -> str:
        """See ``key_of``."""
        return key_of(self.name, self.version, self.is_versioned)

    def name_source(self, text: str) -> str:
        """A message with the user's paths in place of the copy's."""
        users = {self.file: self.source, golden_file(self.file): golden_file(self.source)}
        if self.folder is not None:  # last, as it is in the others
            users[self.folder] = self.source.parent
        for mine, theirs in users.items():
            text = text.replace(str(mine), str(theirs))
        return text


@dataclass(frozen=True)
class Canary:
    """A version that gets a ``share``, 0 to 1, of the requests that name no version; the highest other one has the
    rest."""

    version: str
    share: float


@dataclass(frozen=True)
class Change:
    """Changes of one model: versions to load, to unload and to forget, and another canary (None: the same)."""

    name: str
    load: tuple[Pinned, ...] = ()
    unload: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()
    canary: Canary | None = None


@dataclass(frozen=True)
class Catalog:
    """All versions by key, those of them that are unloaded, and the canaries by model."""

    pinned: dict[str, Pinned]
    unloaded: frozenset[str] = frozenset()
    canaries: dict[str, Canary] = field(default_factory=dict)

    def of_model(self, name: str) -> dict[str, Pinned]:
        """The versions of a model, by key."""
        return {key: one for key, one in self.pinned.items() if one.name == name}

    def loaded_versions(self, name: str) -> list[str]:
        """The versions of a model that are not unloaded, the newest first."""
        return newest_first(one.version for key, one in self.of_model(name).items() if key not in self.unloaded)

    def apply(self, change: Change) -> Catalog:
        """The catalog after a change. A canary ends with its version."""
        loaded = {one.key: one for one in change.load}
        pinned = {key: one for key, one in (self.pinned | loaded).items() if key not in change.forget}
        unloaded = (self.unloaded - loaded.keys() | set(change.unload)) & pinned.keys()
        canaries = dict(self.canaries)
        if change.canary is not None:
            canaries[change.name] = change.canary
        after = replace(self, pinned=pinned, unloaded=unloaded)
        kept = {name: one for name, one in canaries.items() if one.version in after.loaded_versions(name)}
        return replace(after, canaries=kept)

    def copies(self) -> set[Path]:
        """The folders of the copies that are needed: unloaded versions need none."""
        return {one.folder for key, one in self.pinned.items() if one.folder is not None and key not in self.unloaded}


def key_of(name: str, version: str, is_versioned: bool) -> str:
    """The address of a version among all models: NAME, or NAME@VERSION if it is in a folder of versions."""
    return f"{name}@{version}" if is_versioned else name


def newest_first(versions: Iterable[str]) -> list[str]:
    """Versions, numbers as text, from the highest to the lowest."""
    return sorted(versions, key=int, reverse=True)


def parse_canary(text: str) -> tuple[str, Canary]:
    """``[NAME:]VERSION=SHARE`` as a name, "" if there is none, and the canary. OptionError for other texts."""
    found = _CANARY.fullmatch(text)
    share = _share(found["share"], found["percent"]) if found else None
    if found is None or share is None:
        raise OptionError(f"{text!r} is no version's share", hint="write it as 2=10%, or NAME:2=10%")
    return found["name"] or "", Canary(found["version"], share)


def _share(number: str, percent: str) -> float | None:
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None
