"""A detector and a segmenter on the server's page, in a real browser: boxes and masks in the chosen picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from serving import ServerProcess, server_process
from vision_models import COLOURS, save_detector, save_segmenter, thirds
from visiting import visit, wait_loaded

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo that is larger than the models' inputs, and wider."""
    path = tmp_path_factory.mktemp("photos") / "thirds.png"
    thirds(192, 96).save(path)
    return path


@pytest.fixture(scope="module")
def vision_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a detector, a segmenter, and one whose outputs may be an image."""
    folder = tmp_path_factory.mktemp("vision")
    files = [save_detector(folder / "finder.onnx"), save_segmenter(folder / "colours.onnx")]
    files.append(save_segmenter(folder / "unnamed.onnx", {"image.scale": COLOURS["image.scale"]}))
    with server_process(folder, *map(str, files), "--max-batch", "1", ready=False) as started:
        wait_loaded(started)
        yield started


def drawn(page: Page) -> Image.Image:
    """What is on the canvas."""
    page.locator("#drawn[data-done=true]").wait_for()
    written = page.locator("#drawn").evaluate("canvas => canvas.toDataURL().split(',')[1]")
    return Image.open(io.BytesIO(base64.b64decode(written))).convert("RGB")


def pixel(picture: Image.Image, x: float, y: float) -> NDArray[Any]:
    """The colour at a place, given in shares of the picture's sides."""
    return np.array(picture.getpixel((int(x * picture.width), int(y * picture.height))))


def swatches(page: Page) -> dict[str, list[int]]:
    """The legend's names and colours."""
    rows = page.locator("#legend li")
    script = "e => [e.querySelector('.name').textContent, getComputedStyle(e.querySelector('.swatch')).backgroundColor]"
    found = [row.evaluate(script) for row in rows.all()]
    return {name: [int(part) for part in color[4:-1].split(",")] for name, color in found}


@pytest.mark.parametrize("width", [1280, 390])
def test_boxes_are_drawn_with_a_legend(browser: Browser, vision_server: ServerProcess, photo: Path, width: int) -> None:
    with visit(browser, vision_server, "/#model/finder", viewport={"width": width, "height": 900}) as opened:
        opened.page.locator("#file").set_input_files(photo)
        opened.predict()
        assert opened.best == "2 boxes"
        colors = swatches(opened.page)
        assert set(colors) == {"red thing", "green thing"}
        # The green thing's right edge is at 180 of 192 pixels, from 12 to 84 of 96.
        picture = drawn(opened.page)
        assert pixel(picture, 180 / 192, 0.5).tolist() == colors["green thing"]
        assert pixel(picture, 0.05, 0.5).tolist() == [255, 0, 0]
        assert "task detect" in opened.page.locator("#rule").inner_text()
        spoken = opened.page.locator("#drawn").get_attribute("aria-label")
        assert spoken is not None and spoken.startswith("2 boxes: ") and "red thing 0." in spoken
        assert spoken in opened.page.locator("#status").inner_text()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_mask_is_laid_over_in_the_legends_colours(
    browser: Browser, vision_server: ServerProcess, photo: Path
) -> None:
    with visit(browser, vision_server, "/#model/colours") as opened:
        opened.page.locator("#file").set_input_files(photo)
        opened.predict()
        assert opened.best == "3 classes"
        colors, picture = swatches(opened.page), drawn(opened.page)
        for place, name, under in (
            (0.15, "red", (255, 0, 0)),
            (0.5, "green", (0, 255, 0)),
            (0.85, "blue", (0, 0, 255)),
        ):
            share = 140 / 255
            blended = np.array(colors[name]) * share + np.array(under) * (1 - share)
            assert np.abs(pixel(picture, place, 0.5) - blended).max() <= 3


def test_outputs_that_may_be_an_image_are_drawn_only_if_asked(
    browser: Browser, vision_server: ServerProcess, photo: Path
) -> None:
    with visit(browser, vision_server, "/#model/unnamed") as opened:
        opened.page.locator("#file").set_input_files(photo)
        assert opened.page.get_by_label("The answer", exact=True).input_value() == "none"
        opened.predict()
        assert opened.page.locator("#drawn").count() == 0
        opened.page.get_by_label("The answer", exact=True).select_option("mask")
        opened.predict()
        assert opened.best == "3 classes"
        assert "&draw=mask" in opened.page.locator("#curl").inner_text()


def test_a_turned_photo_is_drawn_upright(browser: Browser, vision_server: ServerProcess, tmp_path: Path) -> None:
    turned = thirds(192, 96).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    with visit(browser, vision_server, "/#model/finder") as opened:
        opened.page.locator("#file").set_input_files(tmp_path / "turned.jpg")
        opened.predict()
        assert "in 192 x 96 pixels" in opened.page.locator("#best").inner_text()
        assert np.abs(pixel(drawn(opened.page), 0.05, 0.9) - (255, 0, 0)).max() < 12
