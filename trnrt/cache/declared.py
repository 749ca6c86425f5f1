"""Declarations of models, kept by the file's digest: a session of a cached plan needs no graph, and no ``onnx``.

    models/<key>.json    inputs, outputs, batch and parameters of a model that was read and checked by this trnrt; the
                         key is a digest of the file and of trnrt's own code

Only files that hold all of their data are kept: external data may change beside an unchanged file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.cache import write_whole
from trnrt.cache.code import PLANS, code_version
from trnrt.cache.plans import PlanCache
from trnrt.errors import CacheError, ModelFileError
from trnrt.importer import ImportedModel, TensorInfo, import_model
from trnrt.text import one_line

if TYPE_CHECKING:
    import onnx_ir as ir

_FOLDER = "models"
_ROOMS = (*PLANS, "cache/declared.py")
_PLAIN = ("metadata", "batch", "opset", "parameters", "digest", "batch_symbols")


def open_model(source: str | os.PathLike[str] | bytes, plans: PlanCache) -> ImportedModel:
    """The model as ``import_model`` gives it, from the cache if possible: then its graph is read on first use.

    Raises:
        ModelFileError: for anything that is wrong with the file. The graph's first use raises it if the file has
            changed since.
    """
    digest = _digest_of(source) if _is_usable(plans) else ""
    if not digest:
        return import_model(source)
    path = plans.directory / _FOLDER / f"{_digest(f'{digest} {code_version(_ROOMS)}'.encode())}.json"
    if (known := _read(path, source, digest)) is not None:
        return known
    model = import_model(source)
    if model.digest == digest:
        _write(path, model)
    return model


def _is_usable(plans: PlanCache) -> bool:
    """True if the cache may be read; a run says what is wrong with it."""
    try:
        return plans.enabled and not plans.prepare()
    except CacheError:
        return False


def _digest_of(source: str | os.PathLike[str] | bytes) -> str:
    """SHA-256 of a model's file or content; "" for a file that the importer must refuse."""
    if isinstance(source, bytes):
        return _digest(source)
    path = Path(source)
    try:
        if not path.is_file():  # reading a device or a pipe may never end
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path, source: str | os.PathLike[str] | bytes, digest: str) -> ImportedModel | None:
    """A kept declaration; None if there is none, or it is damaged."""
    try:
        document = json.loads(path.read_bytes())
        kept = document["content"]
        if document["digest"] != _digest(json.dumps(kept).encode()) or kept["digest"] != digest:
            return None
        return _model_of(kept, source)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _OpenFile:
    """A file that can still be read after its name is gone or another's, as a temporary one's."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self) -> bytes:
        """The whole content."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            return file.read()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # it could be opened
            os.close(self._descriptor)


def _model_of(kept: dict[str, Any], source: str | os.PathLike[str] | bytes) -> ImportedModel:
    name = "model" if isinstance(source, bytes) else Path(source).stem
    file = None if isinstance(source, bytes) else _OpenFile(Path(source))

    @cache
    def read() -> ir.Model:
        content = source if isinstance(source, bytes) else file.read()  # type: ignore[union-attr]
        again = import_model(content, name=name)
        if again.digest != kept["digest"]:
            raise ModelFileError(
                f"{one_line(str(source))}: the file was changed after the session was opened", hint="open a new one"
            )
        return again.model

    apart = None if kept["apart"] is None else replace(_make_model(kept, kept["apart"], name, read), batch_symbols=())
    return replace(_make_model(kept, kept, name, read), apart=apart)


def _make_model(kept: dict[str, Any], sides: dict[str, Any], name: str, read: Any) -> ImportedModel:
    plain: dict[str, Any] = {key: tuple(kept[key]) if isinstance(kept[key], list) else kept[key] for key in _PLAIN}
    plain["batch"] = sides["batch"]
    inputs, outputs = _read_infos(sides["inputs"]), _read_infos(sides["outputs"])
    return ImportedModel(name=name, inputs=inputs, outputs=outputs, read=read, **plain)


def _read_infos(kept: Sequence[Sequence[Any]]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name, dtype, tuple(shape)) for name, dtype, shape in kept)


def _list_sides(model: ImportedModel) -> dict[str, Any]:
    return {
        "inputs": [astuple(info) for info in model.inputs],
        "outputs": [astuple(info) for info in model.outputs],
        "batch": model.batch,
    }


def _write(path: Path, model: ImportedModel) -> None:
    """Keep a declaration; if that fails, the model is imported again, in a second."""
    content = {name: getattr(model, name) for name in _PLAIN} | _list_sides(model)
    content["apart"] = None if model.apart is None else _list_sides(model.apart)
    content = json.loads(json.dumps(content))  # as it is read
    document = {"digest": _digest(json.dumps(content).encode()), "content": content}
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, json.dumps(document).encode())
