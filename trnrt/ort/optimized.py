"""The file of ``SessionOptions.optimized_model_filepath``: the model as onnxruntime itself optimises it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trnrt.errors import OptionError
from trnrt.importer import OpenSizes
from trnrt.text import quote

_ERRORS_ONLY = 3


def write_optimized(
    model: str | bytes, path: str, level: int, sizes: OpenSizes, entries: Mapping[str, str] | None = None
) -> None:
    """Write the model into ``path`` as onnxruntime optimises it for the CPU, at this ``level`` of its.

    ``entries``: onnxruntime's config entries. OptionError if it can't.
    """
    import onnxruntime

    if not (folder := Path(path).absolute().parent).is_dir():
        problem = f"the optimised model can't be written: there is no folder {quote(str(folder))}"
        raise OptionError(problem, hint="make it, or give another optimized_model_filepath")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
    options.optimized_model_filepath = path
    options.log_severity_level = _ERRORS_ONLY
    for name, size in sizes.named.items():
        options.add_free_dimension_override_by_name(name, size)
    for name, size in sizes.denoted.items():
        options.add_free_dimension_override_by_denotation(name, size)
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no class in common
        problem = " ".join(str(error).split())
        raise OptionError(
            f"onnxruntime can't write the optimised model {quote(path)}: {problem}",
            hint="give another optimized_model_filepath, or leave it out",
        ) from error
