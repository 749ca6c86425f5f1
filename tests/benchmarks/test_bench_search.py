"""The planner's search beside an exhaustive one: every choice is tried, and the search is near the best."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

from benchmarks.search.__main__ import app
from benchmarks.search.layers import LAYERS, Layer
from benchmarks.search.table import MOST_RATIO, Row, every_choice, measure_layer
from trnrt.importer import import_model
from trnrt.nki.machine.timing import Range
from trnrt.planner.choices import DEFAULT
from trnrt.planner.making import Planning
from trnrt.planner.options import PlanOptions
from trnrt.planner.sizes import default_shapes


def planning_of(layer: Layer) -> Planning:
    model = import_model(layer.build().SerializeToString())
    view = model.bind(default_shapes(model, layer.batch), {})
    return Planning(model, view, PlanOptions("trn2", "bfloat16"), layer.batch, None)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_every_layer_has_choices(layer: Layer) -> None:
    session = onnxruntime.InferenceSession(layer.build().SerializeToString())
    data = session.get_inputs()[0]
    assert session.run(None, {data.name: np.ones((layer.batch, *data.shape[1:]), np.float32)})
    found = list(every_choice(planning_of(layer)))
    assert DEFAULT in found and 1 < len(set(found)) == len(found)


@pytest.mark.parametrize("name", ["conv and pool", "two linear"])
def test_the_search_is_near_the_best(name: str) -> None:
    """Where estimates are not."""
    (layer,) = (layer for layer in LAYERS if layer.name == name)
    row = measure_layer(layer, "trn2", "bfloat16")
    assert row.meets_bar and row.trials > 0
    assert row.estimated.least_us + row.estimated.most_us > row.found.least_us + row.found.most_us


def test_the_bar() -> None:
    """It is for the middle of the range."""
    times = Range(10.0, 11.0, 20.0)
    met, missed = (
        Row("layer", 1, 2, 0, times, Range(10.0, 11.0, 20.0 + 30 * more), times)
        for more in (MOST_RATIO - 1, MOST_RATIO - 0.99)
    )
    assert met.meets_bar and not missed.meets_bar


def test_the_command() -> None:
    found = CliRunner().invoke(app, ["--only", "conv 1x1", "--json"])
    document = json.loads(found.stdout)
    assert found.exit_code == 0 and document["passed"] and document["rows"][0]["count"] > 1
    table = CliRunner().invoke(app, ["--only", "conv 1x1"])
    assert table.exit_code == 0 and "at most 1.03 times the best of all choices" in table.stdout
    assert CliRunner().invoke(app, ["--only", "nothing"]).exit_code == 2
