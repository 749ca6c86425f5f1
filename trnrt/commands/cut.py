"""``trnrt cut``: the part of a model that computes given tensors, as a model of its own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.options import Reporting
from trnrt.commands.results import deliver
from trnrt.errors import OptionError
from trnrt.report.files import check_writable, write_whole
from trnrt.report.progress import working
from trnrt.text import count_text, name_text, quote, shape_text

if TYPE_CHECKING:
    from trnrt.importer import ImportedModel, TensorInfo
    from trnrt.report.documents import Document


def cut_file(model: Path, names: list[str], output: Path, reporting: Reporting) -> None:
    """Write the part of ``model`` that computes the tensors called ``names`` to ``output``."""
    if model.exists() and output.exists() and output.samefile(model):
        raise OptionError(f"--output {quote(str(model))} is the model itself", hint="name another file")
    for path in (output, reporting.json_out):
        if path is not None:
            check_writable(path)
    with working(f"cutting {model}"):
        from trnrt.importer import import_model
        from trnrt.planner.parts.ways_out import cut_model

        whole = import_model(model)
        part, content = cut_model(whole, names)
        write_whole(output, lambda file: file.write(content))
    deliver(reporting, _document(whole, part, output, len(content)), _text(whole, part, output))


def _document(whole: ImportedModel, part: ImportedModel, output: Path, size: int) -> Document:
    """The JSON document of ``trnrt cut``."""
    from trnrt.report.documents import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "model": whole.name,
        "output": str(output),
        "bytes": size,
        "nodes": {"kept": len(part.model.graph), "of": len(whole.model.graph)},
        "inputs": [asdict(tensor) for tensor in part.inputs],
        "outputs": [asdict(tensor) for tensor in part.outputs],
    }


def _text(whole: ImportedModel, part: ImportedModel, output: Path) -> str:
    kept = f"{len(part.model.graph):,} of {count_text(len(whole.model.graph), 'node')}"
    lines = [f"{quote(str(output))}: {kept} of {name_text(whole.name)}"]
    lines += [f"  input  {_tensor_text(tensor)}" for tensor in part.inputs]
    lines += [f"  output {_tensor_text(tensor)}" for tensor in part.outputs]
    return "\n".join(lines)


def _tensor_text(tensor: TensorInfo) -> str:
    return f"{quote(tensor.name)} {tensor.dtype} {shape_text(tensor.shape)}"
