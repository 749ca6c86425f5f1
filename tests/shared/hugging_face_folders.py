"""Tiny Hugging Face folders with random weights: a configuration, weights, and a tokenizer or image processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = ("a", "acting", "anna", "bad", "dull", "film", "good", "i", "in", "it", "liked", "not", "paris", "plot", "was")
LONGEST = 40


def make_text_folder(folder: Path, architecture: str, **more: Any) -> Path:
    """A BERT, DistilBERT or RoBERTa with a tokenizer of words. ``more``: for the configuration."""
    import torch
    import transformers

    is_roberta = architecture.startswith("Roberta")
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokenizer = _make_tokenizer(folder, pad=1 if is_roberta else 0, segments=architecture.startswith("Bert"))
    if architecture.startswith("DistilBert"):
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    else:
        sizes |= {"intermediate_size": 64}
    model = getattr(transformers, architecture)
    positions = LONGEST + 2 if is_roberta else LONGEST  # RoBERTa counts positions from the pad token's number
    config = model.config_class(
        vocab_size=len(tokenizer),
        max_position_embeddings=positions,
        pad_token_id=tokenizer.pad_token_id,
        **sizes,
        **more,
    )
    torch.manual_seed(0)
    made = model(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:  # larger ones, so that a wrong token changes the answer
                parameter.normal_(0, 0.3)
    made.save_pretrained(folder)
    return folder


def make_image_folder(folder: Path) -> Path:
    """A ViT for pictures of 32 by 32, with its image processor."""
    import torch
    import transformers

    torch.manual_seed(0)
    names = dict(enumerate(("cat", "dog", "owl")))
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    transformers.ViTForImageClassification(config).eval().save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def _make_tokenizer(folder: Path, pad: int, segments: bool) -> Any:
    """A tokenizer of whole words, saved in the folder. ``pad``: the pad token's number."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    special.insert(pad, "[PAD]")
    numbers = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, numbers[name]) for name in ("[CLS]", "[SEP]")],
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "unk", "mask", "pad")}
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if segments else ["input_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LONGEST, model_input_names=inputs, **names
    )
    fast.save_pretrained(folder)
    return fast
