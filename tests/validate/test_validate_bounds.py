"""The rules of tolerances hold: inputs that move within their errors move the result within its bound."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from layered import Net
from numpy.typing import NDArray
from onnx.backend.test.case.node import collect_testcases

from trnrt.errors import BackendError, InputError, ModelFileError, UnsupportedModelError
from trnrt.importer import import_model
from trnrt.operators.bounds.rounding import Rounding, sum_bound
from trnrt.operators.record import records
from trnrt.validate.bounds import Bound, carry_errors
from trnrt.validate.distances import distance, errors_of, index_errors
from trnrt.validate.reference import Evaluated, Group, Groups, evaluate, value_of

Array = NDArray[Any]
# Of each operator's cases among ONNX's node tests those that take float32 and that onnxruntime runs, the first few.
CASES_EACH = 4
# An operator that is newer there than onnxruntime knows is tried as of this opset.
OPSET = 24
Tests = dict[str, list[tuple[onnx.ModelProto, dict[str, Array]]]]
EXACT = Rounding("float32")
# Those of ai.onnx.ml have few node tests: pipelines with them are compared in test_validate_layers.py.
BOUNDED = {name for (domain, name), record in records().items() if not domain and callable(record.bound)}
# Those without floats to move, and SimplifiedLayerNormalization, which onnx's checker doesn't know.
UNMOVED = {"SimplifiedLayerNormalization", "And", "Cast", "Dropout", "IsInf", "IsNaN", "Not", "Or", "Xor"}


@cache
def node_tests() -> Tests:
    """ONNX's tests of one node, by operator: copies of their models, which all of the process share, and inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    found: Tests = {}
    for case in cases:
        if case.model is not None and len(case.model.graph.node) == 1 and "training" not in case.name:
            model = onnx.ModelProto.FromString(case.model.SerializeToString())
            model.opset_import[0].version = min(model.opset_import[0].version, OPSET)
            feeds = {v.name: a for v, a in zip(model.graph.input, case.data_sets[0][0], strict=False)}
            found.setdefault(model.graph.node[0].op_type, []).append((model, feeds))
    return found


def of_own(op: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of an operator that has no node test with float32."""
    net = Net("own", [2, 3, 4, 5], seed=4)
    other = net.weight(2, 3, 4, 5, scale=1)
    axes = net.constant(np.array([1, 3], np.int64))
    sums, depth = net.constant(np.array(3, np.int64)), net.constant(np.array(4, np.float32))
    values = net.constant(np.array([-1, 2], np.float32))
    inputs = {
        "Equal": ["x", other],
        "Mod": ["x", other],
        "ReduceLogSumExp": ["x", axes],
        "CumSum": ["x", sums],
        "OneHot": ["x", depth, values],
    }.get(op, ["x"])
    attributes = {"Mod": {"fmod": 1}, "GlobalLpPool": {"p": 3}}.get(op, {})
    model = onnx.load_from_string(net.model(net.add(op, *inputs, **attributes)))
    return model, {"x": np.random.default_rng(5).standard_normal((2, 3, 4, 5)).astype(np.float32)}


def prepared(model: onnx.ModelProto, feeds: dict[str, Array]) -> tuple[Groups, Group]:
    """The first output's group of a model."""
    imported = import_model(model.SerializeToString())
    values = {name: feeds[name] for name in imported.parameters}
    groups = Groups(imported.bind({name: array.shape for name, array in feeds.items()}, values).model)
    return groups, groups.cut(model.graph.output[0].name)


def carried(groups: Groups, group: Group, done: list[Evaluated], errors: dict[str, Array]) -> Bound:
    """The bound in float32."""
    return carry_errors(group, done, errors, EXACT, groups.model.opset_imports[""])


def moves(model: onnx.ModelProto, feeds: dict[str, Array], random: np.random.Generator) -> bool:
    """Move inputs within their errors, and check the result; False where nothing can be moved or run."""
    floats = [n for n, a in feeds.items() if isinstance(a, np.ndarray) and a.dtype == np.float32 and a.size > 1]
    if not floats:
        return False
    try:
        groups, group = prepared(model, feeds)
        done = evaluate(group, groups.model, feeds)
    except (BackendError, ModelFileError, InputError, UnsupportedModelError, KeyError):
        return False
    moving = [name for name in floats if name in {value.name for value in group.sources}]
    errors = {name: np.float32(0.01) * np.abs(feeds[name]) + np.float32(0.001) for name in moving}
    made, before = carried(groups, group, done, errors), value_of(group, done)
    for sign in (1, -1, None):
        moved = dict(feeds)
        for name in moving:
            share = random.uniform(-1, 1, feeds[name].shape) if sign is None else sign
            moved[name] = (feeds[name] + share * errors[name]).astype(np.float32)
        after = value_of(group, evaluate(group, groups.model, moved))
        assert distance(errors_of(after, before), made.error).passed
    return bool(moving)


@pytest.mark.parametrize("op", sorted(BOUNDED - UNMOVED))
def test_a_rule_bounds_what_moves(op: str) -> None:
    """Inputs are moved by up to 1 % and 0.001: all of them up, all of them down, and at random."""
    random = np.random.default_rng(0)
    tried = 0
    for model, feeds in node_tests().get(op, []):
        tried += tried < CASES_EACH and moves(model, feeds, random)
    assert tried or moves(*of_own(op), random)


@pytest.mark.parametrize("length", [1, 4, 64, 1000, 20000])
def test_sums_stay_within_their_bound(length: int) -> None:
    random = np.random.default_rng(length)
    for scale in (0.0, 1.0):  # of both signs, and of one sign only
        a = (random.standard_normal((50, length)) + 3 * scale).astype(np.float32)
        b = (random.standard_normal((50, length)) + 3 * scale).astype(np.float32)
        exact = (a.astype(np.float64) * b).sum(axis=1)
        size = np.abs(a.astype(np.float64) * b).sum(axis=1)
        in_order = np.cumsum(a * b, axis=1, dtype=np.float32)[:, -1]
        assert np.all(np.abs(in_order - exact) <= sum_bound(length + 1, 50) * size)
        assert np.all(np.abs((a * b).sum(axis=1) - in_order) <= sum_bound(length + 1, 50) * size)


def test_the_bound_of_sums_grows_as_stated() -> None:
    """Linear while that is less, then with the square root; in units of float32, whatever is stored."""
    assert sum_bound(1, 1) == 2 * 2**-24
    assert sum_bound(16, 1000) == 16 * sum_bound(1, 1)
    assert 3.9 < sum_bound(16_000, 1) / sum_bound(1000, 1) < 4.3
    assert sum_bound(1000, 1_000_000) > sum_bound(1000, 1)


def test_products_of_16_bits_by_hand() -> None:
    """A and B are off by a rounding each, the result by another: ``|A| |B| (2u + u**2)`` and ``u |y|``."""
    net = Net("product", [1, 2])
    weight = net.constant(np.array([[0.3], [0.7]], np.float32))
    model = onnx.load_from_string(net.model(net.add("MatMul", "x", weight)))
    feeds = {"x": np.array([[1.1, -2.3]], np.float32)}
    groups, group = prepared(model, feeds)
    done = evaluate(group, groups.model, feeds)
    u = 2.0**-8
    made = carry_errors(group, done, {"x": u * np.abs(feeds["x"])}, Rounding("bfloat16"), 18)
    size = 1.1 * 0.3 + 2.3 * 0.7
    by_hand = size * (2 * u + u * u) + u * abs(1.1 * 0.3 - 2.3 * 0.7)
    assert made.length == 3
    assert made.error[0, 0] == pytest.approx(by_hand, rel=0.02) and made.error[0, 0] >= by_hand


def test_distances() -> None:
    nan, inf = np.nan, np.inf
    ours = np.array([1, 2, nan, inf, 5], np.float32)
    theirs = np.array([1, 2.5, nan, inf, 4], np.float32)
    errors = errors_of(ours, theirs)
    np.testing.assert_array_equal(errors, [0, 0.5, 0, 0, 1])
    found = distance(errors, np.array([0, 1, 0, 0, 4], np.float32))
    assert (found.max_abs, found.error, found.tolerance, found.ratio, found.element) == (1, 0.5, 1, 0.5, (1,))
    assert found.passed and not distance(errors, np.array([0, 0.4, 0, 0, 4], np.float32)).passed
    assert errors_of(np.array([nan, inf], np.float32), np.array([1, -inf], np.float32)).tolist() == [inf, inf]
    assert not distance(np.array([inf]), np.array([1.0])).passed
    assert distance(np.array([inf]), np.array([inf])).passed


def test_indices() -> None:
    x = np.array([[1.0, 1.01, 0.2], [3.0, 3.0, 0.0]], np.float32)
    theirs, ours = np.array([[1], [0]]), np.array([[0], [1]])
    exact, off = np.zeros_like(x), np.full_like(x, 0.006)
    np.testing.assert_array_equal(index_errors(ours, theirs, x, exact, 1, (2, 1)), [[1], [1]])
    np.testing.assert_array_equal(index_errors(ours, theirs, x, off, 1, (2, 1)), [[0], [0]])
    np.testing.assert_array_equal(index_errors(np.array([[2], [9]]), theirs, x, off, 1, (2, 1)), [[1], [9]])
