"""A model's version, by content: a replica must not serve another file of the same name."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from trnrt.importer import import_model
from trnrt.validate.golden import golden_file

_DIGITS = 16


def version_of(path: Path) -> str:
    """The digest of a model's file, its external data and its golden input. ModelFileError if it can't be read."""
    digest = sha256(import_model(path).digest.encode("ascii"))
    golden = golden_file(path)
    if golden.is_file():
        digest.update(golden.read_bytes())
    return digest.hexdigest()[:_DIGITS]
