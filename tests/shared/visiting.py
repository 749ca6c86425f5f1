"""The server's page in a browser, for tests: a server of sample models, and visits that keep what goes wrong."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from serving import MODELS, ServerProcess, fetch, server_process

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PIPELINES = MODELS.parent / "tests" / "data" / "sklearn"
WRITTEN: dict[str, list[list[tuple[float, float]]]] = {
    "0": [[(50, 8), (28, 20), (20, 50), (28, 80), (50, 92), (72, 80), (80, 50), (72, 20), (50, 8)]],
    "1": [[(30, 30), (52, 8), (52, 92)]],
    "2": [[(25, 25), (35, 10), (60, 8), (74, 24), (66, 46), (30, 80), (22, 90), (40, 86), (60, 90), (80, 88)]],
    "3": [[(26, 10), (74, 10), (46, 42), (66, 48), (74, 66), (66, 86), (46, 92), (24, 82)]],
    "4": [[(30, 8), (24, 54), (78, 54)], [(66, 8), (66, 94)]],
    "5": [[(70, 8), (34, 10), (32, 42), (56, 40), (72, 56), (70, 80), (50, 92), (26, 86)]],
    "6": [[(64, 10), (42, 24), (28, 52), (28, 76), (44, 92), (66, 86), (70, 66), (54, 52), (32, 64)]],
    "7": [[(22, 12), (78, 10), (60, 40), (46, 92)], [(34, 52), (74, 52)]],
    "8": [
        [(70, 16), (50, 8), (32, 20), (40, 40), (64, 58), (72, 76), (50, 92), (28, 78), (38, 56), (64, 38), (70, 16)]
    ],
    "9": [[(70, 20), (50, 10), (32, 20), (32, 40), (50, 50), (70, 36), (72, 26), (74, 60), (68, 92)]],
}


def colours_model(path: Path) -> None:
    """Tells whether a picture of 64x64 in colour is red, green or blue."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 64, 64])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(8 * np.eye(3, dtype=np.float32), "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    said = {
        "labels": '["red", "green", "blue"]',
        "image.scale": str(1 / 255),
        "image.layout": "NCHW",
        "image.color": "RGB",
    }
    helper.set_model_props(model, said)
    onnx.save(model, path)


@contextmanager
def sample_server(folder: Path) -> Iterator[ServerProcess]:
    """A server of models that take drawings, pictures, rows and text, and of one that does not load."""
    colours_model(folder / "colours.onnx")
    (folder / "broken.onnx").write_text("no model")
    blank = (
        "<ir_version: 8, opset_import: ['' : 17]>\nblank (float[batch,2,3] x) => (float[batch,2,3] y) { y = Relu(x) }"
    )
    onnx.save(onnx.parser.parse_model(blank.replace("'", '"')), folder / "blocks.onnx")
    named = [MODELS / f"{name}.onnx" for name in ("digits_cnn", "digits_ffnn", "digits_mlp_sklearn")]
    named += [PIPELINES / "standard_mlp.onnx", PIPELINES / "robust_regressor.onnx"]
    with server_process(folder, *map(str, named), "--model-dir", str(folder), ready=False) as started:
        wait_loaded(started)
        yield started


def wait_loaded(server: ServerProcess) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            states = [model["state"] for model in fetch("GET", f"{server.url}/models.json").json()["models"]]
        except httpx.TransportError:
            states = ["loading"]
        if "loading" not in states:
            return
        time.sleep(0.2)
    raise AssertionError(server.log.read_text(errors="replace")[-4000:])


@dataclass
class Visit:
    """A page of the server; everything that went wrong or out is kept, and must be nothing at the end."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def choose(self, model: str) -> None:
        self.page.locator("#list").get_by_role("link", name=re.compile(rf"^{model} ")).click()
        self.page.get_by_role("heading", name=model, exact=True).wait_for()

    def predict(self) -> None:
        """Press the button, and wait for this answer: the one before stands there until it comes."""
        self.page.locator("#answer > *").first.evaluate("e => { e.dataset.before = true; }")
        self.page.get_by_role("button", name="Predict", exact=True).click()
        self.page.locator("#answer[aria-busy=false] > :first-child:not([data-before])").wait_for()

    @property
    def best(self) -> str:
        return self.page.locator("#best strong").inner_text()

    @property
    def error(self) -> str:
        return self.page.get_by_role("alert").filter(visible=True).inner_text()

    def draw(self, digit: str, size: float = 1.0) -> None:
        """By mouse, in the upper left part of the canvas where ``size`` is less than 1."""
        self.page.locator("#pad").scroll_into_view_if_needed()
        box = self.page.locator("#pad").bounding_box()
        assert box is not None
        for stroke in WRITTEN[digit]:
            points = [
                (box["x"] + box["width"] * x * size / 100, box["y"] + box["height"] * y * size / 100) for x, y in stroke
            ]
            self.page.mouse.move(*points[0])
            self.page.mouse.down()
            for point in points[1:]:
                self.page.mouse.move(*point, steps=2)
            self.page.mouse.up()


@contextmanager
def visit(browser: Browser, server: ServerProcess, path: str = "/", **options: Any) -> Iterator[Visit]:
    """Open a page; at the end nothing may have been wrong, and nothing asked of anybody else."""
    context = browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 900}), **options)
    opened = Visit(context.new_page(), server.url)
    opened.page.on("console", lambda message: opened.wrong.append(message.text))
    opened.page.on("pageerror", lambda error: opened.wrong.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.goto(server.url + path)
    # On a narrow page the list is there as well, but not shown.
    opened.page.locator("#list a, .operation, #key-card:not([hidden])").first.wait_for(state="attached")
    yield opened
    assert opened.wrong == []
    assert [url for url in opened.requests if not url.startswith((f"{server.url}/", "data:,"))] == []
    context.close()


def refused(opened: Visit) -> None:
    """A browser logs each answer of 400 and more; it was meant to come."""
    assert len(opened.wrong) == 1 and "Failed to load resource" in opened.wrong[0], opened.wrong
    opened.wrong.clear()


def press(page: Page, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(
            {"L": "ArrowLeft", "R": "ArrowRight", "U": "ArrowUp", "D": "ArrowDown", "_": "Space"}.get(key, key)
        )


def focused(page: Page) -> str:
    """The id, else the text, of what has the focus."""
    return str(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))


def digits(count: int) -> tuple[Any, Any]:
    """Pictures of digits (count, 1, 8, 8), and what they show."""
    with np.load(MODELS / "digits_test.npz") as held:
        return held["image"][:count], held["label"][:count]


def png_of(pixels: Any) -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()
