"""Where a bundle's model is, and a model's golden input: for callers that must not import the planner."""

from __future__ import annotations

import json
import os
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
