"""A real browser for tests, which are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def missing(what: str) -> NoReturn:
    """Skip; where TRNRT_BROWSER says that a browser is required, fail."""
    if os.environ.get("TRNRT_BROWSER") == "required":
        pytest.fail(f"{what}, and TRNRT_BROWSER says that a browser is required")
    pytest.skip(what)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium, the one that is installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing("there is no chromium: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed: pip install 'trnrt[dev]'")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()
