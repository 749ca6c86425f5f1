"""``docs/api.md`` says what the docstrings say (``UPDATE_DOCS=1`` writes it)."""

from __future__ import annotations

import os
from pathlib import Path

from api_page import api_page

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_page_of_the_python_interface_is_up_to_date() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(api_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == api_page()
