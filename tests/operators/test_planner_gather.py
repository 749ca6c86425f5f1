"""Gather by indices that an input holds: embeddings, any axis, what stands between, and what is no row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from planning import compare, drawn, modelled, onnxruntimes, planned

import trnrt
from trnrt.errors import InputError, UnsupportedModelError
from trnrt.importer import import_model
from trnrt.importer.rows.indexing import index_limits
from trnrt.planner.saving.partitions import decode, encode
from trnrt.validate.layers import validate_layers

Array = NDArray[Any]
TABLE = drawn(40, 6)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_an_embedding(dtype: str, target: str) -> None:
    graph = "(int64[N] i, float[N, 3] x) => (float[N, 9] y) { e = Gather(t, i)  r = Relu(x)  y = Concat<axis=1>(e, r) }"
    feeds = {"i": ints(39, 0, -1, -40, 7), "x": drawn(5, 3)}
    plan = compare(modelled(graph, {"t": TABLE}), feeds, dtype=dtype, target=target)
    assert plan.steps[0].kernel == "gather_rows"


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(3,), (2, 5), ()])
@pytest.mark.parametrize("table", ["x", "t"])
def test_any_axis(kind: str, axis: int, shape: tuple[int, ...], table: str) -> None:
    """Of a constant or of a computed tensor, by indices of any rank.

    Indices into a computed tensor that are read nowhere else are a parameter of the model: so they are read twice.
    """
    sizes = (4, 5, 6)
    at = axis % 3
    dims = ", ".join(map(str, (*sizes[:at], *shape, *sizes[at + 1 :])))
    index = f"[{', '.join(map(str, shape))}]" if shape else ""
    graph = f"""(float[4, 5, 6] x, {kind}{index} i) => (float[{dims}] y, float{index} z) {{
        r = Tanh({table})  g = Gather<axis={axis}>(r, i)  y = Abs(g)  z = Cast<to=1>(i) }}"""
    indices = np.random.default_rng(3).integers(-sizes[at], sizes[at], shape).astype(kind)
    plan = compare(modelled(graph, {"t": drawn(4, 5, 6)}), {"x": drawn(*sizes), "i": np.asarray(indices)})
    assert "gather_rows" in [step.kernel for step in plan.steps]


def test_a_column_for_each_table() -> None:
    """What fastai and others export: integers of a row are split up, each for a table of its own size."""
    graph = """(int64[N, 3] c, float[N, 2] x) => (float[N, 14] y) {
        a = Gather<axis=1>(c, zero)  s = Slice(c, one, two, one)  f = Squeeze(s, one)  b = Cast<to=7>(f)
        d = Slice(c, two, three, one)
        e0 = Gather(t0, a)  e1 = Gather(t1, b)  e2 = Gather(t2, d)  flat = Reshape(e2, rows)
        y = Concat<axis=1>(e0, e1, flat, x) }"""
    constants = {"t0": TABLE, "t1": drawn(3, 4, seed=1), "t2": drawn(1000, 2, seed=2), "rows": ints(-1, 2)}
    constants |= {"zero": np.array(0, np.int64), "one": ints(1), "two": ints(2), "three": ints(3)}
    columns = [np.random.default_rng(k).integers(0, size, 150) for k, size in enumerate((40, 3, 1000))]
    feeds = {"c": np.stack(columns, 1).astype(np.int64), "x": drawn(150, 2)}
    compare(modelled(graph, constants), feeds)
    compare(modelled(graph, constants), feeds, dtype="bfloat16")  # numbers beyond 256 stay whole


def test_the_same_input_may_be_read_as_numbers_too() -> None:
    graph = """(int64[N] i) => (float[N, 7] y) {
        e = Gather(t, i)  f = Cast<to=1>(i)  u = Unsqueeze(f, one)  y = Concat<axis=1>(e, u) }"""
    compare(modelled(graph, {"t": TABLE, "one": ints(1)}), {"i": ints(1, 2, 39)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_among_floats(dtype: str) -> None:
    """Floats whose first columns are classes: the host cuts them off, whatever the session computes in."""
    graph = """(float[N, 5] x) => (float[N, 13] y) {
        a = Slice(x, zero, one, one)  f = Squeeze(a, one)  i = Cast<to=7>(f)  e = Gather(t, i)
        b = Slice(x, one, two, one)  j = Cast<to=6>(b)  g = Gather(u, j)  h = Squeeze(g, one)
        r = Slice(x, two, five, one)  y = Concat<axis=1>(e, h, r) }"""
    constants = {"t": drawn(1000, 6), "u": drawn(3, 4, seed=1)}
    constants |= {"zero": ints(0), "one": ints(1), "two": ints(2), "five": ints(5)}
    x = drawn(7, 5)
    x[:, 0], x[:, 1] = [999, 0, 257.9, 3, -1, -0.5, 512], [0, 1, 2, -3, 2.5, 0, 1]
    model = modelled(graph, constants)
    compare(model, {"x": x}, dtype=dtype)
    for wrong in (1000, np.nan, -np.inf):
        x[3, 0] = wrong
        with pytest.raises(InputError, match=rf"input 'x' holds {wrong}"):
            trnrt.InferenceSession(model.SerializeToString(), dtype=dtype).run(None, {"x": x})


def test_tokens() -> None:
    """A row of indices a row of the batch; its rows are independent, so any number of them is taken."""
    graph = "(int64[N, 7] i) => (float[N, 6] y) { e = Gather(t, i)  y = ReduceMean<axes=[1], keepdims=0>(e) }"
    model = modelled(graph, {"t": TABLE})
    session = trnrt.InferenceSession(model.SerializeToString(), buckets=[4])
    feeds = {"i": np.random.default_rng(0).integers(0, 40, (11, 7))}
    np.testing.assert_allclose(session.run(None, feeds)[0], onnxruntimes(model, feeds)[0], rtol=1e-5, atol=1e-6)
    assert session.mixing(feeds) is None
    assert all(plan.batch == 4 for plan in [session.last_run.plan] if plan is not None)


def test_rows_that_pick_from_each_other_are_not_independent() -> None:
    graph = """(int64[N] i, float[N, 2] x) => (float[N, 2] y, float[N] z) {
        r = Relu(x)  y = Gather(r, i)  z = Cast<to=1>(i) }"""
    session = trnrt.InferenceSession(modelled(graph).SerializeToString())
    feeds = {"i": ints(2, 0, 1), "x": drawn(3, 2)}
    assert session.mixing(feeds) is not None
    np.testing.assert_allclose(session.run(None, feeds)[0], np.maximum(feeds["x"], 0)[[2, 0, 1]])
    assert session.last_run.plan is not None
    assert [step.kernel for step in session.last_run.plan.steps] == ["compute", "gather_rows"]


@pytest.mark.parametrize("number", [40, -41, 2**40])
def test_what_is_no_row_is_said(number: int) -> None:
    graph = "(int64[N] i) => (float[N, 6] y) { e = Gather(t, i)  y = Relu(e) }"
    session = trnrt.InferenceSession(modelled(graph, {"t": TABLE}).SerializeToString())
    with pytest.raises(
        InputError, match=rf"input 'i' holds {number}, and Gather '.*' looks up one of 40 rows"
    ) as caught:
        session.run(None, {"i": ints(1, number)})
    assert "from 0 to 39" in str(caught.value.hint)
    session.run(None, {"i": ints(1, 2)})


def test_random_inputs_are_rows() -> None:
    graph = """(int64[N] i, int64[N, 2] c, int64[N] n) => (float[N, 6] y, float[N, 6] z, float[N] f) {
        e = Gather(t, i)  y = Relu(e)  k = Gather<axis=1>(c, zero)  g = Gather(u, k)  z = Relu(g)
        f = Cast<to=1>(n) }"""
    constants = {"t": drawn(3, 6), "u": drawn(2, 6), "zero": np.array(0, np.int64)}
    model = modelled(graph, constants)
    assert index_limits(import_model(model.SerializeToString()).model.graph) == {"i": 3, "c": 2}
    drawn_values = trnrt.InferenceSession(model.SerializeToString()).random_inputs(200)
    assert [int(drawn_values[name].max()) for name in ("i", "c", "n")] == [2, 1, 9]


def test_a_saved_plan_still_prepares_its_numbers() -> None:
    graph = "(int64[N] i) => (float[N, 6] y) { e = Gather(t, i)  y = Relu(e) }"
    session = trnrt.InferenceSession(modelled(graph, {"t": TABLE}).SerializeToString(), cache=False)
    partition = session.partition(3)
    (node,) = decode(*encode(partition)).parts[0].plan.before  # type: ignore[union-attr]
    assert node.compute(ints(5, -1, 0)).tolist() == [5, 39, 0]
    assert node.compute(ints(5, -1, 0)).dtype == np.int32


def test_steps_alone(tmp_path: Path) -> None:
    graph = """(int64[N, 2] c, float[N, 3] x) => (float[N, 9] y) {
        s = Slice(c, zero, one, one)  a = Squeeze(s, one)  e = Gather(t, a)  r = Tanh(x)  y = Concat<axis=1>(e, r) }"""
    model = modelled(graph, {"t": TABLE, "zero": ints(0), "one": ints(1)})
    for dtype in ("float32", "bfloat16"):
        session = trnrt.InferenceSession(model.SerializeToString(), dtype=dtype)
        report = validate_layers(session, session.random_inputs(5))
        assert [layer.kernel for layer in report.layers if not layer.passed] == []
        assert "gather_rows" in [layer.kernel for layer in report.layers]


def test_moved_in_an_order_that_is_no_pattern() -> None:
    """Indices that would have to be copied on the device are refused, not held as floats."""
    graph = """(int64[4, 6] c) => (float[24, 6] y) {
        p = Transpose<perm=[1, 0]>(c)  f = Reshape(p, all)  e = Gather(t, f)  y = Relu(e) }"""
    with pytest.raises(UnsupportedModelError, match="would have to copy"):
        planned(modelled(graph, {"t": TABLE, "all": ints(-1)}), {"c": (4, 6)})
