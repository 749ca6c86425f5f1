"""Export layers that PyTorch writes as several operators, or as control flow, by both exporters.

tests/data/torch_layers gets the files; tests/e2e/test_torch_layers.py runs them. Needs PyTorch;
`python models/torch_layers.py`, half a minute.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from digits_data import out_dir
from strip import strip
from torch import Tensor, nn

SEED = 0
FILES = Path(__file__).parents[1] / "tests" / "data" / "torch_layers"
ROWS, FEATURES = 20, 6
Sample = tuple[nn.Module, tuple[Tensor, ...], list[str], dict[str, dict[int, str]]]


class Bags(nn.Module):  # type: ignore[misc]
    """EmbeddingBag and a linear layer: of ragged bags by offsets, which may be constant, or of a bag for each row."""

    def __init__(self, mode: str, offsets: Tensor | None = None, **options: Any) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, FEATURES, mode=mode, **options)
        self.last = nn.Linear(FEATURES, 3)
        self.register_buffer("offsets", offsets)

    def forward(self, x: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        return self.last(self.bags(x, self.offsets if offsets is None else offsets, weights))


def bags() -> Iterator[tuple[str, Sample]]:
    """Every mode with offsets from an input, constant ones, and a bag for each row; weights; a last offset."""
    x, offsets, rows = torch.randint(0, ROWS, (9,)), torch.tensor([0, 3, 3, 7]), torch.randint(0, ROWS, (4, 5))
    for mode in ("sum", "mean", "max"):
        yield f"bags_{mode}", (Bags(mode), (x, offsets), ["x", "o"], {})
        yield f"bags_{mode}_constant", (Bags(mode, offsets), (x,), ["x"], {})
        yield f"bags_{mode}_rows", (Bags(mode), (rows,), ["x"], {"x": {0: "batch"}})
    yield "bags_weighed", (Bags("sum"), (x, offsets, torch.rand(9)), ["x", "o", "w"], {})
    last = torch.tensor([0, 3, 3, 9])
    yield "bags_last_offset", (Bags("mean", include_last_offset=True), (x, last), ["x", "o"], {})


class Sampler(nn.Module):  # type: ignore[misc]
    """grid_sample of images or volumes."""

    def __init__(self, mode: str, padding: str, *, align: bool) -> None:
        super().__init__()
        self.mode, self.padding, self.align = mode, padding, align

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        return nn.functional.grid_sample(x, grid, self.mode, self.padding, align_corners=self.align)


def samplers() -> Iterator[tuple[str, Sample]]:
    """grid_sample's modes and paddings, but for its defaults."""
    axes = {name: {0: "batch"} for name in ("x", "grid")}
    images = torch.randn(2, 3, 6, 5), torch.rand(2, 4, 7, 2) * 4 - 2
    volumes = torch.randn(2, 3, 4, 6, 5), torch.rand(2, 4, 7, 3, 3) * 4 - 2
    for mode, padding, align in (("bicubic", "border", False), ("bicubic", "reflection", True)):
        yield f"sampler_{mode}_{padding}", (Sampler(mode, padding, align=align), images, ["x", "grid"], axes)
    for mode, padding, align in (("bilinear", "reflection", False), ("nearest", "zeros", True)):
        yield f"sampler_volumes_{mode}_{padding}", (Sampler(mode, padding, align=align), volumes, ["x", "grid"], axes)


class Segmenter(nn.Module):  # type: ignore[misc]
    """SegNet in small: an encoder that keeps the places of its maxima, and a decoder that puts them back there."""

    def __init__(self, *, sized: bool) -> None:
        super().__init__()
        self.sized = sized
        self.into, self.inner, self.out = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 8), (8, 4)))
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.relu(self.into(x))
        half, places = self.pool(wide)
        half = torch.relu(self.inner(half))
        quarter, inner_places = self.pool(half)
        sizes = [value.shape[2:] if self.sized else None for value in (half, wide)]
        back = self.unpool(quarter, inner_places, output_size=sizes[0])
        return self.out(self.unpool(torch.relu(self.inner(back)), places, output_size=sizes[1]))


def segmenters() -> Iterator[tuple[str, Sample]]:
    """Images whose sizes divide by four, and others, whose decoder gets the sizes. The old exporter can't unpool."""
    yield "segmenter", (Segmenter(sized=False), (torch.randn(2, 3, 16, 12),), ["x"], {"x": {0: "batch"}})
    yield "segmenter_sized", (Segmenter(sized=True), (torch.randn(2, 3, 18, 15),), ["x"], {"x": {0: "batch"}})


FAMILIES: tuple[Callable[[], Iterator[tuple[str, Sample]]], ...] = (bags, samplers, segmenters)


def export(sample: Sample, *, dynamo: bool) -> onnx.ModelProto:
    """The stripped model, exported by the new exporter (``dynamo``) or by the old one."""
    module, inputs, names, axes = sample
    options: dict[str, Any] = {"dynamic_axes": axes}
    if dynamo:
        shapes = tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.DYNAMIC) for name in names)
        options = {"dynamic_shapes": shapes if axes else None, "external_data": False, "verbose": False}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Warnings about PyTorch's own insides, and about the TorchScript exporter being the old one.
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(module.eval(), inputs, path, dynamo=dynamo, input_names=names, **options)
        model = onnx.load(path)
    strip(model)
    return model


def main() -> None:
    """Export every layer twice, and write the files."""
    out = out_dir("Export layers that PyTorch writes as several operators, or as control flow.", FILES)
    torch.set_num_threads(1)
    for family in FAMILIES:
        torch.manual_seed(SEED)
        for name, sample in family():
            for exporter in ("dynamo",) if family is segmenters else ("dynamo", "torchscript"):
                onnx.save(export(sample, dynamo=exporter == "dynamo"), out / f"{name}_{exporter}.onnx")


if __name__ == "__main__":
    main()
