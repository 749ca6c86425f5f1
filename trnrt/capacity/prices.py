"""The prices of instances, from a user's file. trnrt ships no price: prices differ by region and day."""

from __future__ import annotations

import datetime
import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trnrt.capacity.instances import Instance, instances
from trnrt.errors import OptionError
from trnrt.text import quote, reason_text

EXAMPLE = "docs/scale.md (Prices) has an example"
HOURS_OF_A_MILLION = 1e6 / 3600
"""The hours that a million items take at one a second."""
_LARGEST_FILE = 1 << 20
_MOST_USD = 1e6


@dataclass(frozen=True)
class Price:
    """An instance's price in a region, as a page gave it on a day (ISO 8601)."""

    usd_per_hour: float
    region: str
    date: str
    page: str


Prices = Mapping[str, Price]
"""Instance type -> price."""


def read_prices(path: Path) -> dict[str, Price]:
    """The prices of a TOML file, a table for each instance type: ``[instances."trn2.3xlarge"]``.

    OptionError names what is wrong: a type that no target has, or a missing, unknown or wrong key.
    """
    shown = quote(str(path))
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise OptionError(f"{shown} has more than {_LARGEST_FILE} bytes", hint=EXAMPLE)
        data = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise OptionError(f"can't read the prices in {shown}: {reason_text(error)}", hint=EXAMPLE) from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{shown} is not TOML: {error}", hint=EXAMPLE) from None
    tables = data.pop("instances", None)
    if data:
        raise OptionError(f"{shown}: {next(iter(data))} is no key of a price file", hint=EXAMPLE)
    if not isinstance(tables, dict) or not tables:
        raise OptionError(f'{shown} has no table [instances."TYPE"]', hint=EXAMPLE)
    return {name: _read_price(f"{shown}: {name}", name, table) for name, table in tables.items()}


def check_priced(prices: Prices, known: Iterable[Instance]) -> None:
    """OptionError unless one of these instance types has a price."""
    names = [instance.name for instance in known]
    if not any(name in prices for name in names):
        what = f"the price file has {', '.join(prices)}, and none of the types to choose from"
        raise OptionError(what, hint=f"add the price of {' or '.join(names)}")


def usd_per_million(usd_per_hour: float, per_second: float) -> float:
    """The cost of a million items, of machines that cost ``usd_per_hour`` and handle ``per_second`` items."""
    return usd_per_hour / per_second * HOURS_OF_A_MILLION


def _read_price(where: str, name: str, table: Any) -> Price:
    known = instances()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise OptionError(f"{where} is no instance type of a known target", hint=hint)
    if not isinstance(table, dict):
        raise OptionError(f"{where} is not a table", hint=EXAMPLE)
    keys = [field.name for field in fields(Price)]
    for key in table:
        if key not in keys:
            raise OptionError(f"{where}: {key} is no key of a price", hint=f"keys are {', '.join(keys)}")
    for key in keys:
        if key not in table:
            hint = "a price without its region, its date and its page can't be checked"
            raise OptionError(f"{where}: {key} is missing", hint=hint)
    return Price(
        _read_usd(where, table["usd_per_hour"]),
        _read_text(f"{where}: region", table["region"], "as AWS calls it: us-east-1"),
        _read_date(where, table["date"]),
        _read_page(where, table["page"]),
    )


def _read_usd(where: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 < value <= _MOST_USD:
        hint = f"it is a number of dollars above 0, at most {_MOST_USD:,.0f}"
        raise OptionError(f"{where}: usd_per_hour = {str(value)[:60]}", hint=hint)
    return float(value)


def _read_text(where: str, value: Any, hint: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{where} = {str(value)[:60]!r}", hint=hint)
    return value.strip()


def _read_date(where: str, value: Any) -> str:
    if type(value) is not datetime.date:
        raise OptionError(f"{where}: date = {str(value)[:60]!r}", hint="the day of the page, unquoted: 2026-11-26")
    return value.isoformat()


def _read_page(where: str, value: Any) -> str:
    hint = "the page that has the price: https://..."
    page = _read_text(f"{where}: page", value, hint)
    if not page.startswith(("https://", "http://")):
        raise OptionError(f"{where}: page = {page[:60]!r}", hint=hint)
    return page
