"""Files that are no good model: each gets a ModelFileError that names the file, what is wrong, and a way out."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from trnrt.errors import ModelFileError
from trnrt.importer import import_model

LINEAR = """
<ir_version: 9, opset_import: ["" : 17]>
linear (float[N,4] x) => (float[N,3] y)
<float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] b = {1,2,3}>
{ h = MatMul(x, w)  y = Add(h, b) }
"""


def linear() -> onnx.ModelProto:
    return onnx.parser.parse_model(LINEAR)


def refused(source: Path | bytes) -> ModelFileError:
    """The error; its message is one line that names the file."""
    with pytest.raises(ModelFileError) as caught:
        import_model(source)
    message = str(caught.value)
    assert message.startswith(str(source) if isinstance(source, Path) else "the model")
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return caught.value


def png() -> bytes:
    stream = io.BytesIO()
    Image.new("L", (2, 2)).save(stream, "PNG")
    return stream.getvalue()


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02.")
    return stream.getvalue()


def array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


# -- no ONNX file at all -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (png(), "not an ONNX model but a PNG image"),
        (b"\xff\xd8\xff\xe0" + bytes(30), "a JPEG image"),
        (archive(), r"a zip archive \(a PyTorch .pt file"),
        (pickle.dumps({"weights": [1.0, 2.0]}), "a Python pickle, which trnrt never loads"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "an HDF5 file"),
        (b"\x1c\0\0\0TFL3" + bytes(20), "a TensorFlow Lite model"),
        (b'\x40\0\0\0\0\0\0\0{"__metadata__":{}}', "a safetensors file"),
        (gzip.compress(LINEAR.encode()), "a gzip archive"),
        (array(), "a NumPy array"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html>\n<html></html>", "a web page"),
        (LINEAR.encode(), "a text file"),
        ("größe\n".encode(), "a text file"),
        (b"x", "a text file"),
        (b"\0" * 100, "not an ONNX model"),
        (b"\x08\x07\xff\xff\xff", "cut short or damaged"),
    ],
)
def test_what_else_it_may_be(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        import_model(path)
    assert refused(path).hint


def test_random_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for size in [1, 2, 3, 10, 100, 10_000] * 20:
        refused(rng.bytes(size))


def test_a_missing_file(tmp_path: Path) -> None:
    assert "there is no such file" in str(refused(tmp_path / "none.onnx"))


def test_a_folder(tmp_path: Path) -> None:
    assert "this is a folder" in str(refused(tmp_path))


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert "the file can't be read" in str(refused(tmp_path / "file" / "model.onnx"))


def test_what_is_no_file_on_disk(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in str(refused(tmp_path / "pipe"))
    refused(Path("/dev/zero"))


def test_a_path_that_no_system_has() -> None:
    with pytest.raises(ModelFileError, match="can't be read"):
        import_model("a\0b")
    with pytest.raises(ModelFileError, match="can't be read"):
        import_model("x" * 5000)


def test_a_hostile_path_stays_on_its_line(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        import_model(tmp_path / "a\n\x1b[31m.onnx")
    assert str(caught.value).isprintable()


def test_a_file_larger_than_any_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trnrt.importer.reading import model_file as reading

    path = tmp_path / "large.onnx"
    path.write_bytes(linear().SerializeToString())
    monkeypatch.setattr(reading, "LARGEST_MODEL", 100)
    assert "larger than 100 bytes" in str(refused(path))


# -- damaged files -----------------------------------------------------------------------------------


def test_every_truncation() -> None:
    """The last field, the operator sets, is one that no model can do without."""
    data = linear().SerializeToString()
    for length in range(len(data)):
        refused(data[:length])


def test_every_truncation_of_a_model_with_two_operator_sets() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    g (float[N,2] x) => (float[N,2] y) { h = Relu(x)  y = ai.onnx.ml.Scaler<offset=[1.0], scale=[2.0]>(h) }"""
    data = onnx.parser.parse_model(text).SerializeToString()
    import_model(data)
    for length in range(len(data)):
        refused(data[:length])


def changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    proto = linear()
    change(proto)
    return bytes(proto.SerializeToString())


def add_sparse(proto: onnx.ModelProto) -> None:
    del proto.graph.initializer[1]
    values = numpy_helper.from_array(np.array([1.0], np.float32), "b")
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0])), [3])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.ClearField("graph"), "cut short or damaged"),
        (lambda p: p.ClearField("opset_import"), "doesn't say which operator sets"),
        (lambda p: p.graph.ClearField("name"), "Field 'name' of 'graph'"),
        (lambda p: p.graph.ClearField("output"), "the model has no outputs"),
        (lambda p: p.graph.output.append(p.graph.output[0]), "two outputs of the same name"),
        (lambda p: p.graph.input.append(p.graph.input[0]), "single static assignment"),
        (lambda p: setattr(p.graph.node[0], "op_type", "Bogus"), "the operator 'Bogus', which ONNX's opset"),
        (lambda p: setattr(p.graph.node[0], "domain", "com.example"), "No opset import for domain 'com.example'"),
        (lambda p: p.graph.node[0].attribute.append(helper.make_attribute("a", 1)), "Unrecognized attribute: a"),
        (lambda p: p.graph.node[0].input.append("x"), "has input size 3"),
        (lambda p: p.graph.input[0].ClearField("type"), "Field 'type'"),
        (lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 99), "99 is not a valid DataType"),
        (lambda p: setattr(p.graph.output[0], "name", "z"), "Graph output 'z'"),
        (
            lambda p: setattr(p.graph.initializer[0], "name", "b"),
            "reads the tensor 'w', which nothing in the model makes",
        ),
        (lambda p: setattr(p.graph.initializer[0], "data_type", 99), "99"),
        (lambda p: p.graph.initializer[0].dims.__setitem__(0, -4), "the tensor 'w' has a negative dimension"),
        (lambda p: p.graph.initializer[0].dims.__setitem__(0, 10**12), "'w'|w"),
        (lambda p: p.graph.initializer[0].ClearField("float_data"), "w"),
        (
            lambda p: p.opset_import.append(helper.make_opsetid("ai.onnx", 11)),
            "names two versions of the operator set ''",
        ),
        (add_sparse, "sparse format"),
    ],
)
def test_broken_models(change: Callable[[onnx.ModelProto], object], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        import_model(changed(change))
    refused(changed(change))


def test_names_that_are_no_text() -> None:
    data = linear().SerializeToString()
    broken = data.replace(b"linear", b"line\xffr").replace(b"\x0a\x01x", b"\x0a\x01\xff")
    assert "not text" in str(refused(broken))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: setattr(p, "ir_version", 99), "version 99 of the file format"),
        (lambda p: setattr(p.opset_import[0], "version", 99), "version 99 of the operator set 'ai.onnx'"),
        (
            lambda p: p.opset_import.append(helper.make_opsetid("ai.onnx.ml", 99)),
            "version 99 of the operator set 'ai.onnx.ml'",
        ),
    ],
)
def test_models_newer_than_the_installed_onnx(change: Callable[[onnx.ModelProto], object], message: str) -> None:
    error = refused(changed(change))
    assert message in str(error)
    assert f"the installed onnx {onnx.__version__} knows up to" in str(error)
    assert "pip install --upgrade onnx" in str(error.hint)


def test_the_standard_domain_by_its_long_name() -> None:
    model = import_model(changed(lambda proto: setattr(proto.opset_import[0], "domain", "ai.onnx")))
    assert model.opset == 17
    assert [node.op_type for node in model.bind({"x": (2, 4)}).model.graph] == ["Gemm"]


# -- order -------------------------------------------------------------------------------------------


def test_a_circle() -> None:
    proto = linear()
    del proto.graph.node[:]
    proto.graph.node.append(helper.make_node("Add", ["x", "c"], ["a"], name="first"))
    proto.graph.node.append(helper.make_node("Relu", ["a"], ["c"], name="second\n"))
    proto.graph.node.append(helper.make_node("MatMul", ["c", "w"], ["y"]))
    message = str(refused(proto.SerializeToString()))
    assert "wait for each other in a circle" in message
    assert "Add node 'first'" in message
    assert r"Relu node 'second\x0a'" in message


def test_a_node_that_feeds_itself() -> None:
    proto = linear()
    proto.graph.node[0].input[0] = "h"
    assert "circle: MatMul node 'h', MatMul node 'h'" in str(refused(proto.SerializeToString()))


def test_nodes_out_of_order_are_sorted_as_onnxruntime_does() -> None:
    proto = linear()
    nodes = [onnx.NodeProto(), onnx.NodeProto()]
    for copy, node in zip(nodes, reversed(proto.graph.node), strict=True):
        copy.CopyFrom(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    model = import_model(proto.SerializeToString())
    assert [node.op_type for node in model.model.graph] == ["MatMul", "Add"]


def test_branches_count_what_they_read() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[N] x, bool c) => (float[N] y)
    { h = Relu(x)
      y = If(c) <then_branch = a () => (float[N] t) { t = Exp(h) },
                 else_branch = b () => (float[N] e) { e = Abs(h) }> }"""
    proto = onnx.parser.parse_model(text)
    import_model(proto.SerializeToString())
    del proto.graph.node[0]
    assert "If node 'y' reads the tensor 'h', which nothing in the model makes" in str(
        refused(proto.SerializeToString())
    )


# -- data beside the file ----------------------------------------------------------------------------


def external(folder: Path, **entries: str) -> Path:
    """A model whose 48 bytes of weights stand in another file, as ``entries`` say."""
    proto = linear()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read(tmp_path: Path) -> None:
    weights = np.arange(12, dtype=np.float32)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data").write_bytes(b"head" + weights.tobytes())
    path = external(tmp_path, location="sub/data", offset="4", length="48")
    value = import_model(path).model.graph.initializers["w"].const_value
    assert value is not None
    np.testing.assert_array_equal(value.numpy(), weights.reshape(4, 3))
    import_model(external(tmp_path, location="sub/data"))


def test_external_data_that_onnx_saved(tmp_path: Path) -> None:
    proto = linear()
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    view = import_model(tmp_path / "m.onnx").bind({"x": (2, 4)})
    bias = view.model.graph.initializers["b"].const_value
    assert bias is not None
    np.testing.assert_array_equal(bias.numpy(), [1, 2, 3])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "data", "length": "48"}, "should be in the file 'data', which is missing"),
        ({"location": "short", "length": "48"}, "ends at byte 48 of 'short', which has only 47 bytes"),
        ({"location": "full", "offset": "1"}, "ends at byte 49 of 'full', which has only 48 bytes"),
        ({"location": "full", "offset": "9" * 19}, "which has only 48 bytes"),
        ({"location": "full", "length": "47"}, "has 47 bytes, but its shape and type need 48"),
        ({"location": "full", "length": "49"}, "has 49 bytes, but its shape and type need 48"),
        ({"location": "full", "offset": "-1"}, "has the offset '-1', which is not a number of bytes"),
        ({"location": "full", "length": "1e3"}, "has the length '1e3', which is not a number of bytes"),
        ({"location": "../outside"}, r"should be in '../outside', outside the model's folder"),
        ({"location": "sub/../../outside"}, "outside the model's folder"),
        ({"location": "/etc/passwd"}, "outside the model's folder"),
        ({"location": "C:\\data"}, "outside the model's folder"),
        ({"location": "link"}, "outside the model's folder"),
        ({"location": "folder"}, "which is missing"),
        ({"location": "pipe"}, "which is missing"),
        ({"location": "nul\0l"}, "doesn't say in which"),
        ({"location": ""}, "doesn't say in which"),
        ({}, "doesn't say in which"),
    ],
)
def test_external_data_that_is_no_good(entries: dict[str, str], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "outside").write_bytes(bytes(48))
    (folder / "short").write_bytes(bytes(47))
    (folder / "full").write_bytes(bytes(48))
    (folder / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / "pipe")
    path = external(folder, **entries)
    with pytest.raises(ModelFileError, match=message):
        import_model(path)
    error = refused(path)
    assert "tensor 'w'" in str(error)
    assert error.hint


def test_external_data_of_a_tensor_larger_than_memory(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(48))
    path = external(tmp_path, location="data")
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].dims[:] = [10**9, 10**9]
    path.write_bytes(proto.SerializeToString())
    assert "larger than 2.0 GiB" in str(refused(path))


def test_external_data_in_an_attribute_is_checked_too(tmp_path: Path) -> None:
    proto = linear()
    node = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.zeros(2, np.float32)))
    tensor = node.attribute[0].t
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    proto.graph.node.append(node)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    assert "outside the model's folder" in str(refused(path))


def test_bytes_have_no_data_beside_them(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(48))
    path = external(tmp_path, location="data")
    assert "can't be found from bytes" in str(refused(path.read_bytes()))


# -- bombs -------------------------------------------------------------------------------------------


def test_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    from trnrt.importer.reading import checking

    monkeypatch.setattr(checking, "MOST_NODES", 1)
    assert "has 2 nodes; trnrt takes models of up to 1" in str(refused(linear().SerializeToString()))


def test_functions_that_double_each_other() -> None:
    functions = [
        f'<domain: "f", opset_import: ["" : 17, "f" : 1]> f{i} (a) => (c) {{ b = f.f{i + 1}(a)  c = f.f{i + 1}(b) }}'
        for i in range(40)
    ]
    last = '<domain: "f", opset_import: ["" : 17]> f40 (a) => (c) { c = Relu(a) }'
    text = '<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[N] x) => (float[N] y) { y = f.f0(x) }'
    data = onnx.parser.parse_model("\n".join([text, *functions, last])).SerializeToString()
    assert f"the model has {2**40} nodes" in str(refused(data))


def test_functions_that_call_each_other_in_a_circle() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[N] x) => (float[N] y) { y = f.a(x) }
    <domain: "f", opset_import: ["" : 17, "f" : 1]> a (p) => (q) { q = f.b(p) }
    <domain: "f", opset_import: ["" : 17, "f" : 1]> b (p) => (q) { q = f.a(p) }"""
    assert "call each other in a circle" in str(refused(onnx.parser.parse_model(text).SerializeToString()))


@pytest.mark.parametrize(
    "nodes",
    [
        "k = Expand(one, huge)",
        "k = Tile(one, huge)",
        "s = Shape(x)  z = Mul(s, huge)  k = ConstantOfShape(z)",
        "e = Expand(one, large)  k = Concat<axis=0>(e, e, e, e, e, e)",
        "r = ConstantOfShape(large)  k = Exp(r)",
        "r = ConstantOfShape(large)  q = SplitToSequence<axis=0>(r, split)  i = SequenceLength(q)  k = Cast<to=1>(i)",
    ],
)
def test_constants_that_would_explode_stay_uncomputed(nodes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,1] x) => (float[A,B] y)
    <float[1,1] one = {{1}}, int64[2] huge = {{16000,16000}}, int64[2] large = {{20000000,1}}, int64 split = {{1}}>
    {{ {nodes}  y = Add(x, k) }}"""
    view = import_model(onnx.parser.parse_model(text).SerializeToString()).bind({"x": (1, 1)})
    arrays = [v.const_value.numpy() for v in view.model.graph.initializers.values() if v.const_value is not None]
    assert sum(array.nbytes for array in arrays if any(array.strides)) <= 64 * 2**20


def test_slow_constants_stay_uncomputed() -> None:
    """The reference implementation of Conv would first make a kernel of 10**9 elements."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,1] x) => (float[1,1,1] y)
    <float[1,1,3] w = {1,2,3}, float[1,1,2] a = {1,2}>
    { k = Conv<dilations=[1000000000], pads=[1000000000,1000000000]>(a, w)  m = ReduceMax(k)  y = Add(x, m) }"""
    view = import_model(onnx.parser.parse_model(text).SerializeToString()).bind({"x": (1, 1, 1)})
    assert "Conv" in [node.op_type for node in view.model.graph]


# -- mutations ---------------------------------------------------------------------------------------


def test_mutations_are_imported_or_refused() -> None:
    """Whatever bytes a model is changed into, nothing but our own errors comes out. (The e2e fuzz test does more.)"""
    from trnrt.errors import TrnrtError

    rng = np.random.default_rng(0)
    data = linear().SerializeToString()
    for _ in range(500):
        mutated = bytearray(data)
        for position in rng.integers(0, len(data), rng.integers(1, 4)):
            mutated[position] = rng.integers(256)
        try:
            model = import_model(bytes(mutated))
            model.bind(
                {i.name: tuple(d if isinstance(d, int) and d < 100 else 2 for d in i.shape) for i in model.inputs}
            )
        except TrnrtError as error:
            assert str(error).replace("\n", " ").isprintable()


@pytest.mark.parametrize(
    ("text", "opset", "told"),
    [
        (
            "g (bfloat16[N,1,4,4] x, bfloat16[1,1,3,3] w) => (bfloat16[N,1,2,2] y) { y = Conv(x, w) }",
            20,
            "its input 'x' is BFLOAT16, which Conv doesn't take before opset 22; the model is of opset 20",
        ),
        (
            "g (bfloat16[N,1,4,4] x, float[1,1,3,3] w) => (bfloat16[N,1,2,2] y) { y = Conv(x, w) }",
            22,
            "its input 'w' is FLOAT, but 'x' is BFLOAT16, and they must be the same",
        ),
        ("g (int64[N,4] x) => (int64[N,4] y) { y = Elu(x) }", 13, "its input 'x' is INT64, which Elu doesn't take"),
    ],
)  # fmt: skip
def test_a_type_that_an_operator_does_not_take_is_told_as_such(text: str, opset: int, told: str) -> None:
    header = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    model = import_model(onnx.parser.parse_model(header + text).SerializeToString())
    shapes = {info.name: tuple(d if isinstance(d, int) else 2 for d in info.shape) for info in model.inputs}
    with pytest.raises(ModelFileError, match=re.escape(told)):
        model.bind(shapes)
