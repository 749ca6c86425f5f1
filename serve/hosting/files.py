"""The files that are served: their models' names and versions.

A model is a file, ``NAME.onnx``, or a bundle (``trnrt compile -o DIR``), or a folder of versions in ``--model-dir``:
``NAME/1/model.onnx``, or ``NAME/1`` as a bundle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trnrt.cache.places import golden_file, is_bundle, model_in
from trnrt.errors import ModelFileError, OptionError
from trnrt.importer import check_file
from trnrt.serve.hosting.catalog import ONLY_VERSION, key_of
from trnrt.serve.settings import ServeSettings

LONGEST_NAME = 128
_NAME = re.compile(r"\w[\w.-]*")
_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_VERSION_FILE = "model.onnx"
Sources = dict[str, dict[str, "Source"]]
"""The sources of each model by version."""


@dataclass(frozen=True)
class Source:
    """A version's file or bundle. ``is_versioned``: it is in a folder of versions."""

    name: str
    version: str
    path: Path
    is_versioned: bool = False

    @property
    def key(self) -> str:
        """See ``key_of``."""
        return key_of(self.name, self.version, self.is_versioned)


def find_sources(settings: ServeSettings) -> Sources:
    """All versions of all models, the named ones first. OptionError or ModelFileError for what can't be served."""
    found: Sources = {}
    for source in _all_sources(settings):
        _check_source(source, settings)
        _add(found, source)
    if not found:
        raise OptionError("no models to serve", hint="name .onnx files, or a folder of them with --model-dir")
    return found


def check_readable(sources: Iterable[Source]) -> None:
    """ModelFileError, the first file's, if none of the models can be read: the server would serve nothing."""
    first: ModelFileError | None = None
    for source in sources:
        try:
            if not is_bundle(source.path):
                check_file(source.path)
            return
        except ModelFileError as error:
            first = first or error
    if first is not None:
        raise first


def sources_of(settings: ServeSettings, name: str) -> dict[str, Source]:
    """The versions of one model that are there now; it may have been put into the folder after the start. Errors as
    above, for this model alone."""
    found: Sources = {}
    # Compared with the files there: no name leads out of the folder.
    for source in _all_sources(settings):
        if source.name == name and (source.path.exists() or source.is_versioned):
            _check_source(source, settings)
            _add(found, source)
    return found.get(name, {})


def _all_sources(settings: ServeSettings) -> Iterator[Source]:
    for path in settings.models:
        yield Source(_name_of(path), ONLY_VERSION, path)
    if settings.model_dir is None:
        return
    folder = settings.model_dir
    try:
        for path in sorted(folder.iterdir()):
            if is_bundle(path) or (path.suffix == ".onnx" and path.is_file()):
                yield Source(_name_of(path), ONLY_VERSION, path)
            elif not path.name.startswith(".") and path.is_dir():
                yield from _versions(path)
    except OSError as error:
        raise OptionError(f"can't read --model-dir {str(folder)!r}: {(error.strerror or str(error)).lower()}") from None


def _name_of(path: Path) -> str:
    """A model's name: that of its file, without the ending; a bundle has a file in it."""
    return (model_in(path) if is_bundle(path) else path).stem


def _versions(folder: Path) -> Iterator[Source]:
    """The versions in a model's folder: bundles, or folders with a model file, called by numbers. One that has neither
    may not be there yet."""
    there = [path for path in folder.iterdir() if _VERSION.fullmatch(path.name)]
    for path in sorted(there, key=lambda path: int(path.name)):
        if is_bundle(path):
            yield Source(folder.name, path.name, path, is_versioned=True)
        elif (file := path / _VERSION_FILE).is_file():
            yield Source(folder.name, path.name, file, is_versioned=True)


def _add(found: Sources, source: Source) -> None:
    """Add a source. OptionError if another one has its name."""
    versions = found.setdefault(source.name, {})
    other = next((one for one in versions.values() if not (one.is_versioned and source.is_versioned)), None)
    if other is not None and source.path.resolve() != other.path.resolve():
        told = f"two models are called {source.name!r}: {str(other.path)!r} and {str(source.path)!r}"
        raise OptionError(told, hint="a model's name is its file's, or its folder's; rename one of them")
    versions[source.version] = source


def _check_source(source: Source, settings: ServeSettings) -> None:
    if not is_bundle(source.path) and not source.path.is_file():
        raise _no_model(source.path)
    if not _NAME.fullmatch(source.name) or len(source.name) > LONGEST_NAME:
        text = f"{str(source.path)!r} can't be served: {source.name!r} is no name of a model"
        hint = f"rename it: up to {LONGEST_NAME} letters, digits, _, - and ., the first one a letter, a digit or _"
        raise OptionError(text, hint=hint)
    if source.path not in settings.models and not settings.follow_links and settings.model_dir is not None:
        for path in (source.path, golden_file(source.path)):
            _check_links(path, settings.model_dir)


def _no_model(path: Path) -> ModelFileError:
    if not path.is_dir():
        return ModelFileError(f"no such file: {str(path)!r}")
    hint = f"trnrt compile MODEL -o {path} makes one; --model-dir serves the .onnx files of a folder"
    return ModelFileError(f"{str(path)!r} is a folder, and no bundle", hint=hint)


def _check_links(path: Path, folder: Path) -> None:
    """OptionError if a link leads out of the folder. Links inside it are fine: Kubernetes mounts settings by them."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        text = f"{str(path)!r} is a link out of --model-dir, to {str(real)!r}"
        raise OptionError(text, hint="copy the file itself into the folder, or allow such links with --follow-links")
