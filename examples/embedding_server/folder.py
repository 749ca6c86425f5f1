"""Read a sentence-transformers folder: its longest text, its prompt, its pooling and its normalisation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POOLINGS = ("mean", "cls")
"""Ways to make one vector of a text's tokens that ``export.py`` knows."""
_LARGEST = 10**6
"""Tokenizers without a limit write a larger number."""


class FolderError(ValueError):
    """The folder is not as sentence-transformers writes it, or its model has a part that this example can't run."""


@dataclass(frozen=True)
class Folder:
    """A sentence-transformers folder.

    ``max_length``: tokens of a text, with the special ones; longer texts are truncated.
    ``pooling``: one of POOLINGS. ``normalize``: embeddings have length 1. ``lower``: texts become lower case first.
    ``prompt``: stands before each text.
    """

    path: Path
    max_length: int
    pooling: str
    normalize: bool
    lower: bool
    prompt: str


def read_folder(path: Path) -> Folder:
    """Read the folder's settings. FolderError for files that are missing or wrong, and for other modules."""
    try:
        return _read_settings(path)
    except (AttributeError, KeyError, TypeError) as error:
        raise FolderError(f"{path}: a settings file is not as sentence-transformers writes it: {error!r}") from None


def _read_settings(path: Path) -> Folder:
    kinds = [(module["type"].rpartition(".")[2], path / module["path"]) for module in _read(path / "modules.json")]
    names = [kind for kind, _ in kinds]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        wanted = "Transformer, Pooling and, if need be, Normalize"
        raise FolderError(f"{path / 'modules.json'} has the modules {', '.join(names)}; this example takes {wanted}")
    limits = _read(path / "sentence_bert_config.json", optional=True)
    texts = _read(path / "config_sentence_transformers.json", optional=True)
    prompt = (texts.get("prompts") or {}).get(texts.get("default_prompt_name") or "", "")
    return Folder(
        path,
        _max_length(path, limits),
        _pooling(kinds[1][1] / "config.json"),
        "Normalize" in names,
        bool(limits.get("do_lower_case")),
        prompt,
    )


def _pooling(path: Path) -> str:
    """The way of pooling; files before sentence-transformers 5.2 have a flag for each."""
    settings = _read(path)
    flags = [
        name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for name in settings
        if name.startswith("pooling_mode_") and settings[name] is True
    ]
    found = settings.get("pooling_mode") or "+".join(flags)
    if found not in POOLINGS:
        raise FolderError(f"{path} pools by {found or 'nothing'}; this example knows {' and '.join(POOLINGS)}")
    if settings.get("include_prompt") is False:
        raise FolderError(f"{path} leaves the prompt out of the mean; this example does not")
    return str(found)


def _max_length(path: Path, limits: dict[str, Any]) -> int:
    """The most tokens of a text: what the folder says, but no more than the model has positions."""
    positions = _read(path / "config.json").get("max_position_embeddings")
    own = _read(path / "tokenizer_config.json", optional=True).get("model_max_length")
    found = [size for size in (limits.get("max_seq_length") or own, positions) if size and size < _LARGEST]
    if not found:
        raise FolderError(f"{path} names no max_seq_length; write it into sentence_bert_config.json")
    return int(min(found))


def _read(path: Path, *, optional: bool = False) -> Any:
    """A JSON file; {} for one that is optional and missing."""
    if optional and not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FolderError(
            f"can't read {path}: {error.strerror}; it is part of a sentence-transformers folder"
        ) from None
    except ValueError as error:
        raise FolderError(f"{path} is no JSON: {error}") from None
