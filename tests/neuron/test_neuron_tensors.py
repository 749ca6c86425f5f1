"""What the NeuronCore backend does with arrays and tensors: on PyTorch itself where it is there, and on the fake."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_neuron import Hardware
from fake_neuron.installing_fake import TORCHES, an_instance

import trnrt
from trnrt.backends import DeviceOptions
from trnrt.errors import BackendError
from trnrt.neuron.routes import tensors
from trnrt.neuron.routes.trace import _as_module
from trnrt.nki.machine.dtypes import as_dtype

# PyTorch 2.13 calls torch.jit deprecated; 2.9, which torch-neuronx is for, has nothing else.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated:DeprecationWarning"),
    pytest.mark.usefixtures("machine"),
]

CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
DTYPES = ["bool", "int8", "int16", "int32", "uint8", "float16", "float32", "bfloat16"]


@pytest.fixture(params=TORCHES)
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    with an_instance(monkeypatch, tmp_path, request.param) as hardware:
        yield hardware


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "bfloat16"])
def test_weights_of_every_kind_become_parameters(dtype: str) -> None:
    """Integers, which have no gradient, and arrays that may not be written, which torch takes none of."""
    import torch

    weight = np.arange(6).reshape(2, 3).astype(as_dtype(dtype).numpy)
    weight.setflags(write=False)
    module = _as_module(torch, lambda x, w: w, [weight])
    np.testing.assert_array_equal(tensors.as_array(torch, module(None)), weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_become_tensors_and_come_back(dtype: str) -> None:
    """By their bits, whatever their memory is like; nothing of the array is shared that is not to be written."""
    import torch

    whole = np.arange(-12, 12).reshape(2, 3, 4).astype(as_dtype(dtype).numpy)
    fixed = whole.copy()
    fixed.setflags(write=False)
    for array in (whole, fixed, whole[:, ::2], whole[::-1], whole.T, whole[:0], whole[0, 0, 0:1].reshape(())):
        back = tensors.as_array(torch, tensors.as_tensor(torch, array))
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_model_of_integers_and_booleans_runs(rows: int, tmp_path: Path) -> None:
    """int64 at the boundary, int8 and bool on the way, through torch.jit.save and load."""
    path = tmp_path / "choosing.onnx"
    onnx.save(choosing(), path)
    session = trnrt.InferenceSession(path, backend="neuron")
    feeds = {"x": np.arange(-4 * rows, 4 * rows, dtype=np.float32).reshape(rows, 8)}
    expected = trnrt.InferenceSession(path, backend="simulator").run(None, feeds)
    feeds["x"].setflags(write=False)
    for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def choosing() -> onnx.ModelProto:
    """x > 0, as booleans and as the index of the largest."""
    nodes = [
        onnx.helper.make_node("Greater", ["x", "zero"], ["positive"]),
        onnx.helper.make_node("ArgMax", ["x"], ["largest"], axis=1, keepdims=0),
    ]
    given = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 8])]
    made = [
        onnx.helper.make_tensor_value_info("positive", onnx.TensorProto.BOOL, ["n", 8]),
        onnx.helper.make_tensor_value_info("largest", onnx.TensorProto.INT64, ["n"]),
    ]
    zero = onnx.numpy_helper.from_array(np.zeros(1, np.float32), "zero")
    graph = onnx.helper.make_graph(nodes, "choosing", given, made, [zero])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)


def test_several_threads_run_one_session() -> None:
    session = trnrt.InferenceSession(CNN, backend="neuron", device=DeviceOptions(cores=2))
    feeds = [session.random_inputs(2, seed=seed) for seed in range(6)]
    expected = [session.run(None, given)[0] for given in feeds]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda given: session.run(None, given)[0], feeds))
    np.testing.assert_array_equal(found, expected)


def test_a_dtype_that_torch_lacks_is_told() -> None:
    import torch

    with pytest.raises(BackendError, match="torch has no tensors of float8_e4m3"):
        tensors.as_tensor(torch, np.ones(1, as_dtype("float8_e4m3").numpy))
