"""Export tiny encoders of the zoo's families, and commit their graphs without weights.

`python models/exports/tiny_encoders.py`, with the packages of ``zoo_encoders.py``, half a minute. Each has a layer or
two of width 16 or 32. The graphs go to tests/data/encoders, without the networks' parameters, which
tests/shared/randomizing.py draws anew; tables of positions and masks stay.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import onnx
import zoo_encoders as zoo
from zoo_encoders import Row

MODELS = Path(__file__).parents[1]
sys.path.append(str(MODELS))
GRAPHS = MODELS.parent / "tests" / "data" / "encoders"
TEXT = {"vocab_size": 40, "max_position_embeddings": 32}
SMALL = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
CLIP = SMALL | {"projection_dim": 24}
SEGFORMER = {
    "depths": [1, 1],
    "num_labels": 10,
    "num_encoder_blocks": 2,
    "hidden_sizes": [16, 32],
    "num_attention_heads": [1, 2],
    "sr_ratios": [4, 1],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 24,
}
SWIN = {"depths": [2, 1], "num_labels": 10}
VIT = {"size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
}

ROWS = {
    "bert": partial(zoo.bert, 32, 2, 2, "", 16, **TEXT),
    "distilbert": partial(zoo.distilbert, 16, **DISTILBERT, **TEXT),
    "minilm": partial(zoo.bert, 32, 1, 4, "mean", 16, **TEXT),
    "bge": partial(zoo.bert, 32, 1, 4, "first", 16, **TEXT),
    "vit": partial(zoo.timm_net, "vit_base_patch16_224", **VIT),
    "deit": partial(zoo.timm_net, "deit3_small_patch16_224", **VIT),
    "dinov2": partial(zoo.dinov2, 56, 84, hidden_size=32, num_attention_heads=2, num_hidden_layers=2, mlp_ratio=2),
    "dinov3": partial(zoo.dinov3, 64, 32, 2, num_hidden_layers=2),
    "clip_image": partial(zoo.clip_image, 32, patch_size=8, **CLIP),
    "clip_text": partial(zoo.clip_text, **{**CLIP, **TEXT, "max_position_embeddings": 16}),
    "swin": partial(zoo.swin, 32, embed_dim=16, num_heads=[1, 2], window_size=4, patch_size=2, **SWIN),
    "segformer": partial(zoo.segformer, 64, **SEGFORMER),
    "whisper": partial(zoo.whisper, max_source_positions=20, num_mel_bins=16, decoder_layers=1, **WHISPER),
}
"""DeiT is DeiT-3, which scales its layers; DINOv2 has the positions of another size of picture."""


def main() -> None:
    """Export every network, or those that are named, and write its graph."""
    from light import write_light
    from strip import strip

    GRAPHS.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or ROWS:
        row = Row(name, "", "", ROWS[name])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            net = zoo.export(row, path)
            model = onnx.load(path)
        strip(model)
        drawn = {
            tensor
            for weight in net.model.parameters()
            for tensor in (weight, weight.mT if weight.dim() > 1 else weight)
        }
        write_light(model, GRAPHS / f"{name}.onnx", {value.detach().numpy().tobytes() for value in drawn})


if __name__ == "__main__":
    main()
