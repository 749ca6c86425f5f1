"""The settings that a model may have of its own: the tables ``[model.NAME]`` of the settings' file.

A table's values have the types and limits of the server's settings of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, field_validator

from trnrt.errors import OptionError
from trnrt.serve.settings_words import own_words

AT_ONCE = ("batching", "max_delay_ms", "max_queue", "max_wait_ms", "max_tensor_elements", "request_timeout", "shadow")
"""A reload changes these in a model that serves."""
BY_COMPILING = (
    "instances",
    "max_rows",
    "max_batch",
    "buckets",
    "target",
    "dtype",
    "calibration",
    "narrow",
    "compiled",
    "fallback",
    "shape",
    "lengths",
    "pad",
    "max_instructions",
)
"""For these the model is loaded again; the old one serves meanwhile."""
BY_MODEL = (*AT_ONCE, *BY_COMPILING)
MOST_ROWS = 1024
"""The largest ``max_batch``."""


class Readers(BaseModel):
    """The readers of values from the environment and the file, for the server's settings and for the tables."""

    @field_validator("max_instructions", mode="before", check_fields=False)
    @classmethod
    def _read_budget(cls, value: Any) -> Any:
        """``none`` as 0."""
        return 0 if isinstance(value, str) and value.strip().lower() == "none" else value

    @field_validator(
        *("models", "canary", "api_keys", "allowed_host", "buckets", "shape", "lengths", "pad"),
        mode="before",
        check_fields=False,
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Split texts, as in the environment, at their commas."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("target", check_fields=False)
    @classmethod
    def _check_target(cls, target: str | None) -> str | None:
        """Look the target up; make a file's path absolute, as other processes have other working directories."""
        if target is None:
            return None
        from trnrt.nki.machine.targets import portable_name

        try:
            return portable_name(target)
        except OptionError as error:
            raise ValueError(f"{error}; {error.hint}" if error.hint else str(error)) from None

    @field_validator("pad", check_fields=False)
    @classmethod
    def _check_numbers(cls, pad: list[str]) -> list[str]:
        """Refuse texts other than INPUT=NUMBER."""
        from trnrt.running.lengths import parse_pad

        try:
            for text in pad:
                parse_pad(text)
        except OptionError as error:
            raise ValueError(f"{error}; {error.hint}") from None
        return pad

    @field_validator("buckets", check_fields=False)
    @classmethod
    def _sort_buckets(cls, buckets: list[int]) -> list[int]:
        """In order, each once."""
        return sorted(set(buckets))


def read_tables(settings: type[BaseModel], tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The values of each model's table. ValueError names the table, the setting and the value."""
    return {name: _read_table(settings, name, table) for name, table in tables.items()}


def _read_table(settings: type[BaseModel], name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    for field in table:
        if field not in BY_MODEL:
            known = "a model has no" if field in settings.model_fields else "there is no"
            raise ValueError(f"[model.{name}]: {known} setting {field!r} of its own; it may have {', '.join(BY_MODEL)}")
    try:
        made = _table_type(settings)(**table)
    except ValidationError as error:
        raise ValueError("; ".join(_error_text(name, dict(item)) for item in error.errors())) from None
    return {field: getattr(made, field) for field in table}


def _error_text(name: str, item: Mapping[str, Any]) -> str:
    return f"[model.{name}] {item['loc'][0]}: {own_words(str(item['msg']))}, not {item['input']!r}"


@cache
def _table_type(settings: type[BaseModel]) -> type[BaseModel]:
    """The type of a table: those of the server's settings that a model may have of its own."""
    fields: dict[str, Any] = {
        name: (settings.model_fields[name].rebuild_annotation(), settings.model_fields[name]) for name in BY_MODEL
    }
    made: type[BaseModel] = create_model("ModelTable", __base__=_Table, **fields)
    return made


class _Table(Readers):
    model_config = ConfigDict(extra="forbid", frozen=True)


def settings_of_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a table changes, with those that follow from them."""
    found = dict(table)
    if "max_batch" in table:  # the server's buckets are for its own largest batch
        found.setdefault("buckets", [])
    if not table.get("lengths", True):
        found.setdefault("pad", [])
    return found


def check_buckets(place: str, given: Mapping[str, Any]) -> None:
    """ValueError if a largest batch and buckets are given in one place, and don't agree."""
    buckets, most = given.get("buckets"), given.get("max_batch")
    if buckets and most is not None and buckets[-1] != most:
        text = f"{place}: max_batch = {most}, but the largest of the buckets is {buckets[-1]}"
        raise ValueError(f"{text}; leave max_batch out, or make them the same")
