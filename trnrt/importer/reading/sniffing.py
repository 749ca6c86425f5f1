"""Guess the kind of a file that isn't an ONNX model, with a way out for each common mistake."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Guess:
    """A kind of file, and advice on what to do with it."""

    what: str
    hint: str


_EXPORT = "Export the model to ONNX first, for example with torch.onnx.export."
_CONVERT = "Convert the model to ONNX first, with tf2onnx."
_IMAGE = "The model comes first; an image is an input, given with --input."

_SIGNATURES: tuple[tuple[int, bytes, Guess], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", Guess("a PNG image", _IMAGE)),
    (0, b"\xff\xd8\xff", Guess("a JPEG image", _IMAGE)),
    (0, b"\x93NUMPY", Guess("a NumPy array", "The model comes first; arrays are given with --input.")),
    (0, b"PK\x03\x04", Guess("a zip archive (a PyTorch .pt file, a Keras model or an .npz?)", _EXPORT)),
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        Guess("an HDF5 file (a Keras .h5 model?)", _CONVERT),
    ),
    (4, b"TFL3", Guess("a TensorFlow Lite model", _CONVERT)),
    (4, b"ORTM", Guess("an onnxruntime .ort model", "Give the .onnx file that it was made from.")),
    (8, b'{"', Guess("a safetensors file", _EXPORT)),
    (0, b"GGUF", Guess("a GGUF file", _EXPORT)),
    (0, b"\x1f\x8b", Guess("a gzip archive", "Unpack it first.")),
    (0, b"version https://git-lfs", Guess("a Git LFS pointer to a file that was not downloaded", "Run: git lfs pull")),
    *((0, bytes((0x80, n)), Guess("a Python pickle, which trnrt never loads", _EXPORT)) for n in (2, 3, 4, 5)),
)


def guess(data: bytes) -> Guess | None:
    """The kind of file that ``data`` looks like; None if it is unknown."""
    for offset, signature, found in _SIGNATURES:
        if data.startswith(signature, offset):
            return found
    head = data[:64].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return Guess("a web page", "Download the file itself, not the page that shows it.")
    return Guess("a text file", "Give the path of an .onnx file.") if _is_text(data[:4096]) else None


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut may have split the last character.
        if error.start < len(data) - 3:
            return False
        text = data[: error.start].decode("utf-8")
    return bool(text) and all(c.isprintable() or c in "\t\r\n\f" for c in text)
