"""External data: tensors in files beside the model, read only from the model's folder."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from trnrt.errors import ModelFileError
from trnrt.importer.reading.limits import LARGEST_MODEL, in_words
from trnrt.importer.reading.protos import all_tensors
from trnrt.text import quote

_TOGETHER = "Keep the data file beside the model file, under the name that it was exported with."


def load(
    model: onnx.ModelProto, folder: Path | None, where: str, room: int, files: Mapping[str, bytes] | None = None
) -> bool:
    """Read all external data, up to ``room`` bytes, into ``model``; false if there was any, so that it has changed.

    ``files``: the contents of some files, which are then not looked for.
    """
    found = False
    for tensor in all_tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        found = True
        place = _Place(tensor, where)
        content = (files or {}).get(place.location)
        if folder is None and content is None:
            raise place.error("is in another file, which can't be found from bytes", "Give the model file's path.")
        room -= place.size
        if room < 0:
            raise ModelFileError(
                f"{where}: the model and its external data are larger than {in_words(LARGEST_MODEL)}",
                hint="trnrt takes models up to that size.",
            )
        data = place.take(content) if content is not None else place.read(folder or Path())
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = data
    return not found


def files_beside(content: bytes) -> list[str]:
    """The files of a model's external data, as it names them; the model was read, and so they are in its folder."""
    model = onnx.load_model_from_string(content)
    external = [t for t in all_tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL]
    return sorted({entry.value for tensor in external for entry in tensor.external_data if entry.key == "location"})


class _Place:
    """The place of a tensor's data, according to the model; everything is checked before use."""

    def __init__(self, tensor: onnx.TensorProto, where: str) -> None:
        self._entries = {entry.key: entry.value for entry in tensor.external_data}
        self._tensor, self._where = tensor.name, where
        self.location = self._entries.get("location", "")
        self.offset = self._number("offset", 0)
        self.size = self._needed_bytes(tensor)
        if self._number("length", self.size) != self.size:
            given = self._number("length", 0)
            raise self.error(f"has {given} bytes, but its shape and type need {self.size}", _TOGETHER)

    def error(self, problem: str, hint: str) -> ModelFileError:
        return ModelFileError(f"{self._where}: the data of tensor {quote(self._tensor)} {problem}", hint=hint)

    def read(self, folder: Path) -> bytes:
        """The tensor's bytes."""
        path = self._path(folder)
        try:
            # Links were resolved above: one that was put here since then is not followed.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                there = os.fstat(file.fileno()).st_size
                self._check_size(there)
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise self.error(f"can't be read from {quote(self.location)} ({error.strerror})", _TOGETHER) from error

    def take(self, content: bytes) -> bytes:
        """The tensor's bytes from the file's ``content``."""
        self._check_size(len(content))
        return content[self.offset : self.offset + self.size]

    def _check_size(self, there: int) -> None:
        end = self.offset + self.size
        if there < end:
            raise self.error(
                f"ends at byte {end} of {quote(self.location)}, which has only {there} bytes",
                "The data file is cut short or of another model: copy or export both files again.",
            )

    def _path(self, folder: Path) -> Path:
        location = self.location
        if not location or "\0" in location:
            raise self.error("is in another file, but the model doesn't say in which", _TOGETHER)
        base = Path(os.path.realpath(folder))
        path = Path(os.path.realpath(base / location))
        is_absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute()
        if is_absolute or not path.is_relative_to(base):
            raise self.error(
                f"should be in {quote(location)}, outside the model's folder, from which trnrt doesn't read",
                "Copy the data file itself, not a link to it, into the model file's folder.",
            )
        if not path.is_file():
            raise self.error(f"should be in the file {quote(location)}, which is missing", _TOGETHER)
        return path

    def _number(self, key: str, default: int) -> int:
        text = self._entries.get(key, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise self.error(f"has the {key} {quote(text)}, which is not a number of bytes", _TOGETHER)
        return int(text)

    def _needed_bytes(self, tensor: onnx.TensorProto) -> int:
        """Bytes that the tensor's shape and type need."""
        try:
            bits = ir.DataType(tensor.data_type).bitwidth
        except (TypeError, ValueError):
            raise self.error("has a type that can't be in another file", _TOGETHER) from None
        return (math.prod(map(int, tensor.dims)) * int(bits) + 7) // 8
