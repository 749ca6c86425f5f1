"""The server's page and its API reference in a real browser, for whoever reads them: keys, names, widths, states."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from serving import ServerProcess, fetch
from visiting import focused, press, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

PLACES = [
    "/#model/digits_cnn",
    "/#model/digits_mlp_sklearn",
    "/#model/standard_mlp",
    "/#model/colours",
    "/#model/broken",
    "/#model/blocks",
    "/docs",
]
NAMELESS = """() => [...document.querySelectorAll("input, textarea, button, a, canvas, [role=group]")]
    .filter((e) => !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")))
    .filter((e) => !(e.labels?.length || e.textContent.trim()))
    .map((e) => e.outerHTML)"""
DANGLING = """() => ["for", "aria-labelledby", "aria-describedby"]
    .flatMap((key) => [...document.querySelectorAll(`[${key}]`)].flatMap((e) => e.getAttribute(key).split(" ")))
    .filter((id) => document.querySelectorAll(`[id="${id}"]`).length !== 1)"""
TWICE = """() => [...document.querySelectorAll("[id]")].map((e) => e.id)
    .filter((id, k, ids) => ids.indexOf(id) !== k)"""


def test_everything_by_keyboard(browser: Browser, server: ServerProcess) -> None:
    """From the top of the page: choose a model, draw a two, predict, copy."""
    with visit(browser, server) as opened:
        order = []
        for _ in range(12):
            press(opened.page, "Tab")
            order.append(focused(opened.page))
            outline = opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", f"the focus on {order[-1]} can be seen"
        assert order[:4] == ["skip", "API", "Metrics", "refresh"]
        assert order[4].startswith("digits_cnn") and order[5].startswith("digits_ffnn")
        press(opened.page, " ".join(["Shift+Tab"] * (len(order) - 6)))
        press(opened.page, "Enter")
        opened.page.get_by_role("heading", name="digits_ffnn", exact=True).wait_for()
        opened.page.locator("#pad").focus()
        two = "L L L U _ R R R R R R D D D D L L L L L L D D D D D R R R R R R _"
        press(opened.page, two)
        assert opened.page.get_by_role("status").filter(has_text="Pen up, column").count() == 1
        with opened.page.expect_response(re.compile("/predict")):
            press(opened.page, "Enter")
        opened.page.locator("#best").wait_for()
        assert opened.best == "2"
        press(opened.page, "Backspace")
        assert opened.page.locator("#pad").get_attribute("aria-label") == "Drawing area, empty"


def test_the_skip_link_leads_to_the_form_and_changes_no_model(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server, "/#model/standard_mlp") as opened:
        press(opened.page, "Tab Enter")
        assert focused(opened.page) == "try"
        assert opened.page.get_by_role("heading", name="standard_mlp", exact=True).is_visible()


def test_a_model_that_failed_says_why(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server, "/#model/broken") as opened:
        assert "not an ONNX model" in opened.page.locator("#reason").inner_text()
        assert opened.page.locator("#try").is_hidden() and opened.page.locator("#answer-card").is_hidden()
        assert opened.page.locator("#count").inner_text() == "7 of 8 models ready"


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("loading", None, "This model is loading. Being compiled."),
        ("recovering", "the core hangs", "This model's device failed; the model is loaded again. the core hangs"),
    ],
)
def test_a_model_that_is_on_its_way_becomes_ready_by_itself(
    browser: Browser, server: ServerProcess, state: str, reason: str | None, told: str
) -> None:
    answers: list[dict[str, Any]] = []

    def late(route: Route) -> None:
        response = route.fetch()
        said = response.json()
        if len(answers) < 2:
            nothing: dict[str, Any] = {"inputs": [], "outputs": [], "form": None, "predicted_us": {}, "labels": None}
            for model in said["models"]:
                model.update(nothing, state=state, reason=reason)
        answers.append(said)
        route.fulfill(response=response, json=said)

    context = browser.new_context()
    page = context.new_page()
    page.route("**/models.json", late)
    page.goto(server.url)
    page.locator("#details", has_text=told).wait_for()
    assert page.locator("#try").is_hidden()
    page.locator("#pad").wait_for()
    assert len(answers) == 3
    context.close()


def test_the_page_works_under_a_prefix(browser: Browser, server: ServerProcess) -> None:
    """As behind a proxy that takes the prefix away."""
    context = browser.new_context()
    context.route("**/some/prefix/**", lambda route: route.continue_(url=route.request.url.replace("/some/prefix", "")))
    page = context.new_page()
    page.goto(f"{server.url}/some/prefix/")
    page.get_by_role("button", name="Sample 2").click()
    page.get_by_role("button", name="Predict", exact=True).click()
    page.locator("#best", has_text="2").wait_for()
    assert f"{server.url}/some/prefix/predict?model=digits_cnn" in page.locator("#curl").inner_text()
    page.get_by_role("link", name="API").click()
    page.locator("#post-predict").wait_for()
    assert page.url == f"{server.url}/some/prefix/docs"
    context.close()


def test_details_are_what_the_server_says(browser: Browser, server: ServerProcess) -> None:
    told = fetch("GET", f"{server.url}/models.json").json()["models"][0]
    with visit(browser, server) as opened:
        assert opened.page.locator("[data-field=inputs]").inner_text() == "image float32 (*, 1, 8, 8)"
        assert opened.page.locator("[data-field=outputs]").inner_text() == "logits float32 (*, 10)"
        lines = opened.page.locator("#latency li").all_inner_texts()
        assert [line.split()[0] for line in lines] == list(told["predicted_us"])
        shown = [float(line.split()[-2]) for line in lines]
        assert shown == pytest.approx(list(told["predicted_us"].values()), rel=0.006)


@pytest.mark.parametrize("place", PLACES)
def test_a_page_fits_windows_and_everything_on_it_has_a_name(
    browser: Browser, server: ServerProcess, place: str
) -> None:
    with visit(browser, server, place) as opened:
        sample = opened.page.get_by_role("button", name=re.compile("Use a sample|Sample 8"))
        if sample.count():
            sample.click()
            opened.predict()
        for check in (NAMELESS, DANGLING, TWICE):
            assert opened.page.evaluate(check) == []
        for folded in opened.page.locator("details").all():
            folded.evaluate("e => { e.open = true; }")
        for width in (320, 400, 768, 1024, 1280):
            opened.page.set_viewport_size({"width": width, "height": 800})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_reference_has_every_operation_of_the_api(browser: Browser, server: ServerProcess) -> None:
    paths = fetch("GET", f"{server.url}/openapi.json").json()["paths"]
    wanted = {
        f"{method.upper()} {path}": operation for path, item in paths.items() for method, operation in item.items()
    }
    with visit(browser, server, "/docs") as opened:
        assert {" ".join(title.split()) for title in opened.page.locator(".operation h2").all_inner_texts()} == set(
            wanted
        )
        for card in opened.page.locator(".operation").all():
            operation = wanted[" ".join(card.locator("h2").inner_text().split())]
            assert card.locator(".code").all_inner_texts() == list(operation["responses"])
        opened.page.get_by_role("link", name="POST /predict").click()
        assert opened.page.url.endswith("#post-predict")
        assert "instances" in opened.page.locator("#post-predict").inner_text()
