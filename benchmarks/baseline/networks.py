"""The networks of the baseline, as ONNX models with random weights, with their published sizes.

ResNets and VGG come from ``benchmarks.models.networks``, with BatchNormalization folded. The others are built here from
their papers and the code in common use: MobileNetV2 (arXiv:1801.04381, table 2), EfficientNet-B0 (arXiv:1905.11946,
table 1), ConvNeXt-T (arXiv:2201.03545) as in torchvision, U-Net (arXiv:1505.04597) padded and normalised as is usual
today, and YOLOv8n, which has no paper, in ``yolo.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import onnx

from benchmarks.baseline.building import Builder
from benchmarks.baseline.yolo import yolov8n
from benchmarks.models.networks import NETWORKS as FOLDED_NETWORKS

SIDE, CLASSES = 224, 1000


def mobilenet_v2() -> onnx.ModelProto:
    """Inverted residuals; each line of the table: expansion, channels, repeats, stride of the first."""
    b = Builder("mobilenet_v2", SIDE)
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    source, channels = _filter(b, "image", (3, 32), 3, stride=2, act=b.relu6), 32
    for factor, width, repeats, first in table:
        for stride in (first, *[1] * (repeats - 1)):
            source = _widen_and_narrow(b, source, (channels, channels * factor, width), 3, stride, b.relu6, squeezed=0)
            channels = width
    source = b.flatten(b.mean(_filter(b, source, (320, 1280), 1, act=b.relu6)))
    return b.ending(b.linear(source, 1280, CLASSES), CLASSES)


def efficientnet_b0() -> onnx.ModelProto:
    """MobileNetV2 with gates; each line: expansion, size of the filters, channels, repeats, first stride."""
    b = Builder("efficientnet_b0", SIDE)
    table = (
        (1, 3, 16, 1, 1),
        (6, 3, 24, 2, 2),
        (6, 5, 40, 2, 2),
        (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    )
    source, channels = _filter(b, "image", (3, 32), 3, stride=2, act=b.silu), 32
    for factor, size, width, repeats, first in table:
        for stride in (first, *[1] * (repeats - 1)):
            widths = (channels, channels * factor, width)
            source = _widen_and_narrow(b, source, widths, size, stride, b.silu, squeezed=channels // 4)
            channels = width
    source = b.flatten(b.mean(_filter(b, source, (320, 1280), 1, act=b.silu)))
    return b.ending(b.linear(source, 1280, CLASSES), CLASSES)


Activation = Callable[[str], str]


def _filter(
    b: Builder, source: str, shape: tuple[int, int], size: int, stride: int = 1, groups: int = 1, act: Activation = str
) -> str:
    """A convolution without bias, normalised and activated."""
    return act(b.normalise(b.conv(source, shape, size, stride, groups, bias=False), shape[1]))


def _widen_and_narrow(
    b: Builder, source: str, widths: tuple[int, int, int], size: int, stride: int, act: Activation, squeezed: int
) -> str:
    """A 1x1 convolution to more channels, a depthwise convolution, a gate, and a 1x1 convolution back.

    ``squeezed``: the channels inside the gate, 0 for no gate.
    """
    channels, wide, outputs = widths
    inner = source if wide == channels else _filter(b, source, (channels, wide), 1, act=act)
    inner = _filter(b, inner, (wide, wide), size, stride, groups=wide, act=act)
    if squeezed:
        gate = b.conv(b.silu(b.conv(b.mean(inner), (wide, squeezed), 1)), (squeezed, wide), 1)
        inner = b.node("Mul", b.node("Sigmoid", gate), inner)
    inner = _filter(b, inner, (wide, outputs), 1)
    return b.node("Add", source, inner) if stride == 1 and channels == outputs else inner


def convnext_tiny() -> onnx.ModelProto:
    """Four stages of blocks; between them a LayerNorm and a convolution of 2x2 with stride 2."""
    b = Builder("convnext_tiny", SIDE, eps=1e-6)
    widths = (96, 192, 384, 768)
    source = _normalise_channels(b, b.conv("image", (3, widths[0]), 4, 4), widths[0])
    for stage, (width, count) in enumerate(zip(widths, (3, 3, 9, 3), strict=True)):
        if stage:
            before = widths[stage - 1]
            source = b.conv(_normalise_channels(b, source, before), (before, width), 2, 2)
        for _ in range(count):
            source = _convnext_block(b, source, width)
    source = b.flatten(_normalise_channels(b, b.mean(source), widths[-1]))
    return b.ending(b.linear(source, widths[-1], CLASSES), CLASSES)


def _normalise_channels(b: Builder, source: str, channels: int) -> str:
    """LayerNorm of each pixel's channels."""
    return b.transpose(b.layer_norm(b.transpose(source, 0, 2, 3, 1), channels), 0, 3, 1, 2)


def _convnext_block(b: Builder, source: str, width: int) -> str:
    """A depthwise convolution of 7x7, and two layers on the channels, scaled."""
    rows = b.transpose(b.conv(source, (width, width), 7, groups=width), 0, 2, 3, 1)
    rows = b.gelu(b.dense(b.layer_norm(rows, width), width, 4 * width))
    inner = b.transpose(b.dense(rows, 4 * width, width), 0, 3, 1, 2)
    return b.node("Add", b.node("Mul", b.parameter(width, 1, 1, spread=1e-6), inner), source)


def unet(side: int = SIDE) -> onnx.ModelProto:
    """Five levels; up by transposed convolutions of 2x2; two classes per pixel. ``side``: a multiple of 16."""
    b = Builder("unet", side)
    widths = (64, 128, 256, 512, 1024)
    source, kept = "image", list[str]()
    for before, width in pairwise((3, *widths)):
        source = _convolve_twice(b, b.pool(source, 2, 2) if kept else source, before, width)
        kept.append(source)
    kept.pop()
    for width in widths[-2::-1]:
        w = b.parameter(2 * width, width, 2, 2, spread=(1 / (2 * width)) ** 0.5)
        size = {"kernel_shape": [2, 2], "strides": [2, 2]}
        up = b.node("ConvTranspose", source, w, b.parameter(width, spread=0.1), **size)
        source = _convolve_twice(b, b.concat(kept.pop(), up), 2 * width, width)
    return b.ending(b.conv(source, (widths[0], 2), 1), 2, side, side)


def _convolve_twice(b: Builder, source: str, before: int, width: int) -> str:
    """Two convolutions of 3x3."""
    relu = partial(b.node, "Relu")
    return _filter(b, _filter(b, source, (before, width), 3, act=relu), (width, width), 3, act=relu)


@dataclass(frozen=True)
class Network:
    """``build`` gives the model, built anew at each call.

    ``parameters`` and ``published`` (10**9 multiplications; ``counted`` 2: each counted as two operations) are the
    figures of ``source``. ``folded``: the number of parameters missing from the model's weights, such as the scales of
    BatchNormalization folded into convolutions.
    """

    name: str
    title: str
    build: Callable[[], onnx.ModelProto]
    parameters: int
    published: str
    source: str
    folded: int = 0
    counted: int = 1


_TORCHVISION = "torchvision's table of classification weights"
_ULTRALYTICS = "ultralytics' summary of the fused model, which counts FLOP"
_UNETS = "milesial/Pytorch-UNet for 2 classes; of its multiplications no count at this size is known to us"
_BUILDS = {network.name: network.build for network in FOLDED_NETWORKS}

NETWORKS: tuple[Network, ...] = (
    Network("resnet18", "ResNet-18", _BUILDS["resnet18"], 11_689_512, "1.81", _TORCHVISION, folded=4_800),
    Network("resnet50", "ResNet-50", _BUILDS["resnet50"], 25_557_032, "4.09", _TORCHVISION, folded=26_560),
    Network("vgg16", "VGG-16", _BUILDS["vgg16"], 138_357_544, "15.47", _TORCHVISION),
    Network("unet", "U-Net 224", unet, 31_037_698, "", _UNETS),
    Network("convnext_tiny", "ConvNeXt-T", convnext_tiny, 28_589_128, "4.46", _TORCHVISION),
    Network("mobilenet_v2", "MobileNetV2", mobilenet_v2, 3_504_872, "0.3", _TORCHVISION),
    Network("efficientnet_b0", "EfficientNet-B0", efficientnet_b0, 5_288_548, "0.39", _TORCHVISION),
    Network("yolov8n", "YOLOv8n 640", yolov8n, 3_151_904, "8.7", _ULTRALYTICS, counted=2),
)
BY_NAME = {network.name: network for network in NETWORKS}
