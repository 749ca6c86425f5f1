"""A tiny sentence-transformers folder, made here, and what sentence-transformers answers for it.

``python tests/shared/sentence_folder.py`` makes the stored graph and answers in ``tests/data/embedding`` again. It
needs torch, sentence-transformers and what ``examples/embedding_server/export.py`` needs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "embedding"
EXAMPLE = ROOT / "examples" / "embedding_server"
WORDS = "the a cat dog sat on mat and ran in of to is it was for with as by that this be are".split()  # noqa: SIM905
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WIDTH, MAX_LENGTH = 16, 24
TEXTS = (
    "a",
    "the cat sat on the mat",
    "A Dog ran!",
    "",
    "zebra",
    "it was the dog that sat on the mat with the cat and ran",
    "the dog is in the mat and the cat is on the mat and it was as it was for a dog to be with a cat",
    " ".join(WORDS * 4),
)
"""Texts of 2 to more than MAX_LENGTH tokens; one word is in no vocabulary."""


def write_folder(path: Path, pooling: str = "mean", *, normalize: bool = True) -> Path:
    """Write all of a folder but the weights, as sentence-transformers before version 5 does; return the path."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": k, "name": str(k), "path": paths[k], "type": f"sentence_transformers.models.{kind}"}
        for k, kind in enumerate(kinds)
    ]
    modes = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    flags = {f"pooling_mode_{name}": mode == pooling for name, mode in modes.items()}
    for module in modules:
        (path / str(module["path"])).mkdir(parents=True, exist_ok=True)
    _write(path / "modules.json", modules)
    _write(path / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **flags})
    _write(path / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH, "do_lower_case": False})
    _write(path / "config.json", _config())
    _write_tokenizer(path)
    return path


def _config() -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
        "initializer_range": 0.3,
    }


def _write_tokenizer(path: Path) -> None:
    """A tokenizer of whole words, in lower case. Its file truncates and pads, as all-MiniLM-L6-v2's does."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: k for k, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path / "tokenizer.json"))
    tokens = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **tokens}
    _write(path / "tokenizer_config.json", settings)


def write_weights(path: Path) -> None:
    """Random weights for a folder; needs torch and transformers."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig(**_config())).save_pretrained(path)


def encode(path: Path) -> NDArray[np.float32]:
    """The embeddings of TEXTS by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    found: NDArray[np.float32] = SentenceTransformer(str(path), device="cpu").encode(list(TEXTS), batch_size=3)
    return found


def cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """The cosine of each row with the other's."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    found: NDArray[np.float64] = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return found


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def main() -> None:
    """Make the stored graph and its answers."""
    sys.path.append(str(EXAMPLE))
    from export import export
    from folder import read_folder

    with tempfile.TemporaryDirectory() as folder:
        path = write_folder(Path(folder))
        write_weights(path)
        DATA.mkdir(exist_ok=True)
        export(read_folder(path), DATA / "model.onnx")
        np.save(DATA / "embeddings.npy", encode(path))


if __name__ == "__main__":
    main()
