"""A bundle's files, and a model's golden input: for callers that must not import the planner."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from trnrt.errors import ModelFileError
from trnrt.text import quote

MANIFEST = "bundle.json"
_GOLDEN = ".golden.npz"


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """True for the directory of a bundle."""
    return Path(path, MANIFEST).is_file()


def model_in(bundle: Path) -> Path:
    """The model's file of a bundle. ModelFileError if its manifest can't be read."""
    try:
        return model_place(bundle, json.loads((bundle / MANIFEST).read_bytes())["model"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{quote(str(bundle / MANIFEST))} is damaged: {type(error).__name__}: {error}"
        raise ModelFileError(text, hint="compile the model again: trnrt compile MODEL -o DIR") from None


def model_place(bundle: Path, name: str) -> Path:
    """The place of a model's file in a bundle; nothing but the last part of ``name`` counts."""
    return bundle / "model" / Path(name).name


def golden_file(model: Path) -> Path:
    """The file of a model's own golden input, if it has one: ``digits.golden.npz`` beside ``digits.onnx``."""
    return model.with_name(model.stem + _GOLDEN)


def check_writers(directory: Path) -> None:
    """ModelFileError if every user may write to a file of it, unless it lies on a read-only volume."""
    try:
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            return
        found = next((path for path in paths_in(directory) if _is_open(path)), None)
    except OSError as error:
        raise ModelFileError(f"can't read {quote(str(directory))}: {(error.strerror or str(error)).lower()}") from None
    if found is not None:
        raise ModelFileError(
            f"every user may write to {quote(str(found))}, and trnrt would run what they write",
            hint=f"chmod -R o-w {directory}",
        )


def paths_in(directory: Path) -> Iterator[Path]:
    """A directory, and everything in it; links to directories are not followed."""
    yield directory
    for folder, folders, files in os.walk(directory):
        yield from (Path(folder, name) for name in (*folders, *files))


def _is_open(path: Path) -> bool:
    """True if every user may write to it; a link's own permissions mean nothing."""
    mode = path.lstat().st_mode
    return bool(mode & stat.S_IWOTH) and not stat.S_ISLNK(mode)
