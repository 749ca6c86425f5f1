"""The look of the HTML report: nothing overlaps, is cut or is hard to read, on a phone and a desk, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from timelines import matmul_program

import trnrt
from trnrt.nki.profiling import Profile, profile_programs
from trnrt.planner.plan import Plan
from trnrt.report.against import compare_runs
from trnrt.report.documents import call_document
from trnrt.report.page import report_html
from trnrt.report.page.reading import run_of_profile
from trnrt.report.verdict import Tried
from trnrt.running.profiler import profile_plan
from trnrt.text import size_text, time_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MODEL = Path(__file__).parents[2] / "models/digits_cnn.onnx"
SIZES = [(360, "dark"), (768, "light"), (1440, "light"), (1440, "dark")]

# Every element with text of its own: its text, colour, the colour behind it, and its size in pixels.
TEXTS = """() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      const colour = rgb(one.tagName === "rect" ? style.fill : style.backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
      const frame = one.matches("g.box") ? one.querySelector(".frame") : null;
      if (frame) return rgb(getComputedStyle(frame).fill);
    }
    return [255, 255, 255];
  };
  const luminance = ([r, g, b]) => [r, g, b].map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, k) => sum + value * [0.2126, 0.7152, 0.0722][k], 0);
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].filter((node) => node.nodeType === 3);
    const text = own.map((node) => node.data.trim()).join(" ");
    const box = element.getBoundingClientRect();
    if (!text || Math.min(box.width, box.height) < 2) continue;
    if (element.closest("script, style, noscript, title, .hidden")) continue;
    const style = getComputedStyle(element);
    const front = rgb(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [luminance(front), luminance(behind(element))];
    found.push({text, contrast: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)});
  }
  return found;
}"""

# Pairs of boxes among the elements of a selector that cover each other by more than a pixel.
OVERLAPS = """(selector) => {
  const boxes = [...document.querySelectorAll(selector)]
    .map((one) => ({text: one.textContent, box: one.getBoundingClientRect()}));
  const covers = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  return boxes.flatMap((a, k) => boxes.slice(k + 1).filter((b) => covers(a.box, b.box)).map((b) => [a.text, b.text]));
}"""

# Texts that are wider than the element that holds them, and not meant to be scrolled or shortened.
CUT = """() => {
  const held = "h1, h2, h3, dt, dd, .headline li, .segments button, .segments span, .verdict, .tries li, .panel p";
  return [...document.querySelectorAll(held)]
    .filter((one) => one.getClientRects().length > 0 && one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.textContent);
}"""

# Texts of the graph that leave their box.
OUTSIDE = """() => [...document.querySelectorAll("#graph .box text")].filter((text) => {
  const own = text.getBoundingClientRect();
  const frame = text.closest(".box").querySelector(".frame").getBoundingClientRect();
  return own.left < frame.left || own.right > frame.right + 1 || own.top < frame.top || own.bottom > frame.bottom + 1;
}).map((text) => text.textContent)"""


@cache
def digits() -> tuple[Profile, Plan]:
    (plan,) = trnrt.InferenceSession(MODEL).partition(1).plans
    return profile_plan(plan), plan


@cache
def model_page() -> str:
    profile, plan = digits()
    return report_html(profile, "digits_cnn", plan=plan, tried=[Tried("--batch 8", 3.3)])


@cache
def against_page() -> str:
    slow, fast = profile_programs([matmul_program("trn1")]), profile_programs([matmul_program()])
    runs = [run_of_profile(f"matmul on {p.target}", "k.py", p, call_document("matmul", "", p)) for p in (slow, fast)]
    return report_html(fast, "matmul", compare_runs(*runs))


class Shower:
    """Opens pages, and checks at the end that none said anything on the console."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.wrong: list[str] = []

    def __call__(self, text: str, width: int = 1440, scheme: Any = "light") -> Page:
        path = self.folder / "report.html"
        path.write_text(text, encoding="ascii")
        page = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        page.on("console", lambda message: self.wrong.append(message.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_function("window.trnrt !== undefined")
        return page


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Shower]:
    shower = Shower(browser, tmp_path)
    yield shower
    for context in browser.contexts:
        context.close()
    assert shower.wrong == []


@pytest.mark.parametrize(("width", "scheme"), SIZES)
@pytest.mark.parametrize("text", [model_page, against_page], ids=["model", "against"])
def test_everything_can_be_read(shown: Shower, text: Any, width: int, scheme: str) -> None:
    page = shown(text(), width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    texts = page.evaluate(TEXTS)
    assert len(texts) > 100 and [one for one in texts if one["contrast"] < 4.5] == []
    assert page.evaluate(CUT) == []
    assert page.evaluate(OUTSIDE) == []
    for selector in ("#graph .box", "#roofline text", "main > .card", ".facts > div"):
        assert page.evaluate(OVERLAPS, selector) == [], selector


def test_a_box_leads_to_its_row_and_its_time(shown: Shower) -> None:
    page = shown(model_page())
    _, plan = digits()
    boxes = page.locator("#graph .box.step")
    assert boxes.count() == len(plan.steps)
    assert "The longest steps" in page.locator("#graph-panel").inner_text(), "useful before anything is chosen"
    assert "node_Reshape_7: moves nothing" in page.locator("#graph-panel").inner_text()
    boxes.nth(1).click()
    assert boxes.nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator("#steps-table tr.chosen button").inner_text() == plan.steps[1].name
    for node in plan.steps[1].nodes:
        assert node in page.locator("#graph-panel [data-field='nodes']").inner_text()
    page.locator("#graph-panel").get_by_role("button", name="its row").click()
    assert page.evaluate("document.activeElement.dataset.step") == "1"


def test_the_graph_is_used_by_keys(shown: Shower) -> None:
    page = shown(model_page())
    first = page.locator("#graph .box").first
    first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#graph .box").nth(1).get_attribute("aria-pressed") == "true"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.step") == "0"
    page.locator("#graph .box").nth(1).focus()
    page.keyboard.press("Escape")
    assert page.locator("#graph [aria-pressed='true']").count() == 0
    wide = page.locator("#graph svg").bounding_box()
    page.keyboard.press("+")
    larger = page.locator("#graph svg").bounding_box()
    assert wide is not None and larger is not None and larger["width"] > 1.3 * wide["width"]


def test_bars_take_the_colour_of_their_change(shown: Shower) -> None:
    page = shown(against_page())
    page.get_by_label("By change").dispatch_event("click")
    names = page.locator("#legend button").all_inner_texts()
    assert names and set(names) <= {"longer than before", "shorter than before", "as before", "new, or gone"}
    assert not shown(model_page()).locator("#change-choice").is_visible()


def test_the_page_writes_times_and_sizes_as_the_terminal_does(shown: Shower) -> None:
    page = shown(model_page())
    times = (0.0, 0.0123, 0.889, 0.9996, 4.116, 16.482, 123.45, 999.6, 1234.5, 1.2e7)
    sizes = (0, 148, 1024, 2048, 62_976, 107_393_144)
    said = page.evaluate("times => times.map((us) => window.trnrt.timeText(us * 1e6))", times)
    assert said == [time_text(us) for us in times]
    assert page.evaluate("sizes => sizes.map(window.trnrt.bytesText)", sizes) == [size_text(size) for size in sizes]


def test_live_bytes_and_addresses_are_told_apart(shown: Shower) -> None:
    page = shown(model_page())
    title = page.locator("#memories h3").first
    assert "alive at once" in title.inner_text()
    page.get_by_label("Addresses").dispatch_event("click")
    assert "of this range at most" in title.inner_text() and "%" not in title.inner_text()
