"""The documentation site builds strictly, has every page in its navigation, and works with no network at all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILD_S = 300


class Reader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads mkdocs.yml, whose slugify is an object of Python."""


Reader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Reader)


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a folder that has mkdocs.yml and docs/, strictly."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "trnrt").symlink_to(ROOT / "trnrt")
    ran = build(folder)
    assert ran.returncode == 0 and "No issues found" in ran.stderr, ran.stdout + ran.stderr
    return folder / "site"


def pages(entries: Any) -> Iterator[str]:
    """The files that a navigation names, in order."""
    if isinstance(entries, str):
        yield entries
    for entry in entries if isinstance(entries, list) else ():
        yield from pages(next(iter(entry.values())) if isinstance(entry, dict) else entry)


def test_every_page_is_in_the_navigation_once() -> None:
    wanted = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(pages(CONFIG["nav"])) == wanted


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# One\n\n[two](README.md#there-is-none)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: one\n")
    ran = build(tmp_path)
    assert ran.returncode != 0 and "1 issue found" in ran.stderr


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    built = sorted(site.rglob("*.html"))
    assert len(built) > len(list(DOCS.glob("*.md")))
    for page in built:
        loaded = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?(https?:[^\" >]+)", page.read_text("utf-8")
        )
        assert loaded == [], page.name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_search_works_from_a_file_without_a_network(site: Path, browser: Browser, scheme: Any) -> None:
    context = browser.new_context(color_scheme=scheme)
    context.set_default_timeout(120_000)
    asked: list[str] = []

    def local_only(route: Route) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    context.route("**/*", local_only)
    page = context.new_page()
    page.goto(f"file://{site}/index.html")
    assert page.locator("body").get_attribute("data-md-color-scheme") == {"light": "default", "dark": "slate"}[scheme]
    page.keyboard.press("/")
    page.keyboard.type("partition")
    found = page.locator("a[href*='.html']", has_text="partition").locator("visible=true").first
    found.wait_for()
    assert asked == []
    context.close()


def test_pages_fit_a_phone(site: Path, browser: Browser) -> None:
    """Nothing but a table or a listing, which scroll on their own, is wider than the screen."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(120_000)
    page = context.new_page()
    for name in ("index", "operators", "cli", "settings"):
        page.goto(f"file://{site}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    context.close()
