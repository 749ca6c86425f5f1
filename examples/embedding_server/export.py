"""Export a sentence-transformers folder to ONNX: tokens in, embeddings out, pooled and normalised in the graph.

    python export.py all-MiniLM-L6-v2 -o minilm.onnx

It needs torch, transformers, onnx, onnxscript and onnxruntime, in an environment of its own; the server needs neither
torch nor transformers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from folder import Folder, FolderError, read_folder
from transformers import AutoModel

INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
OPSET = 20
TOLERANCE = 1e-4
"""The largest difference between torch and the file, as a share of the largest number."""


class Embedder(torch.nn.Module):  # type: ignore[misc]
    """The folder's transformer, with its pooling and normalisation."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.transformer = AutoModel.from_pretrained(folder.path, dtype=torch.float32, local_files_only=True)
        self.pooling, self.normalize = folder.pooling, folder.normalize

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(batch, sequence) token ids and mask -> (batch, width) embeddings."""
        hidden = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(pooled, dim=1) if self.normalize else pooled


def export(folder: Folder, output: Path) -> None:
    """Write the model with an open batch and an open length."""
    # Two tensors: torch takes one that is given twice for one input.
    ids, mask = torch.ones((2, 8), dtype=torch.int64), torch.ones((2, 8), dtype=torch.int64)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=folder.max_length)}
    model = Embedder(folder).eval()
    torch.onnx.export(
        model,
        (ids, mask),
        output,
        input_names=INPUTS,
        output_names=[OUTPUT],
        dynamic_shapes=(sizes, sizes),
        opset_version=OPSET,
        external_data=False,
        dynamo=True,
    )
    _forget_traces(output)
    _check(model, output)


def _check(model: Embedder, path: Path) -> None:
    """RuntimeError unless onnxruntime computes the file as torch does the model, with other sizes and a mask."""
    ids = torch.arange(3 * 11, dtype=torch.int64).reshape(3, 11) % model.transformer.config.vocab_size
    mask = (torch.arange(11) < torch.tensor([[11], [4], [1]])).to(torch.int64)
    with torch.inference_mode():
        want = model(ids, mask).numpy()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, dict(zip(INPUTS, (ids.numpy(), mask.numpy()), strict=True)))
    apart = float(np.abs(found - want).max() / np.abs(want).max())
    if not apart < TOLERANCE:
        raise RuntimeError(f"{path}: its embeddings are {apart:.3g} away from torch's, where {TOLERANCE} is allowed")


def _forget_traces(path: Path) -> None:
    """Remove the stack traces of this machine that torch writes beside each node."""
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    for value in model.graph.value_info:
        del value.metadata_props[:]
    onnx.save(model, path)


def main() -> int:
    """Read the command line, and export."""
    parser = argparse.ArgumentParser(description="Export a sentence-transformers folder to ONNX.")
    parser.add_argument("folder", type=Path, help="the folder, with modules.json")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .onnx file to write")
    given = parser.parse_args()
    try:
        folder = read_folder(given.folder)
    except FolderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    export(folder, given.output)
    print(f"{given.output}: {folder.pooling} of the tokens{', normalised' if folder.normalize else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
