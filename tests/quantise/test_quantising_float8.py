"""Sessions of 8-bit floats against onnxruntime with the same rounding, and what each layer costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trnrt import InferenceSession
from trnrt.quantise.data import Batch, Data
from trnrt.quantise.float8 import find_layers
from trnrt.quantise.trials import Trials
from trnrt.validate import validate

MODELS = Path(__file__).parents[2] / "models"
DATA = dict(np.load(MODELS / "digits_test.npz"))
NETS = {"digits_cnn": "image", "digits_ffnn": "image", "digits_mlp_sklearn": "pixels"}


def open_net(net: str, dtype: str, narrow: str = "all") -> tuple[InferenceSession, dict[str, Any]]:
    """The model in ``dtype``, calibrated on 64 rows, and the same rows."""
    path = MODELS / f"{net}.onnx"
    (info,) = InferenceSession(path, cache=False).get_inputs()
    feeds = {info.name: DATA[NETS[net]][:64].reshape(64, *info.shape[1:])}
    session = InferenceSession(path, target="trn2", dtype=dtype, cache=False, calibration=feeds, narrow=narrow)
    return session, feeds


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("net", NETS)
def test_against_rounded_factors(net: str, dtype: str) -> None:
    """The session differs from onnxruntime with rounded factors by less than a 30th of what the 8 bits make: bfloat16
    behind the last layers. The decisions are the same in nearly all rows."""
    import onnxruntime

    session, feeds = open_net(net, dtype)
    layers = find_layers(session)
    assert len(layers.scales) == layers.products == 3
    padded = layers.pad(Data((Batch({name: array[:32] for name, array in feeds.items()}, 32),), 32))
    wanted, plain = (
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        for content in (layers.make(()), layers.prepared.content)
    )
    names = [output.name for output in plain.get_outputs() if output.type == "tensor(float)"]
    given = dict(padded.batches[0].feeds)
    ours = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    for name in names:
        rounded, exact = (np.asarray(one.run([name], given)[0], np.float64) for one in (wanted, plain))
        got = np.asarray(ours[name], np.float64)[:32]
        made, left = np.square(rounded - exact).mean(), np.square(got - rounded).mean()
        assert 0 < left < made / 30, (name, left, made)
        assert (got.argmax(1) != rounded.argmax(1)).mean() <= 0.04


def test_layers_cost() -> None:
    """Each layer alone loses less than all together, and none loses nothing."""
    session, feeds = open_net("digits_cnn", "float8_e4m3")
    layers = find_layers(session)
    batches = tuple(Batch({name: array[k : k + 32] for name, array in feeds.items()}, 32) for k in (0, 32))
    trials = Trials(layers.prepared, layers.make, layers.pad(Data(batches, 64)))
    costs = trials.measure_layers((), lambda count: None)
    whole = trials.compare(()).snr_db
    assert [cost.layer.name for cost in costs] == ["node_conv2d", "node_conv2d_1", "node_linear"]
    assert whole is not None and all(whole < cost.snr_db < 60 for cost in costs)


def test_ends_keep_16_bits() -> None:
    """Without "all" the first and the last layer are not narrowed, nor is one that is not faster for it."""
    session, _ = open_net("digits_ffnn", "float8_e4m3", "faster")
    assert find_layers(session).scales == {}


def test_validation_allows_for_8_bits() -> None:
    """The tolerance is measured with 8 bits in linear layers, too: it is wider than that of bfloat16."""
    session, feeds = open_net("digits_ffnn", "float8_e4m3")
    report = validate(session, feeds)
    in_16 = validate(session.with_options(session.options.in_dtype("bfloat16")), feeds)
    assert report.passed and in_16.passed
    assert (report.tolerances, in_16.tolerances) == ("measured", "measured")
    assert 4 * in_16.atol < report.atol, (in_16.atol, report.atol)
