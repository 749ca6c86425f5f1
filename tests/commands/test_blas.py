"""Products whose elements don't depend on their place, with the kernels that the commands choose."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from trnrt.commands.blas import choose_blas_kernels, limit_blas_threads

VARIABLE = "OPENBLAS_CORETYPE"


@pytest.mark.parametrize(
    ("features", "chosen"),
    [("sse2 avx avx2 fma", "Sandybridge"), ("avx avx2 avx512f", None), ("sse2 avx", None), ("", None)],
)
def test_avx_kernels_are_chosen_for_avx2_alone(
    features: str, chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {features}\n")
    choose_blas_kernels(tmp_path / "cpuinfo")
    assert os.environ.get(VARIABLE) == chosen


def test_the_users_choice_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {VARIABLE: "Zen"})
    (tmp_path / "cpuinfo").write_text("flags: avx2\n")
    choose_blas_kernels(tmp_path / "cpuinfo")
    assert os.environ == {VARIABLE: "Zen"}


def test_without_a_list_of_features_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    choose_blas_kernels(tmp_path / "none")
    assert os.environ == {}


@pytest.mark.parametrize("shape", [(128, 128, 512), (96, 128, 512), (128, 64, 10), (10, 64, 128), (37, 27, 50)])
def test_equal_rows_and_columns_have_equal_products(shape: tuple[int, int, int]) -> None:
    """The tests run with the kernels that the commands would choose here."""
    rows, terms, columns = shape
    rng = np.random.default_rng(0)
    for _ in range(5):
        row, column = rng.standard_normal((2, terms), dtype=np.float32)
        product = np.repeat(row[None], rows, 0) @ np.repeat(column[:, None], columns, 1)
        assert len(np.unique(product)) == 1


def test_one_thread_unless_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    limit_blas_threads()
    assert os.environ["OPENBLAS_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "4"})
    limit_blas_threads()
    assert os.environ == {"OMP_NUM_THREADS": "4"}
