"""Export one PyTorch model of every kind that users asked for, with random weights that let signals through.

Needs torch, torchvision, timm and transformers: `python models/exports/torch_exports.py --out DIR`. Full-size networks
have the sizes of their papers; the others are small, as the table says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch_nets as nets
from saving import Export, Make, run_exports
from torch import Tensor, nn

OPSET = 18
Inputs = tuple[Tensor, ...]
Build = Callable[[], tuple[nn.Module, Inputs]]


def image(*shape: int) -> Inputs:
    """One random input with a batch of 1."""
    return (torch.randn(1, *shape),)


def settle(model: nn.Module, inputs: Inputs) -> None:
    """Give BatchNormalization the statistics of random inputs, so that what flows through keeps its size."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not layers:
        return
    for layer in layers:
        layer.momentum = None
        layer.reset_running_stats()
        layer.train()
        nn.init.uniform_(layer.weight, 0.7, 1.3)
        nn.init.normal_(layer.bias, std=0.1)
    for _ in range(2):
        drawn = [torch.cat([torch.randn_like(x) for _ in range(2)]) if x.is_floating_point() else x for x in inputs]
        model(*drawn)
    model.eval()


def export(build: Build, path: Path, *, dynamo: bool) -> None:
    """Write the model that ``build`` makes, by one of PyTorch's exporters."""
    torch.manual_seed(0)
    model, inputs = build()
    model.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settle(model, inputs)
        torch.onnx.export(model, inputs, path, opset_version=OPSET, dynamo=dynamo, external_data=False)


def vision(name: str, *shape: int, **options: Any) -> tuple[nn.Module, Inputs]:
    """A torchvision classifier or video network by name."""
    from torchvision import models

    return models.get_model(name, weights=None, **options), image(*shape)


def own(build: Callable[[], nn.Module], *shape: int) -> tuple[nn.Module, Inputs]:
    """A network of torch_nets.py for one random input."""
    return build(), image(*shape)


def words(build: Callable[[], nn.Module], inputs: int) -> tuple[nn.Module, Inputs]:
    """A network of torch_nets.py for ids, and maybe a mask."""
    return build(), nets.text(24)[:inputs]


def segmenter(name: str, size: int = 224) -> tuple[nn.Module, Inputs]:
    """A torchvision segmentation network, for 3x224x224; its result is the tensor, not a dict."""
    from torchvision.models import segmentation

    model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=21)
    return nets.Taking(model, "out"), image(3, size, size)


def detector(name: str, size: int) -> tuple[nn.Module, Inputs]:
    """A torchvision detector whose scores are high enough that boxes remain."""
    from torchvision.models import detection

    model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5)
    return nets.Detecting(model), image(3, size, size)


def timm_net(name: str, size: int) -> tuple[nn.Module, Inputs]:
    """A network of timm by name."""
    import timm

    return timm.create_model(name, pretrained=False, num_classes=10), image(3, size, size)


def bert(kind: str) -> tuple[nn.Module, Inputs]:
    """transformers' BERT or DistilBERT of two layers, with ids and a mask of int64."""
    import transformers

    if kind == "bert":
        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
        model = transformers.BertModel(transformers.BertConfig(vocab_size=1000, **sizes))
    else:
        sizes = {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256}
        model = transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=1000, **sizes))
    ids = torch.randint(0, 1000, (1, 32))
    return nets.First(model), (ids, torch.ones_like(ids))


ROWS: list[tuple[str, str, str, Build]] = [
    ("bert", "integers", "BERT of 2 layers, int64 ids and mask", partial(bert, "bert")),
    ("distilbert", "integers", "DistilBERT of 2 layers, int64 ids and mask", partial(bert, "distilbert")),
    ("swin_t", "constant subgraphs", "Swin-T, 3x224x224", partial(vision, "swin_t", 3, 224, 224)),
    ("nfnet_l0", "constant subgraphs", "NFNet-L0 (timm), 3x96x96", partial(timm_net, "nfnet_l0", 96)),
    ("c3d", "3-D", "C3D, 3x16x112x112", partial(own, nets.c3d, 3, 16, 112, 112)),
    ("r3d_18", "3-D", "R3D-18, 3x16x112x112", partial(vision, "r3d_18", 3, 16, 112, 112)),
    ("mc3_18", "3-D", "MC3-18, 3x16x112x112", partial(vision, "mc3_18", 3, 16, 112, 112)),
    ("r2plus1d_18", "3-D", "R(2+1)D-18, 3x16x112x112", partial(vision, "r2plus1d_18", 3, 16, 112, 112)),
    ("s3d", "3-D", "S3D, 3x16x224x224", partial(vision, "s3d", 3, 16, 224, 224)),
    ("unet_3d", "3-D", "3-D U-Net of 3 levels, 1x32x64x64", partial(own, nets.UNet3d, 1, 32, 64, 64)),
    ("lambdanet", "3-D", "LambdaResNet-26-T (timm), 3x128x128", partial(timm_net, "lambda_resnet26t", 128)),
    ("crnn", "recurrent", "CRNN of 2 bidirectional LSTMs, 1x32x100", partial(own, nets.Crnn, 1, 32, 100)),
    ("keyword_gru", "recurrent", "keyword spotter, 2 GRUs over 98x40 features", partial(own, nets.Keywords, 98, 40)),
    ("upscale_cubic", "Resize", "super-resolution by cubic Resize, 3x40x40", partial(own, nets.Upscale, 3, 40, 40)),
    ("shrink_antialias", "Resize", "cubic Resize with antialias, 3x64x64", partial(own, nets.Shrink, 3, 64, 64)),
    ("spatial_transformer", "GridSample", "spatial transformer, 1x28x28", partial(own, nets.Spatial, 1, 28, 28)),
    ("segnet", "MaxUnpool", "SegNet of 2 levels, 3x64x64", partial(own, nets.SegNet, 3, 64, 64)),
    ("einsum_attention", "Einsum", "attention by Einsum, 50x64", partial(own, nets.EinsumAttention, 50, 64)),
    ("causal_lm", "CumSum, Trilu", "causal language model, positions from ids", partial(words, nets.CausalModel, 1)),
    ("causal_lm_mask", "CumSum, Trilu", "the same, positions from a mask", partial(words, nets.CausalModel, 2)),
    ("embedding_bag", "EmbeddingBag", "classifier of bags of 24 words", partial(words, nets.Bag, 1)),
    ("deeplabv3_resnet50", "segmentation", "DeepLabV3, ResNet-50", partial(segmenter, "deeplabv3_resnet50")),
    (
        "deeplabv3_mobilenet",
        "segmentation",
        "DeepLabV3, MobileNetV3",
        partial(segmenter, "deeplabv3_mobilenet_v3_large"),
    ),
    ("fcn_resnet50", "segmentation", "FCN, ResNet-50", partial(segmenter, "fcn_resnet50")),
    ("lraspp", "segmentation", "LR-ASPP, MobileNetV3", partial(segmenter, "lraspp_mobilenet_v3_large")),
    ("ssdlite320", "detectors", "SSDLite, 3x320x320", partial(detector, "ssdlite320_mobilenet_v3_large", 320)),
    ("retinanet", "detectors", "RetinaNet, 3x224x224", partial(detector, "retinanet_resnet50_fpn", 224)),
]
BOTH = ("bert", "distilbert", "nfnet_l0", "swin_t", "crnn", "keyword_gru", "embedding_bag", "causal_lm")
DYNAMO = ("segnet", "shrink_antialias")
"""TorchScript has no operator for antialiasing, and none for MaxUnpool."""


def exports() -> list[tuple[Export, Make]]:
    """All files: by TorchScript, by dynamo, or by both."""
    version = torch.__version__.split("+")[0]
    made: list[tuple[Export, Make]] = []
    for name, kind, title, build in ROWS:
        ways = (False, True) if name in BOTH else (name in DYNAMO,)
        for dynamo in ways:
            way = "dynamo" if dynamo else "TorchScript"
            row = Export(f"{name}_{way.lower()}.onnx", kind, title, f"PyTorch {version}, {way}")
            made.append((row, partial(export, build, dynamo=dynamo)))
    return made


if __name__ == "__main__":
    run_exports(__doc__, exports())
