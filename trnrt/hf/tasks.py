"""The tasks whose pipelines trnrt runs: one pass through an encoder or a classifier."""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.errors import OptionError
from trnrt.text import quote


@dataclass(frozen=True)
class Task:
    """A task of transformers.

    ``export``: optimum's name for it. ``head``: the part of a fitting architecture's name; "" if the model needs no
    head. ``outputs``: the outputs that the pipeline reads.
    """

    name: str
    export: str
    head: str
    outputs: tuple[str, ...] = ("logits",)
    is_text: bool = True


_SEQUENCE = "ForSequenceClassification"
_HIDDEN = ("last_hidden_state",)
TASKS = {
    task.name: task
    for task in (
        Task("feature-extraction", "feature-extraction", "", _HIDDEN),
        Task("fill-mask", "fill-mask", "ForMaskedLM"),
        Task("image-classification", "image-classification", "ForImageClassification", is_text=False),
        Task("image-feature-extraction", "feature-extraction", "", _HIDDEN, is_text=False),
        Task("question-answering", "question-answering", "ForQuestionAnswering", ("start_logits", "end_logits")),
        Task("text-classification", "text-classification", _SEQUENCE),
        Task("token-classification", "token-classification", "ForTokenClassification"),
        Task("zero-shot-classification", "text-classification", _SEQUENCE),
    )
}
_ALIASES = {"ner": "token-classification", "sentiment-analysis": "text-classification"}
"""transformers' other names."""

_GENERATING = ("generation", "image-to-text", "summarization", "text-to-text", "translation")


def find_task(name: str) -> Task:
    """The task of a name; OptionError with the reason if trnrt has no pipeline for it."""
    task = TASKS.get(_ALIASES.get(name, name))
    if task is not None:
        return task
    reason = "trnrt runs no pipeline for it"
    if any(part in name for part in _GENERATING):
        reason = "trnrt generates no text: it has no KV cache, and would compute all positions again for each token"
    raise OptionError(f"task {quote(name)}: {reason}", hint=f"it runs {', '.join(TASKS)}")
