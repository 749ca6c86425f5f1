"""Trains the feed-forward net and the convolutional net with PyTorch and exports each with both of its exporters."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections import OrderedDict
from importlib.metadata import version
from pathlib import Path

import onnx
import torch
from digits_data import CLASSES, Digits, load_split, out_dir
from measure import report
from strip import BATCH, finish
from torch import Tensor, nn

SEED = 0
EPOCHS = 250
BATCH_SIZE = 64
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
# The CNN outputs logits: this much smoothing keeps them small, and so their rounding errors in 16-bit formats.
LABEL_SMOOTHING = {"ffnn": 0.05, "cnn": 0.5}
# Rotation and shear in radians, scale as a fraction, shift in half widths (0.15 of 4 pixels).
ROTATION, SHEAR, SCALE, SHIFT = 0.16, 0.12, 0.06, 0.15
# Both exporters support it, and so does every onnxruntime that trnrt takes.
OPSET = 20


class Head(nn.Module):  # type: ignore[misc]
    """Logits (N, C), to probabilities (N, C) float32 and label (N,) int64."""

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The label comes from the logits: if two probabilities both round to 1, it is still that of the larger one."""
        return torch.softmax(logits, dim=1), torch.argmax(logits, dim=1)


def with_head(net: nn.Module) -> nn.Module:
    """`net` and the head in one flat sequence, so that the exported names carry no prefix."""
    return nn.Sequential(OrderedDict([*net.named_children(), ("head", Head())]))


def ffnn() -> nn.Module:
    """64 -> 128 -> 64 -> 10."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(64, 128),
            relu1=nn.ReLU(),
            fc2=nn.Linear(128, 64),
            relu2=nn.ReLU(),
            fc3=nn.Linear(64, len(CLASSES)),
        )
    )


def cnn() -> nn.Module:
    """(1, 8, 8) -> (16, 4, 4) -> (32, 2, 2) -> 10; the dropout is for training only and leaves no node behind."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            dropout=nn.Dropout(0.2),
            fc=nn.Linear(128, len(CLASSES)),
        )
    )


def distort(image: Tensor) -> Tensor:
    """Each image rotated, sheared, scaled and shifted a little, at random, like another handwriting."""

    def draw(limit: float) -> Tensor:
        return (torch.rand(len(image)) * 2 - 1) * limit

    angle, shear = draw(ROTATION), draw(SHEAR)
    across = torch.stack([(1 + draw(SCALE)) * torch.cos(angle), shear - torch.sin(angle), draw(SHIFT)], dim=1)
    down = torch.stack([torch.sin(angle), (1 + draw(SCALE)) * torch.cos(angle), draw(SHIFT)], dim=1)
    grid = nn.functional.affine_grid(torch.stack([across, down], dim=1), list(image.shape), align_corners=False)
    return nn.functional.grid_sample(image, grid, align_corners=False)


def train(net: nn.Module, data: Digits, smoothing: float) -> None:
    """Train `net` in place."""
    image, label = torch.from_numpy(data.image), torch.from_numpy(data.label)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * math.ceil(len(label) / BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(EPOCHS):
        seen = distort(image)
        for rows in torch.randperm(len(label)).split(BATCH_SIZE):
            loss = nn.functional.cross_entropy(net(seen[rows]), label[rows], label_smoothing=smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def export(net: nn.Module, outputs: list[str], path: Path, *, dynamo: bool) -> None:
    """Write `net` to `path` with the torch.export-based exporter (`dynamo`) or the TorchScript one."""
    net.eval()
    # Two rows: torch.export takes a size of 1 for a constant.
    example = (torch.zeros(2, 1, 8, 8),)
    if dynamo:
        batch = {"dynamic_shapes": ({0: torch.export.Dim(BATCH)},), "external_data": False, "verbose": False}
    else:
        batch = {"dynamic_axes": {name: {0: BATCH} for name in ["image", *outputs]}}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Warnings about PyTorch's own insides, and about the TorchScript exporter being the old one, which is used on
        # purpose.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        raw = Path(folder) / path.name
        torch.onnx.export(
            net, example, raw, dynamo=dynamo, opset_version=OPSET, input_names=["image"], output_names=outputs, **batch
        )
        model = onnx.load(raw)
    finish(model, path, CLASSES, image=True)


def exporter_text(*, dynamo: bool) -> str:
    """The exporter and its versions, for the table in README.md."""
    exporter = f"`dynamo=True` (onnxscript {version('onnxscript')})" if dynamo else "`dynamo=False` (TorchScript)"
    return f"PyTorch {version('torch').split('+')[0]}, `torch.onnx.export`, {exporter}"


def main() -> None:
    """Train both nets, export each twice, and report the scores of the files."""
    out = out_dir("Train the digits nets with PyTorch and export them.")
    data, test = load_split()
    # More threads add up in another order; the same seed would give other weights.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name, build, outputs in (("ffnn", ffnn, ["probabilities", "label"]), ("cnn", cnn, ["logits"])):
        torch.manual_seed(SEED)
        net = build()
        train(net, data, LABEL_SMOOTHING[name])
        for suffix, dynamo in (("", True), ("_legacy", False)):
            path = out / f"digits_{name}{suffix}.onnx"
            export(with_head(net) if "label" in outputs else net, outputs, path, dynamo=dynamo)
            report(path, test, exporter_text(dynamo=dynamo))


if __name__ == "__main__":
    main()
