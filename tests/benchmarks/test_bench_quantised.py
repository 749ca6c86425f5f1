"""The benchmark of quantised networks: each form is predicted, and the best batch is found."""

from __future__ import annotations

import json

import onnx
import pytest
from click.testing import CliRunner
from planning import drawn, modelled

from benchmarks.networks import table as networks
from benchmarks.quantised.__main__ import app
from benchmarks.quantised.table import FORMS, forms_of, quantise_network
from trnrt.session import InferenceSession


def layers() -> onnx.ModelProto:
    """Two layers with a Relu between them."""
    constants = {"w": drawn(64, 64), "v": drawn(64, 64)}
    text = "(float[N,64] x) => (float[N,64] y) { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, v) }"
    return modelled(text, constants)


def test_each_form_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "NETWORKS", {"layers": layers})
    monkeypatch.setattr("benchmarks.quantised.table.NETWORKS", {"layers": layers})
    options = ["--net", "layers", "--batch", "1", "--batch", "2"]
    document = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    rows = [(row["form"], row["batch"]) for row in document["rows"]]
    assert rows == [(form, batch) for form in FORMS for batch in (1, 2)]
    for row in document["best"]:
        rates = [one["images_per_second"] for one in document["rows"] if one["form"] == row["form"]]
        assert row["images_per_second"] == max(rates)
    shown = CliRunner().invoke(app, options).stdout
    assert "layers in float8_e4m3: most images a second" in shown
    assert "times bfloat16's" in shown
    assert "layers in int8: most images a second at batch 2" in shown


def test_trn1_has_no_8_bit_floats() -> None:
    assert forms_of("trn1") == ("float32", "bfloat16", "int8")
    assert forms_of("trn2") == FORMS


def test_int8_is_multiplied_in_bfloat16() -> None:
    plan = InferenceSession(quantise_network(layers()), cache=False).plan(1)
    assert "bfloat16" in {array.dtype.name for array in plan.weights.values()}
