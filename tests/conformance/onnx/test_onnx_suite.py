"""The onnx package's own suite through ``onnx_backend``: each test passes, or is refused with the reason in the table.

``excluded.txt`` is that table. A test that it names must be refused, with its reason and an error that says so; one
that it names and that passes fails here, so the table can only shrink.
"""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import suite

from trnrt.errors import InputError, ModelFileError, TrnrtError, UnsupportedModelError
from trnrt.interfaces import onnx_backend

# The networks are slow, and open shapes are bound before anything is planned: here one of them is run so, and all are
# by ``suite.py``.
SLOW = set(suite.cases("real")) - {"test_squeezenet"}
TESTS = [
    pytest.param(kind, name, dynamic, id=suite.key(kind, name, dynamic=dynamic))
    for kind in suite.KINDS
    for name in suite.cases(kind)
    for dynamic in (False, True)
    if not (dynamic and name in SLOW)
]
# Refused by another error than UnsupportedModelError: inputs of no elements, and a model that contradicts itself
# (Range takes scalars; the expansion of AffineGrid gives it vectors).
_OTHER = {
    InputError: ("there is nothing to run", "contradicts", "the batch has 0 rows"),
    ModelFileError: ("contradicts its inputs",),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each test: all graphs of the suite have few names, and a miss is compared with the entries of its name."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("kind", "name", "dynamic"), TESTS)
def test_suite(kind: str, name: str, dynamic: bool) -> None:
    case = suite.cases(kind)[name]
    reason = suite.excluded().get(suite.key(kind, name, dynamic=dynamic))
    with warnings.catch_warnings():
        # Of the suite's own making: numbers that overflow where they should.
        warnings.simplefilter("ignore")
        if reason is None:
            suite.check(case, dynamic=dynamic)
        elif reason.startswith("differs"):
            assert_differs_as_onnxruntime(case, dynamic=dynamic)
        else:
            with pytest.raises(TrnrtError) as caught:
                suite.check(case, dynamic=dynamic)
            assert suite.told(caught.value) == reason
            if not isinstance(caught.value, UnsupportedModelError):
                assert any(text in str(caught.value) for text in _OTHER[type(caught.value)])


def assert_differs_as_onnxruntime(case: suite.Case, *, dynamic: bool) -> None:
    """onnxruntime doesn't pass the test either, and its answer is ours."""
    with pytest.raises(AssertionError):
        suite.check(case, dynamic=dynamic)
    model, sets = case.load()
    ours = onnx_backend.prepare(suite.made_dynamic(model) if dynamic else model).run(sets[0][0])
    for mine, theirs in zip(ours, suite.reference(case), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_the_table_of_node_tests_leaves_none_out() -> None:
    """Of the modules that are imported by now, one of 39 tests among them."""
    assert set(suite.node_module("resize")) <= set(suite.cases("node"))


def passed(kind: str, *, dynamic: bool) -> int:
    names = [suite.key(kind, name, dynamic=dynamic) for name in suite.cases(kind)]
    return sum(name not in suite.excluded() for name in names)


def test_the_table_names_tests() -> None:
    known = {
        suite.key(kind, name, dynamic=d) for kind in suite.KINDS for name in suite.cases(kind) for d in (False, True)
    }
    assert set(suite.excluded()) <= known
    assert all(reason for reason in suite.excluded().values())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("kind", "least", "count"), [("pytorch-converted", 64, 82), ("pytorch-operator", 18, 35), ("real", 9, 9)]
)
def test_counts(kind: str, least: int, count: int, dynamic: bool) -> None:
    assert len(suite.cases(kind)) == count
    assert passed(kind, dynamic=dynamic) >= least


def test_counts_of_single_nodes() -> None:
    """Of the tests of one node of an operator of the list: how many pass, and how many only onnxruntime passes."""
    ours = [case for case in suite.cases("node").values() if case.operator in suite.OPERATORS]
    ran = [case for case in ours if suite.key("node", case.name, dynamic=False) not in suite.excluded()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missing = [case.name for case in ours if case not in ran and suite.reference_passes(case)]
    operators = Counter(case.operator for case in ran)
    assert len(ran) >= 400
    # Each operator that is named passes some test of its own.
    assert set(operators) >= suite.OPERATORS - {"Constant"}, suite.OPERATORS - set(operators)
    assert len(missing) <= 84, missing
