"""The tokenizer of a folder, and the lengths that texts are padded to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnrt.errors import ModelFileError
from trnrt.text import one_line

SHORTEST = 16
"""The least length to compile for: shorter texts cost about the same."""
_LONGEST = 512
"""The largest length if neither the tokenizer nor the model names one, as for relative positions."""


def load_tokenizer(given: Any) -> Any:
    """A tokenizer, or the one in a folder; ModelFileError if it can't be read."""
    if not isinstance(given, (str, Path)):
        return given
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(given))
    except Exception as error:  # also a TypeError where there is none
        raise ModelFileError(
            f"{given} has no tokenizer that can be read: {one_line(str(error))}",
            hint="save it there (tokenizer.save_pretrained), or give tokenizer=",
        ) from None


def find_lengths(config: Any, tokenizer: Any) -> tuple[int, ...]:
    """The powers of two up to the longest text that the tokenizer and the model take, and this one."""
    named = (getattr(tokenizer, "model_max_length", None), getattr(config, "max_position_embeddings", None))
    # A tokenizer that knows no limit says 1e30.
    known = [int(size) for size in named if isinstance(size, int | float) and 0 < size < 1e9]
    return spread_lengths(min(known, default=_LONGEST))


def spread_lengths(longest: int) -> tuple[int, ...]:
    """16, 32, 64 and so on up to ``longest``, which is the last."""
    sizes = []
    size = SHORTEST
    while size < longest:
        sizes.append(size)
        size *= 2
    return (*sizes, longest)


def read_pads(tokenizer: Any) -> dict[str, float]:
    """The number in padded places: the tokenizer's own, as some models look for the pad token in their input."""
    token = getattr(tokenizer, "pad_token_id", None)
    return {} if token is None else {"input_ids": float(token)}
