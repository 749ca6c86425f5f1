"""Export today's common architectures: built in PyTorch, exported by both exporters, committed without weights.

Each net has the structure and the widths of its paper. Images have 64x64 pixels (LeNet-5: 32x32, the 1-D net: 4000
samples), the least that keeps every stage useful, so that the simulator runs them in seconds. tests/data/architectures
gets only the graphs: light.py takes the weights out, and tests/shared/randomizing.py draws new ones. Keras's graph is
in keras_style.py. Needs PyTorch; `python models/architectures.py`, about a minute.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import onnx
import torch
from digits_data import out_dir
from keras_style import keras_style
from light import write_light
from strip import BATCH, strip
from torch import Tensor, nn

SEED = 0
CLASSES = 1000
IMAGE = (3, 64, 64)
GRAPHS = Path(__file__).parents[1] / "tests" / "data" / "architectures"
Activation = Callable[[], nn.Module]


def conv(into: int, out: int, size: int, act: Activation = nn.ReLU, *, stride: int = 1, groups: int = 1) -> nn.Module:
    """A convolution that keeps the image's size (except for its stride), normalised and activated."""
    filters = nn.Conv2d(into, out, size, stride, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(filters, nn.BatchNorm2d(out), act())


def classifier(features: int, classes: int = CLASSES) -> list[nn.Module]:
    """Global average, dropout and one linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(features, classes)]


def lenet5() -> nn.Module:
    """LeCun et al. 1998: tanh, average pooling."""
    convolutions = [nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)]
    dense = [nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, *dense, nn.Softmax(dim=1))


class Residual(nn.Module):  # type: ignore[misc]
    """``body`` with a skip connection around it; ``shortcut`` brings the input to the output's shape."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut, self.act = body, shortcut or nn.Identity(), act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both paths."""
        return self.act(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """He et al. 2015: basic blocks in four stages of two."""

    def block(into: int, out: int, stride: int) -> nn.Module:
        body = nn.Sequential(conv(into, out, 3, stride=stride), conv(out, out, 3, nn.Identity))
        shortcut = None if into == out else conv(into, out, 1, nn.Identity, stride=stride)
        return Residual(body, shortcut, nn.ReLU())

    layers = [conv(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, padding=1)]
    for into, out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [block(into, out, 1 if into == out else 2), block(out, out, 1)]
    return nn.Sequential(*layers, *classifier(512))


def vgg11_bn() -> nn.Module:
    """Simonyan and Zisserman 2014, configuration A, with BatchNorm; its dense layers see 2x2 pixels, not 7x7."""
    layers, channels = [], 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        layers.append(conv(channels, width, 3) if width else nn.MaxPool2d(2))
        channels = width or channels
    dense: list[nn.Module] = [nn.Flatten()]
    for into in (512 * 2 * 2, 4096):
        dense += [nn.Linear(into, 4096), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, *dense, nn.Linear(4096, CLASSES))


class SqueezeExcite(nn.Module):  # type: ignore[misc]
    """Scale each channel by a number in [0, 1] computed from all channels' means."""

    def __init__(self, channels: int, squeezed: int, act: Activation, gate: Activation) -> None:
        super().__init__()
        squeeze, excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), squeeze, act(), excite, gate())

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> the same."""
        return x * self.gate(x)


def inverted_residual(
    into: int, expanded: int, out: int, size: int, stride: int, act: Activation, squeeze: nn.Module | None
) -> nn.Module:
    """An inverted residual: expand, depthwise convolution, project; a skip connection if shapes allow one."""
    layers = [conv(into, expanded, 1, act)] if expanded != into else []
    layers.append(conv(expanded, expanded, size, act, stride=stride, groups=expanded))
    layers += [squeeze] if squeeze else []
    body = nn.Sequential(*layers, conv(expanded, out, 1, nn.Identity))
    return Residual(body) if stride == 1 and into == out else body


def mobilenet_v2() -> nn.Module:
    """Sandler et al. 2018, table 2, width 1."""
    layers, channels = [conv(3, 32, 3, nn.ReLU6, stride=2)], 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, out, repeats, first in table:
        for stride in (first, *[1] * (repeats - 1)):
            layers.append(inverted_residual(channels, channels * factor, out, 3, stride, nn.ReLU6, None))
            channels = out
    return nn.Sequential(*layers, conv(320, 1280, 1, nn.ReLU6), *classifier(1280))


def mobilenet_v3_small() -> nn.Module:
    """Howard et al. 2019, table 2; squeezed to a quarter, rounded to multiples of 8."""
    layers, channels = [conv(3, 16, 3, nn.Hardswish, stride=2)], 16
    # size of the filters, channels expanded to, channels out, squeezed to, activation, stride
    table: tuple[tuple[int, int, int, int, Activation, int], ...] = (
        (3, 16, 16, 8, nn.ReLU, 2),
        (3, 72, 24, 0, nn.ReLU, 2),
        (3, 88, 24, 0, nn.ReLU, 1),
        (5, 96, 40, 24, nn.Hardswish, 2),
        (5, 240, 40, 64, nn.Hardswish, 1),
        (5, 240, 40, 64, nn.Hardswish, 1),
        (5, 120, 48, 32, nn.Hardswish, 1),
        (5, 144, 48, 40, nn.Hardswish, 1),
        (5, 288, 96, 72, nn.Hardswish, 2),
        (5, 576, 96, 144, nn.Hardswish, 1),
        (5, 576, 96, 144, nn.Hardswish, 1),
    )
    for size, expanded, out, squeezed, act, stride in table:
        squeeze = SqueezeExcite(expanded, squeezed, nn.ReLU, nn.Hardsigmoid) if squeezed else None
        layers.append(inverted_residual(channels, expanded, out, size, stride, act, squeeze))
        channels = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(576, 1024), nn.Hardswish(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, conv(96, 576, 1, nn.Hardswish), *head, nn.Linear(1024, CLASSES))


def efficientnet_b0() -> nn.Module:
    """Tan and Le 2019, table 1; squeezed to a quarter of the block's input."""
    layers, channels = [conv(3, 32, 3, nn.SiLU, stride=2)], 32
    # factor of the expansion, size of the filters, channels out, repeats, stride of the first
    table = (
        (1, 3, 16, 1, 1),
        (6, 3, 24, 2, 2),
        (6, 5, 40, 2, 2),
        (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    )
    for factor, size, out, repeats, first in table:
        for stride in (first, *[1] * (repeats - 1)):
            squeeze = SqueezeExcite(channels * factor, channels // 4, nn.SiLU, nn.Sigmoid)
            layers.append(inverted_residual(channels, channels * factor, out, size, stride, nn.SiLU, squeeze))
            channels = out
    return nn.Sequential(*layers, conv(320, 1280, 1, nn.SiLU), *classifier(1280))


class UNet(nn.Module):  # type: ignore[misc]
    """Ronneberger et al. 2015, padded and normalised; each upsampling uses one of the common methods."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        self.down = nn.ModuleList([self.double(into, out) for into, out in pairwise((3, *widths))])
        bilinear = partial(nn.Upsample, scale_factor=2, mode="bilinear")
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(1024, 512, 2, stride=2),
                nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(512, 256, 3, padding=1)),
                nn.Sequential(bilinear(align_corners=False), nn.Conv2d(256, 128, 1)),
                nn.Sequential(bilinear(align_corners=True), nn.Conv2d(128, 64, 1)),
            ]
        )
        self.merge = nn.ModuleList([self.double(2 * width, width) for width in widths[-2::-1]])
        self.last = nn.Conv2d(64, 2, 1)

    @staticmethod
    def double(into: int, out: int) -> nn.Module:
        """Two convolutions."""
        return nn.Sequential(conv(into, out, 3), conv(out, out, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> the logits (N, 2, H, W) of each pixel; H and W are multiples of 16."""
        kept = [self.down[0](x)]
        for down in self.down[1:]:
            kept.append(down(nn.functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([kept.pop(), up(x)], dim=1))
        return self.last(x)


class Transposed(nn.Module):  # type: ignore[misc]
    """``net`` applied to the last two dimensions, swapped."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """(N, A, B) -> (N, B, A) -> net -> (N, A, B)."""
        return self.net(x.transpose(1, 2)).transpose(1, 2)


class Mixer(nn.Module):  # type: ignore[misc]
    """Tolstikhin et al. 2021, Mixer-S: 8 layers of 512 channels, here on 64 patches of 8x8 pixels."""

    def __init__(self, hidden: int = 512, tokens: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, 8, stride=8)
        layers: list[nn.Module] = []
        for _ in range(8):
            layers.append(Residual(nn.Sequential(nn.LayerNorm(hidden), Transposed(self.mlp(tokens, 256)))))
            layers.append(Residual(nn.Sequential(nn.LayerNorm(hidden), self.mlp(hidden, 2048))))
        self.layers = nn.Sequential(*layers, nn.LayerNorm(hidden))
        self.head = nn.Linear(hidden, CLASSES)

    @staticmethod
    def mlp(features: int, inner: int) -> nn.Module:
        """Two dense layers on the last dimension."""
        return nn.Sequential(nn.Linear(features, inner), nn.GELU(), nn.Linear(inner, features))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 64, 64) -> logits (N, CLASSES)."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.layers(x).mean(dim=1))


class ChannelNorm(nn.LayerNorm):  # type: ignore[misc]
    """LayerNorm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> the same."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Permuted(nn.Module):  # type: ignore[misc]
    """``net`` applied with the channels last, then scaled by channel and permuted back."""

    def __init__(self, net: nn.Module, channels: int) -> None:
        super().__init__()
        self.net, self.scale = net, nn.Parameter(torch.linspace(0.5, 1.5, channels).reshape(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> the same."""
        return self.scale * self.net(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """Liu et al. 2022, ConvNeXt-T's widths with one or two blocks a stage: depthwise 7x7, LayerNorm, GELU."""

    def block(width: int) -> nn.Module:
        dense = [nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        spatial = nn.Conv2d(width, width, 7, padding=3, groups=width)
        return Residual(nn.Sequential(spatial, Permuted(nn.Sequential(*dense), width)))

    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, stride=4), ChannelNorm(96, eps=1e-6)]
    for width, depth in ((96, 1), (192, 1), (384, 2), (768, 1)):
        if width > 96:
            layers += [ChannelNorm(width // 2, eps=1e-6), nn.Conv2d(width // 2, width, 2, stride=2)]
        layers += [block(width) for _ in range(depth)]
    head = [nn.AdaptiveAvgPool2d(1), ChannelNorm(768, eps=1e-6), nn.Flatten(), nn.Linear(768, CLASSES)]
    return nn.Sequential(*layers, *head)


def conv1d() -> nn.Module:
    """Dai et al. 2016, M5, on raw sound; one of its max pools is an average, to cover both kinds."""

    def block(into: int, out: int, size: int, stride: int, pool: nn.Module) -> list[nn.Module]:
        return [nn.Conv1d(into, out, size, stride), nn.BatchNorm1d(out), nn.ReLU(), pool]

    layers = [
        *block(1, 128, 80, 4, nn.MaxPool1d(4)),
        *block(128, 128, 3, 1, nn.AvgPool1d(4)),
        *block(128, 256, 3, 1, nn.MaxPool1d(4)),
        *block(256, 512, 3, 1, nn.AdaptiveAvgPool1d(1)),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 35), nn.LogSoftmax(dim=1))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lenet5, (1, 32, 32)),
    "resnet18": (resnet18, IMAGE),
    "vgg11_bn": (vgg11_bn, IMAGE),
    "mobilenet_v2": (mobilenet_v2, IMAGE),
    "mobilenet_v3_small": (mobilenet_v3_small, IMAGE),
    "efficientnet_b0": (efficientnet_b0, IMAGE),
    "unet": (UNet, IMAGE),
    "mixer": (Mixer, IMAGE),
    "convnext": (convnext, IMAGE),
    "conv1d": (conv1d, (1, 4000)),
}


def vary(net: nn.Module) -> None:
    """Randomise each normalisation: exporters merge equal tensors, as fresh ones all are."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.normal_(module.bias, 0, 0.1)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)


def export(net: nn.Module, shape: tuple[int, ...], *, dynamo: bool) -> onnx.ModelProto:
    """``net`` through one of the exporters, at its default opset, with a symbolic batch."""
    # Two rows: torch.export takes a size of 1 for a constant.
    example = (torch.zeros(2, *shape),)
    if dynamo:
        batch = {"dynamic_shapes": ({0: torch.export.Dim(BATCH)},), "external_data": False, "verbose": False}
    else:
        batch = {"dynamic_axes": {name: {0: BATCH} for name in ("input", "output")}}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Warnings about PyTorch's own insides, and about the TorchScript exporter being the old one.
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        names = {"input_names": ["input"], "output_names": ["output"]}
        torch.onnx.export(net.eval(), example, path, dynamo=dynamo, **names, **batch)
        return onnx.load(path)


def main() -> None:
    """Export every net twice, and write the graphs."""
    out = out_dir("Build the architectures in PyTorch, export them, and write their graphs.", GRAPHS)
    torch.set_num_threads(1)
    for name, (build, shape) in NETS.items():
        torch.manual_seed(SEED)
        net = build()
        vary(net)
        for exporter in ("dynamo", "torchscript"):
            model = export(net, shape, dynamo=exporter == "dynamo")
            strip(model)
            write_light(model, out / f"{name}_{exporter}.onnx")
    write_light(keras_style(), out / "keras_style.onnx")


if __name__ == "__main__":
    main()
