"""Forms for models that declare little, a phone's first screen, errors with their ids, and names that are markup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from serving import MODELS, ServerProcess, fetch, server_process
from vision_models import png as png_file
from vision_models import save_detector, thirds
from visiting import png_of, refused, visit, wait_loaded

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

HOSTILE = "<img src=x onerror=alert(1)>"
CLASSES = """<ir_version: 8, opset_import: ["" : 17]>
    plain (float[batch,3,16,16] pixels) => (float[batch,3] scores) {
        means = GlobalAveragePool(pixels)
        scores = Flatten(means)
    }"""
IDS = """<ir_version: 8, opset_import: ["" : 17]>
    ids (int64[batch,16] input_ids, int64[batch,16] attention_mask) => (float[batch,16] kept, float[batch,16] shown) {
        ids = Cast<to: int = 1>(input_ids)
        mask = Cast<to: int = 1>(attention_mask)
        kept = Mul(ids, mask)
        shown = Add(kept, mask)
    }"""
WHOLE = """<ir_version: 8, opset_import: ["" : 17]>
    whole (float[2,3] a, float[3,2] b) => (float[2,2] y) { y = MatMul(a, b) }"""
PASTE = """bytes => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], "image.png", {type: "image/png"}));
    document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
}"""


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of models that declare nothing, and of one whose labels and tensors are markup."""
    folder = tmp_path_factory.mktemp("plain")
    for name, text in (("plain", CLASSES), ("ids", IDS), ("whole", WHOLE)):
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
    names = f"{{0: '{HOSTILE}', 1: '<script>alert(2)</script>'}}"
    metadata = {"task": "detect", "names": names, "imgsz": "[64, 64]", "stride": "32"}
    hostile = onnx.load(save_detector(folder / "hostile.onnx", metadata))
    for node in hostile.graph.node:
        node.input[:] = [HOSTILE if name == "images" else name for name in node.input]
    hostile.graph.input[0].name = HOSTILE
    onnx.save(hostile, folder / "hostile.onnx")
    digits = str(MODELS / "digits_cnn.onnx")
    with server_process(folder, digits, "--model-dir", str(folder), "--max-batch", "1", ready=False) as started:
        wait_loaded(started)
        yield started


def test_the_pad_is_on_a_phones_first_screen(browser: Browser, plain_server: ServerProcess) -> None:
    size = {"width": 360, "height": 640}
    with visit(browser, plain_server, "/#model/digits_cnn", viewport=size, has_touch=True, is_mobile=True) as opened:
        for name in ("#pad", "#undo", "#clear", "#predict"):
            box = opened.page.locator(name).bounding_box()
            assert box is not None and box["y"] + box["height"] <= 640, name
        assert opened.page.locator("#pad").evaluate("e => e.clientWidth") >= 240
        assert opened.page.evaluate("scrollY") == 0
        opened.page.locator("#pick").select_option("ids")
        opened.page.locator("#tensor-1").wait_for()


def test_the_pad_says_where_to_draw_until_something_is_drawn(browser: Browser, plain_server: ServerProcess) -> None:
    with visit(browser, plain_server, "/#model/digits_cnn") as opened:
        hint = opened.page.locator("#hint")
        assert hint.inner_text() == "Draw here" and hint.is_visible()
        opened.draw("1")
        assert hint.is_hidden()
        opened.page.get_by_role("button", name="Clear").click()
        assert hint.is_visible()


def test_a_model_that_declares_nothing_takes_a_picture(browser: Browser, plain_server: ServerProcess) -> None:
    """Its values are proposed, said and changed; its classes are read as by ``trnrt run --top``."""
    with visit(browser, plain_server, "/#model/plain") as opened:
        assert "only a guess" in opened.page.locator("#assumed").inner_text()
        assert "value = pixel / 255" in opened.page.locator("#prepared").inner_text()
        content = png_of(np.full((16, 16, 3), (0, 255, 51), np.uint8))
        opened.page.evaluate(PASTE, list(content))
        opened.page.locator("#seen-caption", has_text="image.png, 16 x 16 pixels").wait_for()
        opened.predict()
        powers = np.exp([0.0, 1.0, 0.2])
        best = f"{100 * powers[1] / powers.sum():.2f} %"
        assert opened.best == "class 1" and best in opened.page.locator("#best").inner_text()
        assert "softmax of its output scores" in opened.page.locator("#guessed").inner_text()
        assert "Save the picture as image.png first" in opened.page.locator("#answer").inner_text()
        opened.page.get_by_label("Values", exact=True).select_option("other")
        opened.page.get_by_label("scale", exact=True).fill("1/51")
        opened.page.get_by_label("mean", exact=True).fill("1, 2, 3")
        assert "(1, 2, 3)" in opened.page.locator("#prepared").inner_text()
        opened.predict()
        opened.page.get_by_text("The whole answer").click()
        answer = json.loads(opened.page.get_by_label("The answer's JSON").inner_text())
        assert answer["predictions"][0] == pytest.approx([-1, 3, -2], abs=1e-5)
        opened.page.get_by_label("std", exact=True).fill("much")
        opened.page.get_by_role("button", name="Predict", exact=True).click()
        assert opened.error.startswith('std is "much"; it is a number')


def test_several_inputs_have_a_field_each_and_outputs_are_tables(browser: Browser, plain_server: ServerProcess) -> None:
    with visit(browser, plain_server, "/#model/ids") as opened:
        assert opened.page.get_by_label("attention_mask int64 (*, 16)").input_value() == str([1] * 16)
        opened.page.get_by_label("input_ids int64 (*, 16)").fill(str(list(range(2, 18))))
        opened.page.get_by_label("attention_mask int64 (*, 16)").fill(str([1, 1] + [0] * 14))
        opened.predict()
        for name, wanted in (("kept", "23000000"), ("shown", "34000000")):
            table = opened.page.get_by_label(f"Values of {name}")
            assert "".join(table.locator("td.number").all_inner_texts()) == wanted
            assert "the first of 16 values" in table.inner_text()
        assert "/predict?model=ids" in opened.page.locator("#curl").inner_text()


def test_a_model_without_rows_goes_by_the_protocol(browser: Browser, plain_server: ServerProcess) -> None:
    with visit(browser, plain_server, "/#model/whole") as opened:
        opened.page.get_by_label("a float32 (2, 3)").fill("[[1, 2, 3], [4, 5, 6]]")
        opened.page.get_by_label("b float32 (3, 2)").fill("[1, 0, 0, 1, 0, 0]")
        opened.predict()
        rows = opened.page.get_by_label("Values of y").locator("tbody tr").all_inner_texts()
        assert [row.split() for row in rows] == [["0", "1", "2"], ["1", "4", "5"]]
        assert "/v2/models/whole/infer" in opened.page.locator("#curl").inner_text()


def test_a_picture_model_takes_numbers_too(browser: Browser, plain_server: ServerProcess) -> None:
    with visit(browser, plain_server, "/#model/digits_cnn") as opened:
        opened.page.get_by_role("button", name="Send numbers as JSON instead").click()
        assert opened.page.locator("#pad").count() == 0
        opened.predict()
        zeros = {"instances": np.zeros((1, 1, 8, 8)).tolist()}
        asked = fetch("POST", f"{plain_server.url}/predict?model=digits_cnn", json=zeros).json()
        assert opened.best == asked["predictions"][0]
        opened.page.get_by_role("button", name="Send a picture instead").click()
        opened.page.locator("#pad").wait_for()


def test_names_that_are_markup_are_text(browser: Browser, plain_server: ServerProcess) -> None:
    """The policy would stop the script; the page makes no element of the name in the first place."""
    with visit(browser, plain_server, "/#model/hostile") as opened:
        content = list(png_file(thirds()))
        opened.page.evaluate(PASTE, content)
        opened.page.locator("#seen-caption", has_text="image.png").wait_for()
        opened.predict()
        assert HOSTILE in opened.page.locator("#legend").inner_text()
        assert HOSTILE in opened.page.locator("[data-field=inputs]").inner_text()
        opened.page.get_by_role("button", name="Send numbers as JSON instead").click()
        assert HOSTILE in opened.page.locator("#fields label").inner_text()
        assert opened.page.locator("img, script:not([src])").count() == 0


def test_an_error_has_its_id_and_when_to_come_again(browser: Browser, plain_server: ServerProcess) -> None:
    def busy(route: Route) -> None:
        headers = {"Retry-After": "3", "X-Request-Id": "abc123", "Content-Type": "application/json"}
        route.fulfill(status=429, headers=headers, body='{"error": "the queue of model \'ids\' is full"}')

    with visit(browser, plain_server, "/#model/ids") as opened:
        opened.page.route("**/predict*", busy)
        opened.page.get_by_role("button", name="Predict", exact=True).click()
        opened.page.locator("#error:not([hidden])").wait_for()
        said = "The queue of model 'ids' is full. It is busy: try again in 3 seconds."
        assert opened.page.locator("#error > span").inner_text() == said
        assert opened.page.locator("#error code").inner_text() == "abc123"
        refused(opened)
