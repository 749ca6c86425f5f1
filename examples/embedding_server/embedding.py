"""Texts to embeddings: a tokenizer, and a session that is compiled for a few lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from folder import Folder
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from trnrt import InferenceSession

SHORTEST = 16
"""The shortest default length: a shorter one saves little."""
BATCHES = (1, 8, 32)
"""The default batch sizes."""


class Embedder:
    """Embeds texts as ``SentenceTransformer.encode`` does with the same folder. For one thread at a time.

    ``model``: what ``export.py`` wrote. ``lengths``: the lengths in tokens to compile for, by default powers of two up
    to the folder's limit; ``buckets``: the batch sizes. ``options`` are those of InferenceSession.
    """

    def __init__(
        self,
        folder: Folder,
        model: Path,
        *,
        lengths: Sequence[int] | None = None,
        buckets: Sequence[int] = BATCHES,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.lengths = tuple(sorted(set(lengths or default_lengths(folder.max_length))))
        # A text that no length holds is truncated, too.
        self.tokenizer.enable_truncation(min(folder.max_length, self.lengths[-1]))
        self.session = InferenceSession(model, lengths=self.lengths, buckets=buckets, **options)

    def warm_up(self) -> None:
        """Compile every batch size of every length; the cache keeps the plans."""
        for length in self.lengths:
            for rows in self.session.buckets:
                self._run([[0] * length] * rows)

    def tokenize(self, texts: Sequence[str]) -> list[Encoding]:
        """The tokens of each text, truncated."""
        prepared = [self.folder.prompt + (text.lower() if self.folder.lower else text) for text in texts]
        return list(self.tokenizer.encode_batch(prepared))

    def embed(self, tokens: Sequence[Encoding]) -> NDArray[np.float32]:
        """(texts, width): texts of one length bucket run together, so that short ones don't wait for long ones."""
        groups: dict[int, list[int]] = {}
        for row, encoding in enumerate(tokens):
            size = next(size for size in self.lengths if size >= len(encoding.ids))
            groups.setdefault(size, []).append(row)
        made: list[NDArray[np.float32] | None] = [None] * len(tokens)
        for rows in groups.values():
            for row, vector in zip(rows, self._run([tokens[row].ids for row in rows]), strict=True):
                made[row] = vector
        return np.stack([vector for vector in made if vector is not None])

    def _run(self, ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The embeddings of a few texts; the mask hides what fills shorter ones up."""
        counts = np.array([len(one) for one in ids])[:, None]
        mask = (np.arange(counts.max()) < counts).astype(np.int64)
        filled = np.zeros(mask.shape, np.int64)
        filled[mask == 1] = np.concatenate([np.asarray(one, np.int64) for one in ids])
        (vectors,) = self.session.run(None, {"input_ids": filled, "attention_mask": mask})
        return np.asarray(vectors, np.float32)


def default_lengths(longest: int) -> list[int]:
    """Powers of two from SHORTEST, and the longest."""
    powers = [1 << k for k in range(SHORTEST.bit_length() - 1, longest.bit_length()) if 1 << k < longest]
    return [*powers, longest]
