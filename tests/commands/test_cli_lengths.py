"""``--lengths`` and ``--expect-lengths``: what the verbs print, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from commanding import trnrt
from encoding import save_encoder, sentences


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An encoder with an open length."""
    return save_encoder(tmp_path / "encoder.onnx")


def test_run_pads_and_says_so(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **cast("Any", sentences(1, 5)))
    result = trnrt("run", model, "--input", tmp_path / "in.npz", "--lengths", "4,8", "--json")
    assert result.code == 0 and "note: length 5 ran as 8, padded with 3 places" in result.err
    assert result.document["outputs"]["tokens"]["shape"] == [1, 5, 8]


def test_a_sequence_too_long_ends_with_2(model: Path) -> None:
    result = trnrt("run", model, "--shape", "ids=20", "--lengths", "4,8")
    assert result.code == 2
    assert "have the length 20; the largest of the session's lengths is 8" in result.err
    assert "--lengths 4,8,32" in result.err


def test_validate_compares_with_the_sequence_alone(model: Path) -> None:
    flags = ("--lengths", "4,8", "--shape", "ids=5", "--rows", "3", "--layers")
    result = trnrt("validate", model, *flags)
    assert result.code == 0 and "length 5 ran as 8" in result.err


def test_a_model_that_sees_the_padding_ends_with_2(tmp_path: Path) -> None:
    wrong = save_encoder(tmp_path / "wrong.onnx", masked_mean=False)
    for verb in (("run", wrong, "--lengths", "8"), ("buckets", wrong, "--expect-lengths", "8")):
        result = trnrt(*verb)
        assert result.code == 2 and "padding changes output 'embedding'" in result.err


def test_flags_that_do_not_fit(model: Path) -> None:
    for arguments, told in (
        (("run", model, "--pad", "ids=1"), "there are no lengths"),
        (("run", model, "--lengths", "4,x"), "lengths '4,x' are not whole numbers"),
        (("run", model, "--lengths", "4", "--pad", "ids"), "pad 'ids' is no input with a number"),
        (("buckets", model), "give --expect or --expect-lengths"),
        (("buckets", model, "--expect", "1", "--expect-lengths", "4"), "give --expect or --expect-lengths"),
        (("buckets", model, "--expect", "1", "--batch", "4"), "--batch needs --expect-lengths"),
        (("buckets", model, "--expect-lengths", "4:0"), "expected lengths '4:0' are not sizes"),
        (("profile", model), "name the sizes, as in --shape"),
    ):
        result = trnrt(*arguments)
        assert result.code == 2 and told in result.err, arguments


def test_lengths_are_chosen(model: Path) -> None:
    arguments = ("buckets", model, "--expect-lengths", "3:0.9,100:0.1", "--batch", "4")
    document = trnrt(*arguments, "--json").document
    assert document["rows"] == 4 and document["buckets"][-1] == 100
    assert [row["length"] for row in document["lengths"]] == [3, 100]
    assert document["expected_us"] <= document["one_bucket_us"]
    chosen = ",".join(map(str, document["buckets"]))
    assert f"encoder: --lengths {chosen}; predicted" in trnrt(*arguments).out
