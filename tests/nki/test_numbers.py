"""Numbers of kernels: the inputs that are drawn, and how far two results are apart."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from simulating import doubled

from trnrt.nki import Spec, nisa, nki, nl, trace
from trnrt.nki.errors import KernelError
from trnrt.nki.numbers import agreement_text, compare_arrays, compare_results, draw_inputs, named_results


def array(*values: float, dtype: Any = np.float32) -> NDArray[Any]:
    return np.array(values, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_equal_arrays_have_the_same_bits(dtype: object) -> None:
    one = array(1, 2, 3, dtype=dtype)
    found = compare_arrays("result", one, one.copy(), None, None)
    assert (found.identical, found.within, found.largest, found.ratio) == (True, True, 0, 0)


def test_nan_equals_nan_but_no_number() -> None:
    one = array(1, np.nan)
    assert compare_arrays("r", one, one.copy(), None, None).identical
    found = compare_arrays("r", one, array(1, 2), None, None)
    assert (found.within, found.index, found.largest) == (False, (1,), np.inf)
    assert not compare_arrays("r", array(1, 2), one, None, None).within


def test_infinities_of_one_sign_are_equal() -> None:
    assert compare_arrays("r", array(1, np.inf), array(1, np.inf), None, None).within
    assert not compare_arrays("r", array(1, np.inf), array(1, -np.inf), None, None).within


def test_zeros_of_two_signs_are_equal_numbers_and_other_bits() -> None:
    found = compare_arrays("r", array(0.0), array(-0.0), None, None)
    assert (found.identical, found.within) == (False, True)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-6, 1.0, 1e6]), share=st.floats(0.1, 2.0))
def test_the_default_tolerance_is_that_of_the_formula(seed: int, scale: float, share: float) -> None:
    one = (np.random.default_rng(seed).standard_normal(50) * scale).astype(np.float32)
    allowed = 1e-4 * np.abs(one.astype(np.float64)) + 1e-5 * np.sqrt(np.mean(one.astype(np.float64) ** 2))
    other = (one + share * allowed).astype(np.float32)
    found = compare_arrays("r", one, other, None, None)
    gap = np.abs(one.astype(np.float64) - other)
    assert found.ratio == pytest.approx((gap / allowed).max(), rel=1e-6)
    assert found.within == bool((gap <= allowed).all())
    assert found.largest == gap.max()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 999), rtol=st.floats(1e-6, 0.1), atol=st.floats(0, 0.1))
def test_given_tolerances_are_those_of_numpy(seed: int, rtol: float, atol: float) -> None:
    generator = np.random.default_rng(seed)
    one = generator.standard_normal(20)
    other = one + generator.standard_normal(20) * 0.02
    found = compare_arrays("r", one, other, rtol, atol)
    assert found.within == np.allclose(other, one, rtol=rtol, atol=atol)


def test_integers_must_be_equal() -> None:
    assert not compare_arrays("r", array(1000, dtype=np.int32), array(1001, dtype=np.int32), None, None).within
    assert compare_arrays("r", array(1000, dtype=np.int32), array(1001, dtype=np.int32), None, 1.0).within


def test_the_coarser_dtype_s_tolerance_counts() -> None:
    one, other = array(1, 1), array(1, 1.0078125, dtype=ml_dtypes.bfloat16)
    assert compare_arrays("r", one, other, None, None).within
    assert not compare_arrays("r", one, other.astype(np.float32), None, None).within


def test_shapes_and_missing_results() -> None:
    found = compare_results({"result": array(1), "a": array(1)}, {"result": array(1, 2)})
    assert [(one.name, one.within) for one in found] == [("result", False), ("a", False)]
    assert "(1,) and (2,)" in found[0].problem and "only the first" in found[1].problem
    assert "(1,) and (2,)" in agreement_text(found[0])


def test_an_empty_result_agrees() -> None:
    assert compare_arrays("r", np.zeros((0, 2)), np.zeros((0, 2)), None, None).within


def test_the_text_says_where_and_how_much() -> None:
    text = agreement_text(compare_arrays("result", array(1, 2), array(1, 2.5), None, None))
    assert "largest difference 0.5 at [1]: 2 and 2.5" in text and "times the tolerance" in text
    assert "the same bits" in agreement_text(compare_arrays("r", array(1), array(1), None, None))


def test_inputs_are_drawn_by_a_seed_and_fit_their_dtypes() -> None:
    program = trace(doubled, Spec((128, 4), "bfloat16"))
    first, again, other = (draw_inputs(program, seed)[0] for seed in (0, 0, 1))
    assert first.dtype == ml_dtypes.bfloat16 and first.shape == (128, 4)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@nki.jit
def two_kinds(table: nl.NkiTensor, rows: nl.NkiTensor) -> nl.NkiTensor:
    out = nl.ndarray(rows.shape, rows.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=rows)
    return out


def test_drawn_integers_can_be_rows_of_the_smallest_tensor() -> None:
    for dtype in ("int32", "uint8"):
        _, rows = draw_inputs(trace(two_kinds, Spec((9, 4), "float32"), Spec((400, 1), dtype)))
        assert rows.min() == 0 and rows.max() == 8


@nki.jit
def both(a: nl.NkiTensor, b: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Returns a and b copied, and writes a to b."""
    first = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    second = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=first, src=a)
    nisa.dma_copy(dst=second, src=b)
    nisa.dma_copy(dst=b, src=a)
    return first, second


def test_results_have_names_and_the_inputs_stay() -> None:
    program = trace(both, *[Spec((128, 4), "float32")] * 2)
    a, b = draw_inputs(program)
    kept = b.copy()
    found = named_results([program], [a, b])
    assert list(found) == ["result[0]", "result[1]", "b"]
    np.testing.assert_array_equal(found["result[1]"], kept)
    np.testing.assert_array_equal(found["b"], a)
    np.testing.assert_array_equal(b, kept)


def test_a_run_needs_every_tensor() -> None:
    program = trace(both, *[Spec((128, 4), "float32")] * 2)
    with pytest.raises(KernelError, match="takes 2 tensors, not 1"):
        named_results([program], draw_inputs(program)[:1])
