"""The zoo's page in a real browser: sorting, filtering, and a phone's width."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from browsing import chromium
from zoo_rows import HOSTILE, made_up_row

from benchmarks.zoo.html import zoo_html

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROWS = [
    made_up_row("slow.onnx", "Slow", 5000.0),
    made_up_row("quick.onnx", "Quick", 100.0),
    made_up_row("middle.onnx", f"Middle {HOSTILE}", 2000.0),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page at a phone's width; nothing may go wrong in it, or be loaded."""
    path = tmp_path_factory.mktemp("zoo") / "zoo.html"
    path.write_text(zoo_html(ROWS, page=path), encoding="ascii")
    wrong: list[str] = []
    with chromium() as browser:
        opened = browser.new_page(viewport={"width": 390, "height": 800})
        opened.on("console", lambda message: wrong.append(message.text))
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
        opened.goto(path.as_uri())
        yield opened
        assert [one for one in wrong if not one.startswith("data:")] == []


def shown(page: Page) -> list[str]:
    """The first words of the visible rows' models, with their targets."""
    rows = page.locator("#models tbody tr:not([hidden])")
    return [f"{row.locator('th').inner_text().split()[0]} {row.get_attribute('data-target')}" for row in rows.all()]


def choose(page: Page, target: str) -> None:
    page.locator(f"input[name=target][value='{target}']").check()


def test_a_target_is_chosen_at_first(page: Page) -> None:
    choose(page, "trn2")
    assert shown(page) == ["Slow trn2", "Quick trn2", "Middle trn2"]
    assert page.locator("#shown").inner_text().startswith("3 of 6 rows")


def test_a_heading_sorts_by_number_and_back(page: Page) -> None:
    choose(page, "trn2")
    heading = page.get_by_role("button", name="items/s")
    heading.click()
    assert shown(page) == ["Slow trn2", "Middle trn2", "Quick trn2"]
    assert page.locator("th[aria-sort=ascending]").inner_text() == "items/s"
    heading.click()
    assert shown(page) == ["Quick trn2", "Middle trn2", "Slow trn2"]
    page.get_by_role("button", name="model").click()
    assert shown(page) == ["Middle trn2", "Quick trn2", "Slow trn2"]
    assert page.locator("th[aria-sort]").count() == 1


def test_a_text_and_another_target_filter(page: Page) -> None:
    choose(page, "")
    page.locator("#find").fill("QUICK")
    assert sorted(shown(page)) == ["Quick trn1", "Quick trn2"]
    page.locator("#find").fill("nothing like it")
    assert shown(page) == [] and page.locator("#shown").inner_text().startswith("0 of 6 rows")
    page.locator("#find").fill("")
    choose(page, "trn1")
    assert len(shown(page)) == 3


def test_names_do_nothing_and_the_page_fits_a_phone(page: Page) -> None:
    assert page.title() == "The zoo"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('#models').closest('.scroll').scrollWidth") > 390
