"""Real models through the importer: they become static, stay small, and keep their answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

from trnrt.importer import GraphView, import_model

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))
LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def checked(proto: onnx.ModelProto, rows: int = 1, rtol: float = 1e-4, atol: float = 1e-5) -> GraphView:
    """The rewritten model, after a comparison of its answers with the original's."""
    model = import_model(proto.SerializeToString())
    shapes = {i.name: tuple(dim if isinstance(dim, int) else rows for dim in i.shape) for i in model.inputs}
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    view = model.bind(shapes)
    answers = zip(session(proto).run(None, feeds), session(ir.to_proto(view.model)).run(None, feeds), strict=True)
    for info, (expected, got) in zip(model.outputs, answers, strict=True):
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=info.name)
        assert got.dtype == expected.dtype
    return view


def ops(view: GraphView) -> list[str]:
    return [node.op_type for node in view.model.graph]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
@pytest.mark.parametrize("rows", [1, 7])
def test_sample_models_keep_their_answers(path: Path, rows: int) -> None:
    view = checked(onnx.load(path), rows)
    assert "MatMul" not in ops(view)
    assert "Identity" not in ops(view)


def test_there_are_light_models() -> None:
    assert len(LIGHT) == 9


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem.removeprefix("light_"))
def test_light_models_become_static_without_growing(path: Path) -> None:
    """Their weights fill shapes with one value, up to 411 MB of it, and must not be stored as that much."""
    model = import_model(path)
    assert model.batch == 1
    assert model.opset == 9
    view = model.bind({info.name: tuple(d for d in info.shape if isinstance(d, int)) for info in model.inputs})
    assert view.unresolved == ()
    assert not {"ConstantOfShape", "Dropout", "Identity", "Constant"} & set(ops(view))
    tensors = [value.const_value for value in view.model.graph.initializers.values()]
    arrays = [tensor.numpy() for tensor in tensors if tensor is not None]
    stored = sum(array.nbytes for array in arrays if any(array.strides))
    assert stored < 110 * 2**20


def with_random_weights(path: Path, seed: int = 0) -> onnx.ModelProto:
    """A light model whose one-valued weights are drawn instead, so large that activations stay in range."""
    rng = np.random.default_rng(seed)
    proto = onnx.load(path)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    positive = {n.input[4] for n in proto.graph.node if n.op_type == "BatchNormalization"}
    for node in [node for node in proto.graph.node if node.op_type == "ConstantOfShape"]:
        shape = shapes[node.input[0]].tolist()
        array = rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        array = np.abs(array) + 0.5 if node.output[0] in positive else array
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), node.output[0]))
        proto.graph.node.remove(node)
    for name in positive & shapes.keys():
        tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
        tensor.CopyFrom(numpy_helper.from_array(rng.uniform(0.5, 1.5, shapes[name].shape).astype(np.float32), name))
    proto.ir_version = 8
    return proto


@pytest.mark.parametrize("name", ["squeezenet", "resnet50", "shufflenet", "inception_v2"])
def test_real_networks_keep_their_answers(name: str) -> None:
    path = next(path for path in LIGHT if path.stem == f"light_{name}")
    view = checked(with_random_weights(path), rtol=1e-3, atol=1e-5)
    if name in ("resnet50", "shufflenet"):
        assert "BatchNormalization" not in ops(view)


def test_an_old_model_keeps_its_opset() -> None:
    model = import_model(next(path for path in LIGHT if path.stem == "light_zfnet512"))
    view = model.bind({info.name: tuple(d for d in info.shape if isinstance(d, int)) for info in model.inputs})
    assert view.model.opset_imports[""] == 9
    onnx.checker.check_model(ir.to_proto(view.model))
