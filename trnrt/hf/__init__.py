"""Pipelines of Hugging Face's transformers, computed by trnrt.

    from trnrt.hf import pipeline

    classify = pipeline("text-classification", "FOLDER")
    classify(["a good film", "a dull plot"])

``pip install 'trnrt[hf]'`` installs transformers, optimum (which exports the model) and torch. They are imported by the
first call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trnrt.errors import BackendError, OptionError
from trnrt.hf.exporting import find_export, read_config
from trnrt.hf.tasks import Task, find_task
from trnrt.hf.tokenizing import find_lengths, load_tokenizer, read_pads
from trnrt.session import InferenceSession
from trnrt.text import names_text

FilePath = str | os.PathLike[str]


def pipeline(
    task: str,
    folder: FilePath,
    *,
    target: FilePath | None = None,
    dtype: object = None,
    lengths: Sequence[int] | None = None,
    exported: FilePath | None = None,
    session: InferenceSession | None = None,
    **options: Any,
) -> Any:
    """A pipeline of transformers for a Hugging Face folder, whose model runs on trnrt.

    - ``task``: "text-classification", "token-classification", "question-answering", "fill-mask", "feature-extraction",
      "zero-shot-classification", "image-classification" or "image-feature-extraction".
    - ``folder``: what ``save_pretrained`` or ``hf download NAME --local-dir FOLDER`` wrote: the configuration, the
      weights, and the tokenizer or image processor.
    - ``target``, ``dtype``: as in ``InferenceSession``.
    - ``lengths``: the lengths, in tokens, to compile for; texts are padded to the next one. By default the powers of
      two from 16 to the longest text that the model takes. Each is compiled when it is first needed. With an empty list
      nothing is padded, and each length of a text is compiled.
    - ``exported``: a folder for the ONNX model. If it has one, this is used as it is; otherwise optimum exports it
      there. By default the export is kept in trnrt's cache, until the folder's content changes.
    - ``session``: a session that you opened yourself, for an exported model or its bundle; nothing is exported then.
    - ``options``: transformers' own, such as ``top_k``, ``batch_size`` or ``tokenizer``.

    The session is ``pipeline(...).model.session``. TrnrtError if the task or the folder doesn't fit, or optimum can't
    export it; UnsupportedModelError at the first call if trnrt has no kernels for it.
    """
    wanted = find_task(task)
    _check_installed()
    from trnrt.hf.model import wrap_session  # it needs torch

    place = Path(folder)
    config = read_config(place, wanted)
    if wanted.is_text:
        options["tokenizer"] = load_tokenizer(options.get("tokenizer") or place)
    else:
        options.setdefault("image_processor", str(place))
    if session is None:
        padding = _choose_padding(lengths, config, options["tokenizer"]) if wanted.is_text else {}
        model = find_export(place, wanted, None if exported is None else Path(exported))
        session = InferenceSession(str(model), target=target, dtype=dtype, **padding)
    elif any(given is not None for given in (target, dtype, lengths, exported)):
        raise OptionError("a session has its own target, dtype, lengths and model", hint="give the session alone")
    _check_outputs(session, wanted)
    import transformers

    return transformers.pipeline(task, model=wrap_session(session, config), **{"device": "cpu", **options})


def _check_installed() -> None:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        text = names_text(missing)
        raise BackendError(f"pipelines need {text}, not installed here", hint="pip install 'trnrt[hf]'")


def _choose_padding(lengths: Sequence[int] | None, config: Any, tokenizer: Any) -> dict[str, Any]:
    """The session's arguments on lengths; none for an empty list."""
    chosen = find_lengths(config, tokenizer) if lengths is None else tuple(lengths)
    return {"lengths": chosen, "pads": read_pads(tokenizer)} if chosen else {}


def _check_outputs(session: InferenceSession, task: Task) -> None:
    """OptionError if the model was exported for another task."""
    names = [info.name for info in session.get_outputs()]
    if missing := [name for name in task.outputs if name not in names]:
        raise OptionError(
            f"a pipeline for {task.name} needs the model's output {names_text(missing)}; it has {names_text(names)}",
            hint=f"export it for this task: optimum-cli export onnx --task {task.export} --model FOLDER OUT",
        )
