"""Tiny image classifiers with random weights as Hugging Face folders, and what transformers' pipeline says with them.

`python tests/shared/tiny_checkpoints.py` writes tests/data/examples/image_classifier anew: it needs torch and
transformers. Tests that have none of these use what is stored there.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "data" / "examples" / "image_classifier"
KINDS = ("vit", "convnext")
NAMES = ["apple", "bear", "chair", "door", "eagle"]


def load_module(name: str) -> ModuleType:
    """A script of the repository as a module, by its path."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(name.removesuffix(".py").replace("/", "_"), ROOT / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_photo(path: Path, size: tuple[int, int] = (75, 52), seed: int = 0) -> Path:
    """A photo without sharp edges between single pixels, as photos are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
    return path


def make_checkpoint(kind: str, folder: Path) -> Path:
    """Write config.json, model.safetensors and preprocessor_config.json as their libraries do."""
    import torch
    from transformers import ConvNextConfig, ConvNextForImageClassification, ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: k for k, name in enumerate(NAMES)}}
    if kind == "vit":
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, **sizes, **names))
        said = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "resample": 2}
    else:
        config = ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], image_size=32, **names)
        model = ConvNextForImageClassification(config)
        said = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32}, "crop_pct": 0.875}
        said["resample"] = 3
    for parameter in model.parameters():  # livelier than the initial weights, whose answers are all alike
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    common = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
    said |= common | {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2]}
    (folder / "preprocessor_config.json").write_text(json.dumps(said, indent=2), encoding="utf-8")
    return folder


def pipeline_shares(folder: Path, photo: Path) -> dict[str, float]:
    """Each class's share, by transformers' pipeline on the CPU."""
    from transformers import pipeline

    answers = pipeline("image-classification", model=str(folder), device="cpu", top_k=None)(str(photo))
    return {answer["label"]: float(answer["score"]) for answer in answers}


def store() -> None:
    """Write the stored folder anew."""
    import onnx

    export, strip = load_module("examples/image_classifier/export_classifier.py"), load_module("models/strip.py")
    for kind in KINDS:
        folder = STORED / kind
        folder.mkdir(parents=True, exist_ok=True)
        make_checkpoint(kind, folder)
        export.export(folder, folder / "model.onnx")
        shares = pipeline_shares(folder, make_photo(STORED / "photo.png"))
        (folder / "shares.json").write_text(json.dumps(shares, indent=2) + "\n", encoding="utf-8")
        (folder / "model.safetensors").unlink()
        stored = onnx.load(folder / "model.onnx")
        metadata = {entry.key: entry.value for entry in stored.metadata_props}
        strip.strip(stored)
        onnx.helper.set_model_props(stored, metadata)
        strip.assert_clean(stored)
        onnx.save(stored, folder / "model.onnx")


if __name__ == "__main__":
    store()
