"""Keys with names and limits: the tables ``[key.NAME]`` of the settings' file.

Only hashes are kept: the settings are sent to workers, and no message, log line or traceback may have a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from errno import EINVAL
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from trnrt.serve.settings_words import own_words

SOURCES = ("sha256", "file", "env")
LARGEST_KEY = 4096
"""The most bytes of a key: uvicorn refuses headers much longer than this."""
MOST_KEYS = 1000
"""The most named keys: each is a label of a metric."""
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_Rate = Annotated[float, Field(gt=0, le=1e9)]
_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Key(BaseModel):
    """The SHA-256 hash of a key, and what its holder may do. None sets no limit.

    ``burst``: requests at once after a pause, by default those of one second. ``models``: the names of those that the
    holder may use, by default all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    sha256: str = Field(repr=False)
    requests_per_second: _Rate | None = None
    burst: _Count | None = None
    concurrency: _Count | None = None
    rows_per_second: _Rate | None = None
    models: list[str] | None = None
    admin: bool = False

    @model_validator(mode="before")
    @classmethod
    def _read_source(cls, table: Any) -> Any:
        """Replace a file's name or an environment variable's by the hash of the key in it."""
        if not isinstance(table, Mapping):
            raise ValueError("a key is a table of settings")
        given = [source for source in SOURCES if source in table]
        if len(given) != 1:
            what = " and ".join(given) or "none of them"
            raise ValueError(f"give one of sha256, file and env, not {what}")
        rest = {name: value for name, value in table.items() if name not in SOURCES}
        return {**rest, "sha256": _read_hash(given[0], table[given[0]])}

    @model_validator(mode="after")
    def _check_limits(self) -> Key:
        """Refuse settings that contradict each other."""
        if self.burst is not None and self.requests_per_second is None:
            raise ValueError("burst has no meaning without requests_per_second")
        if self.admin and self.models is not None:
            raise ValueError("admin = true lets its holder load any model: leave admin or models out")
        if self.models is not None and not self.models:
            raise ValueError("models is empty: name the models that the key is for, or leave it out for all")
        return self


def read_keys(tables: Any) -> dict[str, Key]:
    """The keys by name. ValueError names the table and the setting, and never a key."""
    if not isinstance(tables, Mapping):
        raise ValueError("keys are tables of the settings' file, as [key.alice]")
    if len(tables) > MOST_KEYS:
        raise ValueError(f"there are {len(tables)} keys; {MOST_KEYS} is the limit")
    return {name: table if isinstance(table, Key) else _read_key(name, table) for name, table in tables.items()}


def all_keys(plain: Iterable[SecretStr], named: dict[str, Key]) -> dict[str, Key]:
    """The keys by name; those of TRNRT_API_KEYS are called key-1, key-2 and so on, and may do everything.

    ValueError if two have one name, or one key has two names.
    """
    secrets = dict.fromkeys(key.get_secret_value() for key in plain)
    unnamed = {f"key-{n}": Key(sha256=hash_key(secret.encode()), admin=True) for n, secret in enumerate(secrets, 1)}
    if both := sorted(unnamed.keys() & named.keys()):
        raise ValueError(f"[key.{both[0]}]: {both[0]} is the name of one of TRNRT_API_KEYS; take another name")
    names: dict[str, str] = {}
    for name, key in (unnamed | named).items():
        if (other := names.setdefault(key.sha256, name)) != name:
            raise ValueError(f"[key.{name}]: this key is that of {other}, too; each name needs a key of its own")
    return unnamed | named


def hash_key(key: bytes) -> str:
    """The SHA-256 hash of a key, in hexadecimal digits."""
    return sha256(key).hexdigest()


def _read_key(name: str, table: Any) -> Key:
    if not _NAME.fullmatch(name):
        raise ValueError(f"[key.{name!r}]: a key's name has up to 64 letters, digits and ._-, and begins with no mark")
    try:
        return Key.model_validate(table)
    except ValidationError as error:
        raise ValueError("; ".join(_error_text(name, dict(item)) for item in error.errors())) from None


def _error_text(name: str, item: Mapping[str, Any]) -> str:
    text = str(item["msg"]).removeprefix("Value error, ")
    if not item["loc"]:
        return f"[key.{name}]: {text}"
    if item["type"] == "extra_forbidden":
        # Its value may be a key.
        known = ", ".join((*SOURCES, *(field for field in Key.model_fields if field not in SOURCES)))
        return f"[key.{name}]: {item['loc'][0]!r} is no setting of a key; these are {known}"
    shown = f", not {item['input']!r}" if isinstance(item["input"], int | float) else ""
    return f"[key.{name}] {item['loc'][0]}: {own_words(text)}{shown}"


def _read_hash(source: str, value: Any) -> str:
    """The hash that a table gives, or that of the key that it leads to."""
    if not isinstance(value, str):
        raise ValueError(f"{source} is no text")
    if source == "sha256":
        if not _HASH.fullmatch(value.lower()):
            raise ValueError("sha256 is no hash of 64 hexadecimal digits; printf %s KEY | sha256sum makes one")
        return value.lower()
    key = _read_file(value) if source == "file" else os.environ.get(value, "").strip().encode()
    # No text shows the value: it may be the key itself, written in the wrong place.
    if not key:
        raise ValueError(
            "the file of file is empty" if source == "file" else "the variable of env is not set, or empty"
        )
    if len(key) > LARGEST_KEY:
        raise ValueError(f"the key of {source} has more than {LARGEST_KEY} bytes, the limit for a key")
    return hash_key(key)


def _read_file(name: str) -> bytes:
    try:
        if Path(name).exists() and not Path(name).is_file():  # a pipe would block the server that reads it again
            raise OSError(EINVAL, "it is no regular file")
        with Path(name).open("rb") as file:
            return file.read(LARGEST_KEY + 64).strip()
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or type(error).__name__).lower()
        raise ValueError(f"can't read the file of file: {reason}") from None
