"""Every command and snippet of the README and of docs/ runs, in order, in a clean directory, and prints what is shown.

``UPDATE_DOCS=1 pytest tests/docs/test_executed.py`` writes outputs anew where a page shows a whole one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from page_listings import listings
from page_running import ROOT, Runner, furnish, is_left_out, rewrite

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WHEEL_ONLY = {"README.md", "run-my-model.md", "production.md", "write-kernels.md"}
"""Pages that begin with a wheel and an empty directory."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [each for each in listings(page) if each.is_python or each.commands]
    if all(is_left_out(listing) for listing in todo):
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if page.name not in WHEEL_ONLY or page.parent.name == "docs":
        furnish(tmp_path)
    with contextlib.ExitStack() as stack:
        runner = Runner(page, stack)
        runner.run()
    assert runner.ran
    if os.environ.get("UPDATE_DOCS"):
        rewrite(page, runner.outputs)
    assert {output.place: output.stale for output in runner.outputs if output.stale} == {}


def test_every_tutorial_shows_outputs() -> None:
    for page in (ROOT / "docs" / "tutorials").glob("*.md"):
        assert sum(listing.language == "text" for listing in listings(page)) >= 3, page.name
