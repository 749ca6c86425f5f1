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


class Bags(nn.Module):
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


FAMILIES: tuple[Callable[[], Iterator[tuple[str, Sample]]], ...] = (bags,)


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
            for exporter in ("dynamo", "torchscript"):
                onnx.save(export(sample, dynamo=exporter == "dynamo"), out / f"{name}_{exporter}.onnx")


if __name__ == "__main__":
    main()
