"""Export the zoo's transformer encoders: full size, random weights, by PyTorch's own exporter.

Needs the packages of ``VERSIONS``: `python models/exports/zoo_encoders.py --out DIR`, some minutes, 4 GB. Text models
leave the batch and the number of tokens open, the others the batch. Encoders of sentences return one vector of norm 1
for each text: MiniLM the mean of its tokens, bge the first one, as their published pipelines do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pinning import check_versions
from saving import Make, ZooModel, run_exports
from torch import Tensor, nn
from torch.nn import functional

VERSIONS = {"torch": "2.13.0", "transformers": "5.24.0", "timm": "1.0.31"}
TOKENS = 128
"""The length to time and to validate a text model with."""

VOCABULARY = 30522
"""The ids of BERT's uncased vocabulary."""

WEIGHTS = 1.0
"""The standard deviation of a matrix's weights, times the square root of its inputs. Libraries draw 0.02, which is
0.55 for 768 inputs. With 1, what a layer adds is as large as what it reads: outputs depend on all tokens and layers."""

Sizes = dict[int, Any]


class Chosen(nn.Module):  # type: ignore[misc]
    """A network of transformers that takes inputs by name, and returns only the results in ``outputs``."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The results that ``outputs`` names."""
        made = self.model(**dict(zip(self.inputs, given, strict=True)))
        return tuple(made[name] for name in self.outputs)


class Sentences(nn.Module):  # type: ignore[misc]
    """An encoder of sentences, (N, L) ids -> (N, D) vectors of norm 1: the mean of the mask's tokens, or the first."""

    def __init__(self, model: nn.Module, *, mean: bool) -> None:
        super().__init__()
        self.model, self.mean = model, mean

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Encode, pool, normalise."""
        tokens = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        if not self.mean:
            return functional.normalize(tokens[:, 0], p=2, dim=1)
        weights = mask.unsqueeze(-1).expand(tokens.shape).to(tokens.dtype)
        pooled = (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return functional.normalize(pooled, p=2, dim=1)


@dataclass(frozen=True)
class Net:
    """A network to export, its inputs by name with an example each, and the names of its results.

    ``most_tokens``: the longest text, where the file leaves the length open; else 0.
    """

    model: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]
    most_tokens: int = 0


@dataclass(frozen=True)
class Row:
    """A model of the zoo: ``largest`` as in ``ZooModel``; ``library`` made its layers."""

    name: str
    kind: str
    title: str
    build: Callable[[], Net]
    largest: dict[str, int] = field(default_factory=dict)
    library: str = "transformers"


def enliven(model: nn.Module) -> None:
    """Draw every parameter: outputs then differ between inputs, and no two tensors are equal, which exporters merge."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.normal_(module.weight, std=WEIGHTS / module.weight[0].numel() ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
        else:
            enliven_own(name, module)


def enliven_own(name: str, module: nn.Module) -> None:
    """Draw the parameters that a layer of a library holds itself: tokens, positions, scales of layers."""
    for label, parameter in module.named_parameters(recurse=False):
        scale = label in ("gamma", "lambda1")
        _ = nn.init.uniform_(parameter, 0.5, 1.0) if scale else nn.init.normal_(parameter, std=0.5)


def ids(inputs: tuple[str, ...], highest: int, length: int) -> dict[str, Tensor]:
    """Two texts: ids, a mask whose second text is padded, and types. No two are one tensor: that would be one input."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    made = (torch.randint(0, highest, (2, length)), mask, torch.zeros_like(mask))
    return dict(zip(inputs, made, strict=False))


def image(size: int) -> dict[str, Tensor]:
    """Two pictures."""
    return {"pixel_values": torch.randn(2, 3, size, size)}


BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def bert(width: int, layers: int, heads: int, pooling: str = "", length: int = TOKENS, **sizes: int) -> Net:
    """BERT of these sizes; ``pooling`` is "mean" or "first" for an encoder of sentences."""
    import transformers

    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width, **sizes
    )
    inputs = ids(BERT_INPUTS, config.vocab_size, length)
    if pooling:
        model = Sentences(transformers.BertModel(config, add_pooling_layer=False), mean=pooling == "mean")
        return Net(model, inputs, ("sentence_embedding",), config.max_position_embeddings)
    outputs = ("last_hidden_state", "pooler_output")
    model = Chosen(transformers.BertModel(config), BERT_INPUTS, outputs)
    return Net(model, inputs, outputs, config.max_position_embeddings)


def transformers_net(model: str, config: Any, inputs: dict[str, Tensor], output: str, part: str = "") -> Net:
    """A network of transformers by its class, or only its module ``part``."""
    import transformers

    made = getattr(transformers, model)(config)
    made = made.get_submodule(part) if part else made
    return Net(Chosen(made, tuple(inputs), (output,)), inputs, (output,))


def distilbert(length: int = TOKENS, **sizes: int) -> Net:
    """Sanh et al. 2019: six layers, no types of tokens."""
    import transformers

    config = transformers.DistilBertConfig(**sizes)
    net = transformers_net(
        "DistilBertModel", config, ids(BERT_INPUTS[:2], config.vocab_size, length), "last_hidden_state"
    )
    return replace(net, most_tokens=config.max_position_embeddings)


def timm_net(name: str, size: int = 224, **sizes: int) -> Net:
    """A classifier of timm by name."""
    import timm

    return Net(timm.create_model(name, pretrained=False, img_size=size, **sizes), image(size), ("logits",))


def dinov2(size: int = 224, trained: int = 518, **sizes: int) -> Net:
    """Oquab et al. 2023; the published weights have the positions of 518 x 518 pixels."""
    import transformers

    config = transformers.Dinov2Config(image_size=trained, patch_size=14, **sizes)
    return transformers_net("Dinov2Model", config, image(size), "pooler_output")


def dinov3(size: int = 224, width: int = 768, heads: int = 12, **sizes: int) -> Net:
    """Simeoni et al. 2025, ViT-B: rotary positions, four registers."""
    import transformers

    config = transformers.DINOv3ViTConfig(
        hidden_size=width, intermediate_size=4 * width, num_attention_heads=heads, num_register_tokens=4, **sizes
    )
    return transformers_net("DINOv3ViTModel", config, image(size), "pooler_output")


def clip_image(size: int = 224, **sizes: int) -> Net:
    """Radford et al. 2021, ViT-B/32: a picture's vector."""
    import transformers

    config = transformers.CLIPVisionConfig(image_size=size, **sizes)
    return transformers_net("CLIPVisionModelWithProjection", config, image(size), "image_embeds")


def clip_text(**sizes: int) -> Net:
    """Its text's vector: that of the token with the highest id, as the published end token of 2 asks."""
    import transformers

    config = transformers.CLIPTextConfig(eos_token_id=2, **sizes)
    inputs = ids(BERT_INPUTS[:2], config.vocab_size, config.max_position_embeddings)
    return transformers_net("CLIPTextModelWithProjection", config, inputs, "text_embeds")


def swin(size: int = 224, **sizes: Any) -> Net:
    """Liu et al. 2021, Swin-T with a classifier."""
    import transformers

    config = transformers.SwinConfig(image_size=size, **{"num_labels": 1000} | sizes)
    return transformers_net("SwinForImageClassification", config, image(size), "logits")


def segformer(size: int = 512, **sizes: Any) -> Net:
    """Xie et al. 2021, B0 with its decoder for ADE20K's 150 classes."""
    import transformers

    config = transformers.SegformerConfig(**{"num_labels": 150} | sizes)
    return transformers_net("SegformerForSemanticSegmentation", config, image(size), "logits")


def whisper(**sizes: int) -> Net:
    """Radford et al. 2022: the encoder of Whisper-tiny, for 30 seconds."""
    import transformers

    config = transformers.WhisperConfig(**sizes)
    features = {"input_features": torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)}
    return transformers_net("WhisperModel", config, features, "last_hidden_state", "encoder")


TEXT = {"input_ids": VOCABULARY - 1, "attention_mask": 1, "token_type_ids": 1}
ROWS = [
    Row("bert_base", "text", "BERT-base", partial(bert, 768, 12, 12), TEXT),
    Row("bert_large", "text", "BERT-large", partial(bert, 1024, 24, 16), TEXT),
    Row("distilbert", "text", "DistilBERT", distilbert, {name: TEXT[name] for name in BERT_INPUTS[:2]}),
    Row("minilm_l6", "sentences", "all-MiniLM-L6-v2", partial(bert, 384, 6, 12, "mean"), TEXT),
    Row("bge_small", "sentences", "bge-small-en-v1.5", partial(bert, 384, 12, 12, "first"), TEXT),
    Row("vit_b16", "images", "ViT-B/16, 224 x 224", partial(timm_net, "vit_base_patch16_224"), library="timm"),
    Row("deit_s", "images", "DeiT-S, 224 x 224", partial(timm_net, "deit_small_patch16_224"), library="timm"),
    Row("dinov2_b14", "images", "DINOv2 ViT-B/14, 224 x 224", dinov2),
    Row("dinov3_b16", "images", "DINOv3 ViT-B/16, 224 x 224", dinov3),
    Row("clip_b32_image", "images", "CLIP ViT-B/32, image, 224 x 224", clip_image),
    Row(
        "clip_b32_text", "text", "CLIP ViT-B/32, text, 77 tokens", clip_text, {"input_ids": 49407, "attention_mask": 1}
    ),
    Row("swin_t", "images", "Swin-T, 224 x 224", swin),
    Row("segformer_b0", "segmentation", "Segformer-B0, 512 x 512", segformer),
    Row("whisper_tiny_encoder", "speech", "Whisper-tiny's encoder, 80 x 3000", whisper),
]


def open_sizes(net: Net) -> tuple[Sizes, ...]:
    """The dimensions that the file leaves open, by input: the batch, and the tokens of a text."""
    sizes: Sizes = {0: torch.export.Dim("batch")}
    if net.most_tokens:
        sizes[1] = torch.export.Dim("tokens", max=net.most_tokens)
    return (sizes,) * len(net.inputs)


def settle(net: Net) -> None:
    """Give BatchNormalization the statistics of the example."""
    layers = [module for module in net.model.modules() if isinstance(module, nn.BatchNorm2d)]
    for layer in layers:
        layer.momentum = None
        layer.reset_running_stats()
        layer.train()
    if layers:
        net.model(*net.inputs.values())
    net.model.eval()


def build(row: Row) -> Net:
    """The network of a row, with the same weights each time."""
    torch.manual_seed(0)
    net = row.build()
    net.model.eval()
    with torch.no_grad():
        enliven(net.model)
        settle(net)
    return net


def export(row: Row, path: Path) -> Net:
    """Write the model of a row, and return its network."""
    net = build(row)
    sizes = open_sizes(net)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.model,
            tuple(net.inputs.values()),
            path,
            input_names=list(net.inputs),
            output_names=list(net.outputs),
            # A module that takes *given has one argument, a tuple.
            dynamic_shapes=(sizes,) if isinstance(net.model, Chosen) else sizes,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    return net


def write(row: Row, path: Path) -> None:
    """Write the model of a row, for ``run_exports``."""
    export(row, path)


def count_parameters(row: Row) -> int:
    """The network's own count, without drawing its weights."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in row.build().model.parameters())


def exports() -> Iterator[tuple[ZooModel, Make]]:
    """Every file with what makes it."""
    for row in ROWS:
        exporter = f"PyTorch {VERSIONS['torch']}, dynamo; {row.library} {VERSIONS[row.library]}"
        is_text = row.largest and row.name != "clip_b32_text"
        title = f"{row.title}, {TOKENS} tokens" if is_text else row.title
        shapes = tuple(f"{name}={TOKENS}" for name in row.largest) if is_text else ()
        model = ZooModel(f"{row.name}.onnx", row.kind, title, exporter, count_parameters(row), shapes, row.largest)
        yield model, partial(write, row)


if __name__ == "__main__":
    check_versions(VERSIONS)
    run_exports(__doc__, exports())
