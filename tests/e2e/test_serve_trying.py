"""Trying operations on the server's API reference, in a real browser: with examples, files, keys, and curl lines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from serving import MODELS, ServerProcess, fetch, server_process
from visiting import digits, png_of, press, refused, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

KEY = "a key of one's own"


def opened_box(page: Page, operation: str) -> Locator:
    """The box to try an operation, opened."""
    box = page.locator(f"#{operation} .try")
    box.locator("summary").first.click()
    box.get_by_role("button", name="Send").wait_for()
    return box


def run(line: str, folder: Path, **environment: str) -> str:
    """A curl line's answer."""
    environment = {"PATH": "/usr/bin:/bin", **environment}
    shell = ["bash", "-c", line]
    return subprocess.run(
        shell, cwd=folder, env=environment, capture_output=True, check=True, timeout=60, text=True
    ).stdout


def test_every_operation_has_a_curl_line_that_it_would_send(browser: Browser, server: ServerProcess) -> None:
    paths = fetch("GET", f"{server.url}/openapi.json").json()["paths"]
    with visit(browser, server, "/docs") as opened:
        boxes = opened.page.locator(".try")
        assert boxes.count() == sum(len(item) for item in paths.values())
        for box in boxes.all():
            box.evaluate("e => { e.open = true; }")
        opened.page.locator(".try form").nth(boxes.count() - 1).wait_for()
        lines = opened.page.locator(".try pre[id$=-curl]").all_inner_texts()
        assert len(lines) == boxes.count() and all(f"curl -sS '{server.url}/" in line for line in lines)
        assert not any("{model}" in line for line in lines), "the first model is named"


def test_rows_and_tensors_of_the_chosen_model(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    with visit(browser, server, "/docs") as opened:
        for operation, part in (("post-predict", "predictions"), ("post-v2-models-model-infer", "outputs")):
            box = opened_box(opened.page, operation)
            box.get_by_label("model (required)").fill("standard_mlp")
            box.get_by_role("button", name="Send").click()
            answer = json.loads(box.get_by_label("Body of the answer").inner_text())
            assert len(answer[part]) >= 1
            assert "x-request-id: " in box.get_by_label("Headers of the answer").inner_text()
            ran = json.loads(run(box.locator("pre[id$=-curl]").inner_text(), tmp_path))
            assert ran[part] == answer[part]


def test_a_picture_as_body_and_in_a_form(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    pictures, labels = digits(1)
    (tmp_path / "a digit.png").write_bytes(png_of((pictures[0][0] * 255).astype("uint8")))
    with visit(browser, server, "/docs") as opened:
        box = opened_box(opened.page, "post-predict")
        box.get_by_label("model (required)").fill("digits_cnn")
        for kind in ("image/png", "multipart/form-data"):
            box.get_by_label("Type of the body").select_option(kind)
            box.get_by_label("File").set_input_files(tmp_path / "a digit.png")
            with opened.page.expect_response("**/predict*"):
                box.get_by_role("button", name="Send").click()
            box.get_by_label("Body of the answer").wait_for()
            assert json.loads(box.get_by_label("Body of the answer").inner_text())["predictions"] == [str(labels[0])]
            line = box.locator("pre[id$=-curl]").inner_text()
            assert json.loads(run(line, tmp_path))["predictions"] == [str(labels[0])], line


def test_a_refusal_is_shown_with_its_status(browser: Browser, server: ServerProcess) -> None:
    with visit(browser, server, "/docs") as opened:
        box = opened_box(opened.page, "get-v2-models-model")
        box.get_by_label("model (required)").fill("nobody")
        box.get_by_role("button", name="Send").click()
        box.get_by_label("Body of the answer").wait_for()
        assert box.locator("h3 .code").inner_text() == "404"
        refused(opened)
        box.get_by_label("model (required)").fill("")
        box.get_by_role("button", name="Send").click()
        assert box.get_by_role("alert").inner_text() == "model is empty."


def test_a_key_is_asked_for_and_kept_in_memory_only(browser: Browser, tmp_path: Path) -> None:
    arguments, keys = str(MODELS / "digits_ffnn.onnx"), {"TRNRT_API_KEYS": KEY}
    with server_process(tmp_path, arguments, env=keys) as guarded, visit(browser, guarded, "/docs") as opened:
        opened.page.get_by_role("textbox", name="Key").fill(KEY)
        refused(opened)
        press(opened.page, "Enter")
        box = opened_box(opened.page, "get-v2-models-model")
        name = box.get_by_label("model (required)")
        opened.page.wait_for_function("e => e.value === 'digits_ffnn'", arg=name.element_handle())
        box.get_by_role("button", name="Send").click()
        box.get_by_label("Body of the answer").wait_for()
        assert box.locator("h3 .code").inner_text() == "200"
        line = box.locator("pre[id$=-curl]").inner_text()
        assert KEY not in opened.page.content() and KEY not in line
        assert json.loads(run(line, tmp_path, TRNRT_API_KEY=KEY))["name"] == "digits_ffnn"
        assert opened.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
