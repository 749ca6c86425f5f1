"""A model file to a checked graph. Anything wrong with the file is a ModelFileError."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from trnrt.errors import ModelFileError, NoSuchModelError, OptionError
from trnrt.importer.fused.rewriting import rewrite_fused
from trnrt.importer.model import ImportedModel
from trnrt.importer.naming import name_nodes, root_cause
from trnrt.importer.parameters import find_parameters
from trnrt.importer.quiet import quiet_lock
from trnrt.importer.reading import checking, external, signature
from trnrt.importer.reading.axes import sort_axes
from trnrt.importer.reading.functions import EXPANDED_DOMAIN, define_operators, hide_foreign
from trnrt.importer.reading.limits import LARGEST_MODEL, in_words
from trnrt.importer.reading.protos import all_tensors, name_standard_domain
from trnrt.importer.reading.sizes import set_sizes
from trnrt.importer.reading.sniffing import guess
from trnrt.importer.records import OpenSizes
from trnrt.text import one_line, quote

_EXPORT_AGAIN = "Copy or export the file again; an ONNX file is what torch.onnx.export or onnx.save writes."


def read_model(source: str | os.PathLike[str] | bytes, name: str | None, sizes: OpenSizes) -> ImportedModel:
    """See ``trnrt.importer.import_model``."""
    if isinstance(source, bytes):
        return _import(source, None, name or "model", f"model {name!r}" if name else "the model", sizes)
    path = Path(os.fspath(source))
    where = one_line(str(path))
    return _import(read_content(path, where), path.parent, name or path.stem, where, sizes)


def check_file(path: Path) -> None:
    """ModelFileError if the file is no ONNX model, or one of its data files is missing; the rest is not checked."""
    where = one_line(str(path))
    data = read_content(path, where)
    parse(data, where)
    if any(not (path.parent / name).is_file() for name in external.files_beside(data)):
        read_model(path, None, OpenSizes())  # its error names the tensor and the way out


def _import(data: bytes, folder: Path | None, name: str, where: str, sizes: OpenSizes) -> ImportedModel:
    try:
        with quiet_lock():
            proto, is_whole = _read_proto(data, folder, where, sizes)
            digest = _digest(data, () if is_whole else all_tensors(proto), sizes)
            return _convert_proto(proto, name, where, digest)
    except (ModelFileError, OptionError):
        raise
    except Exception as error:
        # The file is untrusted, and the libraries below raise all sorts of errors for a broken one.
        problem = f"{where}: the model is broken inside ({root_cause(error)})"
        raise ModelFileError(problem, hint=_EXPORT_AGAIN) from error


def _digest(data: bytes, tensors: Iterable[onnx.TensorProto], sizes: OpenSizes) -> str:
    """SHA-256 over the file, the data of ``tensors``, and ``sizes`` if there are any, in hexadecimal."""
    digest = hashlib.sha256(data)
    for tensor in tensors:
        digest.update(tensor.raw_data)
    if sizes:
        digest.update(repr((sorted(sizes.named.items()), sorted(sizes.denoted.items()))).encode())
    return digest.hexdigest()


def _read_proto(data: bytes, folder: Path | None, where: str, sizes: OpenSizes) -> tuple[onnx.ModelProto, bool]:
    """The model with all its data, in topological order; and whether all data was in the file itself."""
    proto = parse(data, where)
    if sizes:
        set_sizes(proto, sizes)
    checking.check_names(proto, where)
    checking.check_versions(proto, where)
    checking.check_size(proto, where)
    checking.check_tensors(proto, where)
    checking.check_counts(proto, where)
    is_whole = external.load(proto, folder, where, LARGEST_MODEL - len(data))
    is_as_read = [
        is_whole,
        not sizes,
        name_standard_domain(proto),
        checking.sort_nodes(proto, where),
        signature.shape_outputs(proto),
    ]
    with signature.state_shapes(proto) as all_stated, hide_foreign(proto) as all_known:
        is_as_read += [all_stated, all_known]
        checking.check_model(data if all(is_as_read) else proto.SerializeToString(), where)
    checking.check_graph(proto, where)
    return proto, is_whole


def read_content(path: Path, where: str) -> bytes:
    """The file's bytes."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{where}: this is a folder", hint="Give the path of the .onnx file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{where}: this is not a regular file", hint="Give the path of an .onnx file.")
        with path.open("rb") as file:
            data = file.read(LARGEST_MODEL + 1)
    except FileNotFoundError:
        raise NoSuchModelError(f"{where}: there is no such file", hint=_near_text(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelFileError(f"{where}: the file can't be read ({reason})", hint="Check the path.") from error
    return data


_ALIKE = 0.75
"""How alike two names must be, endings included, to be proposed: 'rf.onnx' and 'odd.onnx' aren't."""


def _near_text(path: Path) -> str:
    """A hint for a missing file: the models in its folder that have nearly its name."""
    try:
        beside = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix == ".onnx")
    except (OSError, ValueError):
        return "Check the path."
    name = path.name if path.suffix == ".onnx" else f"{path.name}.onnx"
    near = get_close_matches(name, beside, cutoff=_ALIKE)
    names = " and ".join(quote(str(path.with_name(name))) for name in near)
    return f"Check the path; there {'is' if len(near) == 1 else 'are'} {names}." if near else "Check the path."


def parse(data: bytes, where: str) -> onnx.ModelProto:
    """Parse a file as a ModelProto; the error for another kind of file names its likely kind."""
    if not data:
        raise ModelFileError(f"{where}: the file is empty", hint=_EXPORT_AGAIN)
    if len(data) > LARGEST_MODEL:
        raise ModelFileError(f"{where}: the file is larger than {in_words(LARGEST_MODEL)}, which no ONNX model can be")
    try:
        proto = onnx.load_model_from_string(data)
    except Exception:  # protobuf's DecodeError, whose module depends on the version
        proto = None
    if proto is not None and proto.HasField("ir_version") and proto.HasField("graph"):
        return proto
    if (found := guess(data)) is not None:
        raise ModelFileError(f"{where}: not an ONNX model but {found.what}", hint=found.hint)
    # An ONNX file starts with the field ir_version, a small number.
    if data[0] == 0x08 and len(data) > 1 and 0 < data[1] <= onnx.IR_VERSION:
        raise ModelFileError(f"{where}: the ONNX model is cut short or damaged", hint=_EXPORT_AGAIN)
    raise ModelFileError(f"{where}: not an ONNX model", hint=_EXPORT_AGAIN)


def _convert_proto(proto: onnx.ModelProto, name: str, where: str, digest: str) -> ImportedModel:
    initialized = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(signature.tensor_info(info) for info in proto.graph.input if info.name not in initialized)
    outputs = tuple(signature.tensor_info(info) for info in proto.graph.output)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    model = _graph(proto, where)
    parameters = find_parameters(model.graph)
    data = [info for info in inputs if info.name not in parameters]
    declared = ImportedModel(
        name=name,
        inputs=inputs,
        outputs=outputs,
        metadata=metadata,
        batch=signature.batch_of(data, outputs),
        opset=model.opset_imports[""],
        read=lambda: model,
        parameters=parameters,
        digest=digest,
    )
    symbols = tuple(signature.shared_batch(data, outputs))
    return _join_batches(declared, symbols) if symbols else declared


def _join_batches(model: ImportedModel, symbols: tuple[str, ...]) -> ImportedModel:
    """The model with one batch in place of those that are called ``symbols``."""
    inputs, outputs = (
        tuple(signature.rename_batch(info, symbols) for info in side) for side in (model.inputs, model.outputs)
    )
    return replace(model, inputs=inputs, outputs=outputs, batch=symbols[0], batch_symbols=symbols, apart=model)


def _graph(proto: onnx.ModelProto, where: str) -> ir.Model:
    signature.forget_maps(proto)
    define_operators(proto)
    model: ir.Model = ir.from_proto(proto)
    # A model of only foreign operators declares no ONNX opset, which nodes inserted by the clean-up need.
    model.opset_imports.setdefault("", min(onnx.defs.onnx_opset_version(), 18))
    _expand_functions(model, where)
    graph = model.graph
    # Before version 4 of the format, each initializer is an input, too, whose value a caller may replace.
    true_inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    graph.inputs.clear()
    graph.inputs.extend(true_inputs)
    model.ir_version = max(model.ir_version, 4)
    _store_strings_as_tensors(graph)
    checking.settle_tensors(model, where)
    rewrite_fused(model)
    sort_axes(graph)
    name_nodes(graph)
    return model


def _expand_functions(model: ir.Model, where: str) -> None:
    try:
        passes.InlinePass()(model)
        model.opset_imports.pop(EXPANDED_DOMAIN, None)
    except Exception as error:
        raise ModelFileError(
            f"{where}: the model's functions can't be expanded ({root_cause(error)})",
            hint="Expand them with onnx.inliner.inline_local_functions(model, convert_version=True).",
        ) from error


def _store_strings_as_tensors(graph: ir.Graph) -> None:
    """Rewrite Constant nodes of strings: onnx_ir and onnxscript read these as ASCII."""
    for node in graph.all_nodes():
        if node.op_type != "Constant" or node.domain != "":
            continue
        for name in node.attributes.keys() & {"value_string", "value_strings"}:
            attribute = node.attributes.pop(name)
            texts = [attribute.as_string()] if name == "value_string" else list(attribute.as_strings())
            shape = ir.Shape([] if name == "value_string" else [len(texts)])
            tensor = ir.StringTensor([text.encode() for text in texts], shape=shape)
            node.attributes.add(ir.AttrTensor("value", tensor))
