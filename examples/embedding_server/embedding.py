"""Texts to embeddings: a tokenizer, and a session that is compiled for a few lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from folder import Folder, FolderError
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers

from trnrt import InferenceSession
from trnrt.errors import OptionError

SHORTEST = 16
"""The shortest default length: a shorter one saves little."""
BATCHES = (1, 8, 32)
"""The default batch sizes."""


class Embedder:
    """Embeds texts as ``SentenceTransformer.encode`` does with the same folder. For one thread at a time.

    ``model``: the file that ``export.py`` wrote. ``lengths``: the lengths in tokens to compile for, by default powers
    of two up to the folder's limit; ``buckets``: the batch sizes. ``options`` are those of InferenceSession.
    FolderError for a tokenizer that can't be read; OptionError for lengths that don't suit the folder.
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
        self.tokenizer = _open_tokenizer(folder)
        self.lengths = tuple(sorted(set(lengths or default_lengths(folder.max_length))))
        self._check_lengths()
        # A text that no length holds is truncated, too.
        self.tokenizer.enable_truncation(self.lengths[-1])
        self.session = InferenceSession(model, lengths=self.lengths, buckets=buckets, **options)

    def _check_lengths(self) -> None:
        """OptionError for a length that no text needs, or if no word fits into the largest."""
        longest, special = self.lengths[-1], self.tokenizer.num_special_tokens_to_add(is_pair=False)
        if longest > self.folder.max_length:
            limit = f"the folder truncates texts to {self.folder.max_length:,} tokens"
            raise OptionError(f"length {longest:,} is never used: {limit}", hint="leave out the lengths above that")
        if longest <= special:
            raise OptionError(
                f"length {longest} holds no word: the tokenizer adds {special} tokens to each text",
                hint=f"give a length of {special + 1} or more",
            )

    def warm_up(self) -> None:
        """Compile every batch size of every length; the cache keeps the plans."""
        for length in self.lengths:
            for rows in self.session.buckets:
                self._run([[0] * length] * rows)

    def tokenize(self, texts: Sequence[str]) -> list[Encoding]:
        """The tokens of each text, truncated."""
        return list(self.tokenizer.encode_batch([self.folder.prompt + text for text in texts]))

    def embed(self, tokens: Sequence[Encoding]) -> NDArray[np.float32]:
        """The embeddings (texts, width) of one text or more; a run for each length, so that short texts are quick."""
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
        """The embeddings of texts in one run; the mask hides the padding of the shorter ones."""
        counts = np.array([len(one) for one in ids])[:, None]
        mask = (np.arange(counts.max()) < counts).astype(np.int64)
        filled = np.zeros(mask.shape, np.int64)
        filled[mask == 1] = np.concatenate([np.asarray(one, np.int64) for one in ids])
        (vectors,) = self.session.run(None, {"input_ids": filled, "attention_mask": mask})
        return np.asarray(vectors, np.float32)


def _open_tokenizer(folder: Folder) -> Tokenizer:
    """The folder's tokenizer, without the padding of its file."""
    path = folder.path / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no class of its own
        raise FolderError(f"can't read {path}: {error}") from None
    tokenizer.no_padding()
    if folder.lower:  # not str.lower: it would change special tokens in a text, too
        before = tokenizer.normalizer
        tokenizer.normalizer = Normalizers([Lowercase(), *([] if before is None else [before])])
    return tokenizer


def default_lengths(longest: int) -> list[int]:
    """Powers of two from SHORTEST, and the longest."""
    powers = [1 << k for k in range(SHORTEST.bit_length() - 1, longest.bit_length()) if 1 << k < longest]
    return [*powers, longest]
