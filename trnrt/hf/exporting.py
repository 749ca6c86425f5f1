"""Export a Hugging Face folder with optimum, once: into trnrt's cache, or to a place that the caller names."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trnrt.cache import KernelCache
from trnrt.cache.entries import EXPORTS
from trnrt.errors import BackendError, CacheError, ModelFileError, OptionError
from trnrt.hf.tasks import Task
from trnrt.text import one_line, quote

MODEL = "model.onnx"
_CONFIG = "config.json"
_SUFFIXES = (".json", ".safetensors", ".bin")
"""The files that an export depends on."""


def read_config(folder: Path, task: Task) -> Any:
    """The model's configuration; ModelFileError if the folder has none, OptionError if it has no head for the task."""
    from transformers import AutoConfig

    if not (folder / _CONFIG).is_file():
        raise ModelFileError(
            f"{folder} is no Hugging Face folder: it has no {_CONFIG}",
            hint="for a model on the hub: hf download NAME --local-dir FOLDER",
        )
    try:
        config = AutoConfig.from_pretrained(str(folder))
    except Exception as error:  # whatever a broken one raises
        raise ModelFileError(f"{folder / _CONFIG} can't be read: {one_line(str(error))}") from None
    named = config.architectures or []
    if named and not any(task.head in name for name in named):
        raise OptionError(
            f"{folder} is a {named[0]}; {task.name} needs one with {task.head} in its name, and a new head would "
            "have random weights",
            hint="choose the task that the model was trained for",
        )
    return config


def find_export(folder: Path, task: Task, place: Path | None) -> Path:
    """The file of the exported model, in ``place`` or the cache. It is made if it isn't there."""
    place = place or _cached_place(folder, task)
    if not (place / MODEL).is_file():
        _export_whole(folder, task, place)
    return place / MODEL


def _cached_place(folder: Path, task: Task) -> Path:
    """The cache's folder for this export; CacheError if nothing can be kept there."""
    cache = KernelCache()
    if problem := cache.prepare():
        raise CacheError(problem, hint="give exported=, a folder for the ONNX model")
    exports = cache.directory / EXPORTS
    place = exports / f"{task.export}-{digest_folder(folder, task)}"
    with contextlib.suppress(OSError):  # the export says what can't be written
        exports.mkdir(mode=0o700, exist_ok=True)
        os.utime(place)  # the cache evicts what was not used for long
    return place


def digest_folder(folder: Path, task: Task) -> str:
    """A digest of all that an export depends on: the task, the exporters' versions, the configuration, the weights."""
    digest = hashlib.sha256()
    for name in ("optimum-onnx", "transformers", "torch"):
        digest.update(f"{name} {_version(name)}\n".encode())
    digest.update(task.export.encode())
    for path in sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"\n{quote(path.name)} {content}".encode())
    return digest.hexdigest()[:32]


def _export_whole(folder: Path, task: Task, place: Path) -> None:
    """Export beside ``place``, and move the files there, the model last: a reader finds all of it or none."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".") as temporary:
            _export(folder, task, Path(temporary))
            for file in sorted(Path(temporary).iterdir(), key=lambda file: file.name == MODEL):
                file.replace(place / file.name)
    except OSError as error:
        raise OptionError(
            f"{place} can't be written: {error.strerror}", hint="give exported=, another folder"
        ) from None


def _export(folder: Path, task: Task, place: Path) -> None:
    """Write the model to a folder. BackendError without optimum, ModelFileError if it can't export the model."""
    try:
        from optimum.exporters.onnx import main_export
    except ImportError:
        raise BackendError(
            "the export needs optimum-onnx, not installed here", hint="pip install 'trnrt[hf]'"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, on how optimum calls it and on lines of transformers
            main_export(str(folder), place, task=task.export, library_name="transformers", local_files_only=True)
    except Exception as error:  # optimum's, transformers' and torch's errors share no base class
        raise ModelFileError(
            f"optimum can't export {folder} for {task.export}: {one_line(str(error))}",
            hint="export it yourself (docs/howto/hugging-face.md), and give exported=, the folder of model.onnx",
        ) from error


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
