"""What a plan is made for: shapes, batches, and weights as the kernels want them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planning import Array, drawn, modelled, planned

from trnrt.errors import InputError, OptionError, TrnrtError
from trnrt.importer import ImportedModel, import_model
from trnrt.planner import explain
from trnrt.planner.lowering import weights
from trnrt.planner.sizes import default_shapes, parse_shape

ROOT = Path(__file__).parents[2]


def imported(inputs: str) -> ImportedModel:
    """A model with these inputs, which it does not read."""
    model = modelled(f"({inputs}) => (float[1] y) {{ y = Constant<value_floats=[1.0]>() }}")
    return import_model(model.SerializeToString())


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ("float[N,4] x", {"x": (7, 4)}),
        ("float[N,4] x, float[N,2,2] z", {"x": (7, 4), "z": (7, 2, 2)}),
        ("float[N,N] x", {"x": (7, 7)}),
        ("float[8,1,8,8] x", {"x": (8, 1, 8, 8)}),
        ("float[4] x", {"x": (4,)}),
    ],
)
def test_default_shapes(inputs: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """The symbolic batch is what is asked for; a fixed one stays, and so does a size that happens to be equal."""
    assert default_shapes(imported(inputs), 7) == shapes


def test_open_dimensions_have_no_default() -> None:
    with pytest.raises(InputError, match="'x' has the open dimensions h, w") as caught:
        default_shapes(imported("float[N,3,h,w] x"), 7)
    assert caught.value.hint == "name the sizes, as in --shape x=3x224x224; where there is --input, it tells them, too"


@pytest.mark.parametrize("given", [{"x": (3, 20, 30)}, {"": (3, 20, 30)}, {"x": (7, 3, 20, 30)}], ids=str)
def test_open_dimensions_are_bound_by_name(given: dict[str, tuple[int, ...]]) -> None:
    assert default_shapes(imported("float[N,3,h,w] x"), 7, given) == {"x": (7, 3, 20, 30)}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"x": (4, 20, 30)}, "shape 4x20x30 for input 'x', which is Nx3xhxw: dimension 1 is 3"),
        ({"x": (20, 30)}, "shape 20x30 for input 'x', which is Nx3xhxw: 4 sizes"),
        ({"y": (3, 20, 30)}, "a shape for 'y', which is no input"),
    ],
)
def test_shapes_that_do_not_fit(given: dict[str, tuple[int, ...]], reason: str) -> None:
    with pytest.raises(TrnrtError, match=reason):
        default_shapes(imported("float[N,3,h,w] x"), 7, given)


def test_a_shape_without_a_name_needs_one_input() -> None:
    with pytest.raises(OptionError, match="without a name"):
        default_shapes(imported("float[N,h] x, float[N,h] z"), 7, {"": (3,)})


@pytest.mark.parametrize("text", ["", "x=", "x=a", "x=3x0", "x=3x-1", "x=3,4"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(OptionError, match="shape"):
        parse_shape(text)


def test_shapes_are_parsed() -> None:
    assert parse_shape("image=3x224X224") == ("image", (3, 224, 224))
    assert parse_shape("8") == ("", (8,))
    assert parse_shape("a=b=2x2") == ("a=b", (2, 2))


def test_the_plan_knows_its_batch() -> None:
    model = modelled("(float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    assert planned(model, {"x": (7, 4)}).batch == 7
    assert planned(modelled("(float[4] x) => (float[4] y) { y = Relu(x) }"), {"x": (4,)}).batch is None
    assert explain(import_model(ROOT / "models" / "digits_cnn.onnx"), target="trn2", dtype="float32").batch == 1


def test_a_model_with_a_fixed_batch_is_planned_for_it() -> None:
    model = modelled("(float[8,1,8,8] x) => (float[8,64] y) { f = Flatten(x) y = Relu(f) }")
    plan = explain(import_model(model.SerializeToString()), target="trn2", dtype="float32", batch=1)
    assert plan.inputs[0].shape == (8, 1, 8, 8)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (128, 2), (129, 3), (300, 1), (130, 1100)], ids=str)
@pytest.mark.parametrize("positions", [1, 4])
def test_linear_weights(shape: tuple[int, int], positions: int) -> None:
    channels, outputs = shape
    weight = drawn(channels * positions, outputs)
    laid_out = weights.linear_weight(weight, positions)
    blocks = -(-channels // 128)
    chunks = blocks * positions
    assert laid_out.shape == (min(channels, 128), chunks * outputs)
    parts = [(o, min(outputs, o + 512)) for o in range(0, outputs, 512)]
    laid_out = np.concatenate(
        [laid_out[:, chunks * o : chunks * end].reshape(-1, chunks, end - o) for o, end in parts], axis=2
    )
    for feature in range(channels * positions):
        channel, position = divmod(feature, positions)
        assert (laid_out[channel % 128, channel // 128 * positions + position] == weight[feature]).all()
    assert np.count_nonzero(laid_out) == np.count_nonzero(weight)


@pytest.mark.parametrize("channels", [1, 3, 128, 130, 257])
def test_conv_weights_and_biases(channels: int) -> None:
    weight, bias = drawn(5, channels, 2, 3), drawn(channels)
    laid_out, columns = weights.conv_weight(weight), weights.columns(bias)
    assert laid_out.shape == (min(channels, 128), -(-channels // 128), 6, 5)
    assert columns.shape == laid_out.shape[:2] and columns.dtype == np.float32
    for channel in range(channels):
        expected: Array = weight[:, channel].reshape(5, 6).T
        assert (laid_out[channel % 128, channel // 128] == expected).all()
        assert columns[channel % 128, channel // 128] == bias[channel]
