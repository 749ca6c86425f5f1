"""Trying models on the server's page in a real browser: draw, choose, fill in, and see the right answer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from serving import MODELS, ServerProcess, fetch, server_process
from visiting import WRITTEN, Visit, digits, focused, png_of, press, refused, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

KEY = "a key of one's own"
PHONE = {"width": 400, "height": 800}


def test_digits_drawn_with_the_mouse_are_recognised(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server) as opened:
        for model in ("digits_cnn", "digits_ffnn"):
            opened.choose(model)
            found = ""
            for digit in WRITTEN:
                opened.page.get_by_role("button", name="Clear").click()
                opened.draw(digit)
                opened.predict()
                found += opened.best
            assert found == "0123456789", model


def test_a_digit_may_be_small_and_in_a_corner(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server) as opened:
        for digit in "258":
            opened.page.get_by_role("button", name="Clear").click()
            opened.draw(digit, size=0.3)
            opened.predict()
            assert opened.best == digit


def test_samples_are_what_they_say(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server) as opened:
        for digit in "0123456789":
            opened.page.get_by_role("button", name=f"Sample {digit}").click()
            opened.predict()
            assert opened.best == digit


def test_an_answer_is_never_taken_for_another_requests(browser: Browser, server: ServerProcess) -> None:
    """Until the next one comes it is marked as old; a request that fails leaves none."""
    with visit(browser, server) as opened:
        opened.page.get_by_role("button", name="Sample 3").click()
        opened.predict()
        assert opened.best == "3"
        held: list[Route] = []
        opened.page.route("**/predict*", lambda route: held.append(route))
        opened.page.get_by_role("button", name="Sample 4").click()
        with opened.page.expect_request("**/predict*"):
            opened.page.get_by_role("button", name="Predict", exact=True).click()
        answer = opened.page.locator("#answer")
        opened.page.locator("#answer[aria-busy=true] #best", has_text="3").wait_for()
        assert float(answer.evaluate("e => getComputedStyle(e).opacity")) < 1
        held[0].continue_()
        opened.page.locator("#answer[aria-busy=false] #best", has_text="4").wait_for()
        opened.page.unroute("**/predict*")
        opened.page.get_by_role("button", name="Clear").click()
        opened.predict()
        assert opened.error == "Draw something first, use a sample, or choose a picture."
        assert answer.inner_text() == "The answer appears here."


def test_the_answer_is_the_servers(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server) as opened:
        opened.draw("4")
        opened.predict()
        opened.page.get_by_text("The whole answer").click()
        answer = json.loads(opened.page.get_by_label("The answer's JSON").inner_text())
        ranked = sorted(zip(answer["probabilities"][0], answer["labels"], strict=True), reverse=True)
        rows = opened.page.locator("#classes li").all_inner_texts()
        assert [row.split()[0] for row in rows] == [label for _, label in ranked]
        shares = [float(row.split()[1]) for row in rows]
        assert shares == pytest.approx([100 * share for share, _ in ranked], abs=0.005001)
        widths = [
            bar.evaluate("e => e.clientWidth / e.parentElement.clientWidth")
            for bar in opened.page.locator("#classes .bar span").all()
        ]
        assert widths == pytest.approx([share for share, _ in ranked], abs=0.02)
        for name, key in (
            ("queue", "queue_ms"),
            ("batch", "batch_ms"),
            ("compute", "compute_ms"),
            ("total", "total_ms"),
        ):
            shown = opened.page.locator(f"#times [data-field={name}]").inner_text().split(" ms")[0]
            assert float(shown.replace(",", "")) == pytest.approx(answer["timing"][key], rel=0.006)
        status = opened.page.get_by_role("status").filter(has_text="digits_cnn says 4").inner_text()
        assert f"{shares[0]:.2f} %" in status


def test_undo_takes_a_stroke_back_and_the_preview_follows(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server) as opened:
        pad = opened.page.get_by_role("application")
        opened.draw("7")
        assert pad.get_attribute("aria-label") == "Drawing area, 2 strokes"
        assert opened.page.get_by_role("img").get_attribute("aria-label") == "The drawing in 8 x 8 pixels"
        opened.page.get_by_role("button", name="Undo").click()
        assert pad.get_attribute("aria-label") == "Drawing area, 1 stroke"
        opened.page.get_by_role("button", name="Clear").click()
        assert pad.get_attribute("aria-label") == "Drawing area, empty"
        opened.page.get_by_role("button", name="Predict").click()
        assert opened.error == "Draw something first, use a sample, or choose a picture."


def test_drawing_with_a_finger(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server, viewport=PHONE, has_touch=True, is_mobile=True) as opened:
        opened.page.locator("#pad").scroll_into_view_if_needed()
        box = opened.page.locator("#pad").bounding_box()
        assert box is not None
        scrolled = opened.page.evaluate("scrollY")
        session = opened.page.context.new_cdp_session(opened.page)
        for stroke in WRITTEN["7"]:
            places = [
                {"x": box["x"] + box["width"] * x / 100, "y": box["y"] + box["height"] * y / 100} for x, y in stroke
            ]
            session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [places[0]]})
            for place in places[1:]:
                session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [place]})
            session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        assert opened.page.evaluate("scrollY") == scrolled, "a finger on the canvas draws, and doesn't scroll"
        opened.predict()
        assert opened.best == "7"
        top = opened.page.locator("#answer-card").evaluate("e => e.getBoundingClientRect().top")
        assert top < 0.7 * PHONE["height"], "the answer is brought into sight"


def test_a_picture_of_a_digit_from_a_file(browser: Browser, server: ServerProcess) -> None:
    pictures, labels = digits(3)
    with visit(browser, server) as opened:
        opened.draw("7")
        for picture, label in zip(pictures, labels, strict=True):
            content = png_of(np.rint(picture[0] * 255).astype(np.uint8))
            opened.page.get_by_label("Or a picture from a file").set_input_files(
                {"name": "digit.png", "mimeType": "image/png", "buffer": content}
            )
            opened.page.locator("#seen-caption", has_text="8 x 8 pixels").wait_for()
            opened.predict()
            assert opened.best == str(label)
        assert opened.page.get_by_role("application").get_attribute("aria-label") == "Drawing area, empty"
        opened.draw("3")
        opened.predict()
        assert opened.best == "3", "what was drawn last counts"


def test_a_picture_is_dropped_on_a_model_of_larger_ones(browser: Browser, server: ServerProcess) -> None:
    drop = """([place, bytes]) => {
        const files = new DataTransfer();
        files.items.add(new File([new Uint8Array(bytes)], "leaf.png", {type: "image/png"}));
        for (const name of ["dragover", "drop"])
            place.dispatchEvent(new DragEvent(name, {dataTransfer: files, bubbles: true, cancelable: true}));
    }"""
    with visit(browser, server, "/#model/colours") as opened:
        assert opened.page.locator("#pad").count() == 0
        opened.page.get_by_role("button", name="Predict").click()
        assert opened.error == "Choose a picture first."
        content = png_of(np.full((120, 200, 3), (10, 200, 20), np.uint8))
        opened.page.evaluate(drop, [opened.page.locator("#drop").element_handle(), list(content)])
        opened.page.locator("#seen-caption", has_text="leaf.png, 200 x 120 pixels").wait_for()
        opened.predict()
        assert opened.best == "green"


def test_what_is_no_picture_is_refused_in_words(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server, "/#model/colours") as opened:
        file = opened.page.get_by_label("A picture from a file")
        file.set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"notes"})
        opened.page.get_by_role("button", name="Predict").click()
        assert opened.error == "notes.txt is no PNG or JPEG picture."
        file.set_input_files({"name": "fake.png", "mimeType": "image/png", "buffer": b"notes"})
        opened.predict()
        assert "no PNG or JPEG image" in opened.error
        refused(opened)


def test_a_row_of_numbers(browser: Browser, server: ServerProcess) -> None:
    pictures, labels = digits(2)
    with visit(browser, server, "/#model/digits_mlp_sklearn") as opened:
        for picture, label in zip(pictures, labels, strict=True):
            opened.page.get_by_label("A row").fill(", ".join(map(str, picture.ravel())))
            opened.predict()
            assert opened.best == str(label)
        assert opened.page.locator("#field-20").input_value() == str(pictures[1].ravel()[20])
        opened.page.get_by_label("A row").fill("1, 2, 3")
        opened.page.get_by_role("button", name="Predict").click()
        assert opened.error == "pixels[3] is empty."
        assert focused(opened.page) == "field-3" and opened.page.locator("#field-3").is_visible()
        opened.page.get_by_label("A row").fill(", ".join(["0"] * 65))
        opened.page.get_by_role("button", name="Predict").click()
        assert opened.error == "The row has 65 values; the model takes 64."


def test_a_form_with_a_field_for_each_number(browser: Browser, server: ServerProcess) -> None:
    values = ["0.25", "-1.5e0", "3", ".5", "1e-3", "-2"]
    with visit(browser, server, "/#model/standard_mlp") as opened:
        for place, value in enumerate(values):
            opened.page.get_by_label(f"columns[{place}]").fill(value)
        assert opened.page.get_by_label("A row").input_value() == ", ".join(values)
        opened.predict()
        asked = fetch(
            "POST", f"{server.url}/predict?model=standard_mlp", json={"instances": [[float(v) for v in values]]}
        )
        assert opened.best == asked.json()["predictions"][0]
        opened.page.get_by_label("columns[1]").fill("lots")
        opened.page.get_by_role("button", name="Predict").click()
        assert opened.error == 'columns[1] is "lots", which is no number.'
        assert (
            focused(opened.page) == "field-1"
            and opened.page.locator("#field-1").get_attribute("aria-invalid") == "true"
        )


def test_a_regression_has_a_value_and_no_classes(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server, "/#model/robust_regressor") as opened:
        opened.page.get_by_role("button", name="Use a sample").click()
        opened.predict()
        row = [float(value) for value in opened.page.get_by_label("A row").input_value().split(",")]
        asked = fetch("POST", f"{server.url}/predict?model=robust_regressor", json={"instances": [row]}).json()
        (value,) = asked["predictions"][0]
        assert float(opened.page.locator("#value").inner_text()) == pytest.approx(value, rel=1e-6)
        assert opened.page.locator("#classes").count() == 0


def test_any_other_model_takes_a_tensor_for_each_input(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server, "/#model/blocks") as opened:
        text = opened.page.get_by_label("x float32 (*, 2, 3)")
        assert json.loads(text.input_value()) == [[0, 0, 0], [0, 0, 0]]
        text.fill("[[1, -2, 3], [-4, 5, -6]]")
        opened.predict()
        rows = opened.page.get_by_label("Values of y").locator("tbody tr").all_inner_texts()
        assert [row.split() for row in rows] == [["0", "1", "0", "3"], ["1", "0", "5", "0"]]
        text.fill("[[1, 2]")
        opened.page.get_by_role("button", name="Predict").click()
        assert opened.error.startswith("x is no JSON: ") and focused(opened.page) == "tensor-0"


@pytest.mark.parametrize(
    ("model", "button"), [("digits_cnn", "Sample 6"), ("standard_mlp", "Use a sample"), ("blocks", "")]
)
def test_the_curl_line_does_the_same(
    browser: Browser, server: ServerProcess, tmp_path: Path, model: str, button: str
) -> None:
    with visit(browser, server, f"/#model/{model}") as opened:
        if button:
            opened.page.get_by_role("button", name=button).click()
        check_curl(opened, tmp_path)


def test_the_curl_line_of_a_file_with_an_unusual_name(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    name = "it's $(HOME) `blue`.png"
    (tmp_path / name).write_bytes(png_of(np.full((30, 30, 3), (0, 0, 250), np.uint8)))
    with visit(browser, server, "/#model/colours") as opened:
        opened.page.get_by_label("A picture from a file").set_input_files(tmp_path / name)
        check_curl(opened, tmp_path)
        assert opened.best == "blue"


def check_curl(opened: Visit, folder: Path, **environment: str) -> None:
    """The line that the Copy button gives is run as it is, and must be answered as the page was."""
    opened.predict()
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.page.get_by_role("button", name="Copy").click()
    opened.page.get_by_text("Copied.").wait_for()
    line = opened.page.evaluate("navigator.clipboard.readText()")
    ran = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        check=True,
        timeout=60,
    )
    opened.page.get_by_text("The whole answer").click()
    shown = json.loads(opened.page.get_by_label("The answer's JSON").inner_text())
    answered = json.loads(ran.stdout)
    assert answered.pop("timing").keys() == shown.pop("timing").keys()
    assert answered == shown and shown["predictions"]


def test_a_server_with_keys_asks_for_one_and_forgets_it(browser: Browser, tmp_path: Path) -> None:
    arguments = str(MODELS / "digits_ffnn.onnx")
    keys = {"TRNRT_API_KEYS": f"another,{KEY}"}
    with server_process(tmp_path, arguments, env=keys) as guarded, visit(browser, guarded) as opened:
        refused(opened)
        assert opened.page.get_by_text("This server asks for an API key.").is_visible()
        opened.page.get_by_role("textbox", name="Key").fill("wrong")
        press(opened.page, "Enter")
        opened.page.get_by_text("The server does not know this key.").wait_for()
        refused(opened)
        opened.page.get_by_role("textbox", name="Key").fill(KEY)
        press(opened.page, "Enter")
        opened.page.get_by_role("button", name="Sample 5").click()
        check_curl(opened, tmp_path, TRNRT_API_KEY=KEY)
        assert opened.best == "5"
        assert KEY not in opened.page.content()
        assert opened.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        opened.page.reload()
        opened.page.get_by_text("This server asks for an API key.").wait_for()
        refused(opened)


def test_a_server_that_has_gone_is_said_in_words(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server) as opened:
        opened.page.get_by_role("button", name="Sample 1").click()
        opened.page.route("**/predict*", lambda route: route.abort())
        opened.page.get_by_role("button", name="Predict").click()
        opened.page.locator("#error:not([hidden])").wait_for()
        assert opened.error.startswith("The server does not answer.")
        refused(opened)
