"""Export the zoo's convolutional networks: torchvision's classifiers and SSDlite, and the U-Net of architectures.py.

Needs torch, torchvision, onnxscript and scikit-learn: `python models/exports/zoo_vision.py --out DIR`. Weights are
random, but lively: BatchNormalization takes its statistics from random pictures, and what a fresh network scales down
to nothing is drawn anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from pinning import check_versions
from saving import Make, ZooModel, run_exports
from torch import Tensor, nn
from torch_exports import settle
from torch_nets import Detecting

sys.path.insert(0, str(Path(__file__).parents[1]))
from architectures import UNet

VERSIONS = {"torch": "2.14.1", "torchvision": "0.29.1", "onnx": "1.23.2", "onnxscript": "0.7.2"}
OPSET = 18
ROWS = 2
"""Rows of the example: torch.export takes a batch of 1 for a constant."""
LOGIT_SPREAD = 2.0
Build = Callable[[], nn.Module]


def classifier(name: str) -> nn.Module:
    """A classifier of torchvision, for 1000 classes."""
    from torchvision import models

    return models.get_model(name, weights=None)


def detector() -> nn.Module:
    """SSDlite for the 91 classes of COCO: boxes, scores and labels of one picture."""
    from torchvision.models import detection

    return Detecting(detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None))


NETWORKS: dict[str, tuple[str, int, int, Build]] = {
    "convnext_tiny": ("ConvNeXt-T", 224, 28_589_128, partial(classifier, "convnext_tiny")),
    "resnet50": ("ResNet-50", 224, 25_557_032, partial(classifier, "resnet50")),
    "efficientnet_b0": ("EfficientNet-B0", 224, 5_288_548, partial(classifier, "efficientnet_b0")),
    "mobilenet_v3_large": ("MobileNetV3-large", 224, 5_483_032, partial(classifier, "mobilenet_v3_large")),
    "unet": ("U-Net of 64 to 1024 channels", 256, 31_570_178, UNet),
    "ssdlite320": ("SSDlite", 320, 3_440_060, detector),
}
"""Name -> title, size of the pictures, parameters, and what builds it."""


def enliven(model: nn.Module, pictures: Tensor) -> None:
    """Draw what a fresh network scales down to nothing, and take BatchNormalization's statistics from pictures."""
    from torchvision.models.convnext import CNBlock

    for module in model.modules():
        if isinstance(module, CNBlock):
            nn.init.uniform_(module.layer_scale, 0.1, 0.3)
    settle(model, (pictures,))


def spread_logits(model: nn.Module, pictures: Tensor) -> None:
    """Scale a classifier's last layer so that its logits differ as a trained network's do."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    logits = model(pictures)
    last.weight.data.mul_(LOGIT_SPREAD / (logits - logits.mean(dim=0)).std())


def export(name: str, path: Path) -> None:
    """Write a network by PyTorch's exporter, with an open batch; SSDlite by the older one, for one picture.

    Raises ValueError if the network has another number of parameters.
    """
    _, size, parameters, build = NETWORKS[name]
    torch.manual_seed(0)
    model = build().eval()
    if (found := sum(parameter.numel() for parameter in model.parameters())) != parameters:
        raise ValueError(f"{name} has {found:,} parameters, not {parameters:,}: correct the table of this script")
    with torch.no_grad():
        pictures = torch.rand(ROWS, 3, size, size)
        enliven(model, pictures)
        if name == "ssdlite320":
            torch.onnx.export(model, (pictures[:1],), path, opset_version=OPSET, dynamo=False)
            return
        if name != "unet":
            spread_logits(model, pictures)
        batch = ({0: torch.export.Dim("batch")},)
        torch.onnx.export(model, (pictures,), path, opset_version=OPSET, dynamic_shapes=batch, external_data=False)


def exports() -> Iterator[tuple[ZooModel, Make]]:
    """Every file with what makes it."""
    torch_release = f"PyTorch {VERSIONS['torch']}"
    for name, (title, size, parameters, _) in NETWORKS.items():
        way = "TorchScript" if name == "ssdlite320" else "dynamo"
        kind = "detectors" if name == "ssdlite320" else "convolutional"
        row = ZooModel(f"{name}.onnx", kind, f"{title}, {size} x {size}", f"{torch_release}, {way}", parameters)
        yield row, partial(export, name)


if __name__ == "__main__":
    check_versions(VERSIONS)
    run_exports(__doc__, exports())
