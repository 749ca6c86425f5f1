"""Tests of scaling.py on the simulator: `pytest examples/kernel_tests`. Two of them fail, to show how that reads."""

import numpy as np
import pytest
from scaling import scale_rows, scale_rows_badly

rng = np.random.default_rng(0)
X = rng.standard_normal((128, 1000)).astype(np.float32)
FACTOR = rng.standard_normal((128, 1)).astype(np.float32)


def test_scale_rows(nki_simulate):
    nki_simulate(scale_rows, X, FACTOR).equals(X * FACTOR)


@pytest.mark.parametrize("columns", [1, 512, 513])
def test_any_width(nki_simulate, columns):
    nki_simulate(scale_rows, X[:, :columns], FACTOR).equals(np.multiply)


@pytest.mark.nki_budget(us=20)
def test_it_is_fast(nki_simulate):
    nki_simulate(scale_rows, X, FACTOR)


def test_fails_with_the_line_that_is_wrong(nki_simulate):
    nki_simulate(scale_rows_badly, X, FACTOR).equals(X * FACTOR)


@pytest.mark.nki_budget(us=5)
def test_fails_with_where_the_time_goes(nki_simulate):
    nki_simulate(scale_rows, X, FACTOR)
