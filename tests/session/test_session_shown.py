"""A session in a terminal and in a notebook: what it says is right, and names stay text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import parser

import trnrt
from trnrt.ort import notebook
from trnrt.text import range_text

HOSTILE = "</svg><script>alert(1)</script>\"'&\u202e"
X = np.ones((4, 3), np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


def net(body: str = "y = Relu(x)", *, name: str = "x", shape: str = "N,3", y: str = "N,3") -> onnx.ModelProto:
    """A small model over x, whose input is then called ``name``."""
    text = f'<ir_version: 8, opset_import: ["" : 17]>\nnet (float[{shape}] x) => (float[{y}] y) {{ {body} }}'
    model = parser.parse_model(text)
    for node in model.graph.node:
        node.input[:] = [name if each == "x" else each for each in node.input]
    model.graph.input[0].name = name
    return model


class Texts(HTMLParser):
    """Collects the tags of a page, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_one_line_says_what_a_session_is() -> None:
    session = trnrt.InferenceSession(net(), dtype="bf16", target="trn1")
    assert repr(session) == (
        "<InferenceSession 'model': 'x' float [N, 3] -> 'y' float [N, 3]; "
        "target='trn1', dtype='bfloat16', backend='simulator'>"
    )
    assert {"run", "io_binding", "get_modelmeta", "close"} <= set(dir(session))
    assert {"InferenceSession", "SessionOptions", "get_available_providers"} <= set(dir(trnrt))


def test_a_notebook_shows_plan_latency_and_picture() -> None:
    session = trnrt.InferenceSession(net())
    first = Texts(session._repr_html_())
    assert "The plan is that of one row: no run has been made." in first.texts
    assert f"{range_text(session.latency(1))} predicted" in first.texts
    session.run(None, {"x": X})
    page = session._repr_html_()
    shown = Texts(page)
    assert page.isascii() and "script" not in shown.tags
    assert session.last_run.predicted is not None and session.last_run.plan is not None
    assert f"{range_text(session.last_run.predicted)} predicted" in shown.texts
    assert {"step", "ONNX nodes", "held by", "Relu", "[4, 3]", session.last_run.plan.steps[0].name} <= set(shown.texts)
    (picture,) = re.findall(r"<svg.*?</svg>", page, re.S)
    assert ElementTree.fromstring(picture).get("role") == "img"


def test_names_stay_text_in_a_notebook() -> None:
    session = trnrt.InferenceSession(net(name=HOSTILE))
    session.run(None, {HOSTILE: X})
    page = session._repr_html_()
    shown = Texts(page)
    assert "script" not in shown.tags and "alert(1)" in "".join(shown.texts) and "\u202e" not in page
    assert "\n" not in repr(session) and "\u202e" not in repr(session)


def test_a_notebook_does_not_wait_for_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "; ".join(["h0 = Relu(x)", *(f"h{k} = Sin(h{k - 1})" for k in range(1, 70)), "y = Relu(h69)"])
    session = trnrt.InferenceSession(net(long.replace("; ", "\n")))
    monkeypatch.setattr(session, "partition", lambda *_, **__: pytest.fail("planned"))
    assert "Run the session once to see its plan and profile here." in Texts(session._repr_html_()).texts
    ran = trnrt.InferenceSession(net())
    ran.run(None, {"x": X})
    monkeypatch.setattr(notebook, "MOST_INSTRUCTIONS", 1)
    shown = Texts(ran._repr_html_())
    assert "More than 1 instructions: session.latency() predicts the latency." in shown.texts
    assert "Relu" in shown.texts and "svg" not in shown.tags


def test_a_model_that_can_not_be_planned_is_shown_with_the_reason() -> None:
    session = trnrt.InferenceSession(net(shape="N,M", y="N,M"))
    assert any("has the open dimension M" in text for text in Texts(session._repr_html_()).texts)


def test_parts_on_the_cpu_are_rows() -> None:
    session = trnrt.InferenceSession(
        net("h = Relu(x)\nk = Det(h)\ny = Relu(k)", shape="N,3,3", y="N"), fallback="onnxruntime"
    )
    session.run(None, {"x": np.ones((2, 3, 3), np.float32)})
    shown = Texts(session._repr_html_())
    assert {"CPU", "round trip"} <= set(shown.texts)
    assert any("with the round trips to the CPU" in text for text in shown.texts)
