"""Export PaddlePaddle networks in the style of PaddleClas and PaddleOCR, by `paddle.onnx.export` (paddle2onnx).

Needs paddlepaddle and paddle2onnx: `python models/exports/paddle_exports.py --out DIR`. The batch stays open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional
from saving import Export, Make, run_exports

OPSET = 14
Shape = tuple[int, ...]


def conv(into: int, out: int, size: int, stride: int | Shape = 1, *, groups: int = 1, act: bool = True) -> Any:
    """A normalised convolution, then HardSwish."""
    filters = nn.Conv2D(into, out, size, stride, padding=size // 2, groups=groups, bias_attr=False)
    return nn.Sequential(filters, nn.BatchNorm2D(out), *([nn.Hardswish()] if act else []))


class Squeeze(nn.Layer):  # type: ignore[misc]
    """Squeeze and excitation, gated by HardSigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2D(1),
            nn.Conv2D(width, width // 4, 1),
            nn.ReLU(),
            nn.Conv2D(width // 4, width, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Any) -> Any:
        return x * self.body(x)


def separable(into: int, out: int, size: int, stride: int | Shape = 1, *, gated: bool = False) -> Any:
    """A block of PP-LCNet: depthwise, gated or not, then pointwise."""
    gate = [Squeeze(into)] if gated else []
    return nn.Sequential(conv(into, into, size, stride, groups=into), *gate, conv(into, out, 1))


def lcnet() -> Any:
    """PP-LCNet x0.5 (Cui et al. 2021), with ten classes."""
    blocks = [(8, 16, 3, 1), (16, 32, 3, 2), (32, 32, 3, 1), (32, 64, 3, 2), (64, 64, 3, 1), (64, 128, 3, 2)]
    blocks += [(128, 128, 5, 1)] * 3
    body = [separable(*block) for block in blocks]
    last = [separable(128, 256, 5, 2, gated=True), separable(256, 256, 5, 1, gated=True)]
    head = [nn.AdaptiveAvgPool2D(1), nn.Conv2D(256, 640, 1, bias_attr=False), nn.Hardswish(), nn.Dropout(0.2)]
    classes = nn.Linear(640, 10)
    classes.weight.set_value(classes.weight * 30.0)  # else all classes are about as likely, whatever the image
    return nn.Sequential(conv(3, 8, 3, 2), *body, *last, *head, nn.Flatten(), classes, nn.Softmax())


class Reader(nn.Layer):  # type: ignore[misc]
    """A text reader as PP-OCR has them: separable convolutions to one row, two directions of LSTM, CTC's softmax."""

    def __init__(self, letters: int = 97) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(3, 16, 3, 2), separable(16, 32, 3, (2, 1)), separable(32, 64, 3, (2, 1), gated=True),
            separable(64, 96, 5, (2, 1), gated=True), nn.MaxPool2D(2, 2),
        )  # fmt: skip
        self.lstm = nn.LSTM(96, 48, num_layers=2, direction="bidirect")
        self.last = nn.Linear(96, letters)

    def forward(self, x: Any) -> Any:
        x = self.body(x).squeeze(axis=2).transpose([0, 2, 1])
        return functional.softmax(self.last(self.lstm(x)[0]), axis=2)


def enlarge(x: Any, size: int) -> Any:
    """The image in another size; paddle2onnx 2.1 can't export a scale factor of this version's graphs."""
    return functional.interpolate(x, size=[size, size], mode="nearest")


class Finder(nn.Layer):  # type: ignore[misc]
    """A text finder as PP-OCR has them (DB): features of three levels, enlarged and joined, transposed convolutions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.levels = nn.LayerList([conv(3, 16, 3, 2), separable(16, 32, 3, 2), separable(32, 64, 5, 2, gated=True)])
        self.sides = nn.LayerList([nn.Conv2D(channels, width, 1, bias_attr=False) for channels in (16, 32, 64)])
        self.head = nn.Sequential(
            nn.Conv2D(3 * width, 16, 3, padding=1),
            nn.BatchNorm2D(16),
            nn.ReLU(),
            nn.Conv2DTranspose(16, 1, 2, 2),
            nn.Sigmoid(),
        )

    def forward(self, x: Any) -> Any:
        found = []
        for k, level in enumerate(self.levels):
            x = level(x)
            found.append(self.sides[k](x))
        first, second, third = found
        second = second + enlarge(third, 24)
        first = first + enlarge(second, 48)
        second, third = enlarge(second, 48), enlarge(third, 48)
        return self.head(paddle.concat([first, second, third], axis=1))


class Mixer(nn.Layer):  # type: ignore[misc]
    """A block of a text transformer: LayerNorm, attention of 4 heads, GELU, as paddle.nn writes it; ids in."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(500, width)
        self.body = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.1, activation="gelu", normalize_before=True)
        self.last = nn.Linear(width, 5)

    def forward(self, ids: Any) -> Any:
        return self.last(self.body(self.words(ids)).mean(axis=1))


NETS: dict[str, tuple[str, Callable[[], Any], Shape, str]] = {
    "lcnet": ("PP-LCNet x0.5, 3x96x96", lcnet, (3, 96, 96), "float32"),
    "reader": ("text reader as in PP-OCR: 2 bidirectional LSTMs, 3x32x160", Reader, (3, 32, 160), "float32"),
    "finder": ("text finder as in PP-OCR (DB), 3x96x96", Finder, (3, 96, 96), "float32"),
    "transformer": ("transformer block, 24 ids", Mixer, (24,), "int64"),
}


def settle(model: Any, shape: Shape, dtype: str) -> None:
    """Give BatchNorm the statistics of random inputs."""
    norms = [layer for layer in model.sublayers() if isinstance(layer, nn.BatchNorm2D)]
    for layer in norms:
        layer._momentum = 0.5
    model.train()
    for _ in range(8 if norms else 0):
        model(paddle.randn([8, *shape], dtype=dtype))
    model.eval()


def write(build: Callable[[], Any], shape: Shape, dtype: str, path: Path) -> None:
    """One file, without the folding that needs other packages."""
    os.environ["POLYGRAPHY_AUTOINSTALL_DEPS"] = "0"
    paddle.seed(0)
    model = build()
    settle(model, shape, dtype)
    given = paddle.static.InputSpec([None, *shape], dtype, name="x")
    paddle.onnx.export(model, str(path.with_suffix("")), input_spec=[given], opset_version=OPSET)


def exports() -> list[tuple[Export, Make]]:
    """All files."""
    exporter = f"paddle2onnx {version('paddle2onnx')}, PaddlePaddle {version('paddlepaddle')}"
    return [
        (Export(f"paddle_{name}.onnx", "Paddle", title, exporter), partial(write, build, shape, dtype))
        for name, (title, build, shape, dtype) in NETS.items()
    ]


if __name__ == "__main__":
    run_exports(__doc__, exports())
