"""``trnrt cache``, ``trnrt buckets``, and the flags that say sizes: what they print, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commanding import trnrt
from onnx import parser

CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
OPEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,h,w] image) => (float[N,3] y) { p = GlobalAveragePool(image)  y = Flatten(p) }"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def open_sizes(tmp_path: Path) -> str:
    """A model for images of any size."""
    path = tmp_path / "open.onnx"
    onnx.save(parser.parse_model(OPEN), path)
    return str(path)


def test_what_was_compiled_is_listed_and_cleared() -> None:
    assert "nothing is cached" in trnrt("cache", "ls").out
    trnrt("run", str(CNN))
    trnrt("run", str(CNN), "--rows", "4", "--target", "trn1")
    document = trnrt("cache", "ls", "--json").document
    assert document["schema_version"] == 1 and 0 < document["bytes"] < document["limit_bytes"]
    assert [(e["request"]["target"], e["request"]["batch"]) for e in document["entries"]] == [("trn1", 4), ("trn2", 1)]
    table = trnrt("cache", "ls").out.splitlines()
    assert table[0].split() == ["model", "target", "dtype", "batch", "size", "last", "used"]
    assert [line.split()[:4] for line in table[1:]] == [
        ["digits_cnn", "trn1", "float32", "4"],
        ["digits_cnn", "trn2", "float32", "1"],
    ]
    assert "removed 2 plans" in trnrt("cache", "clear").out
    assert trnrt("cache", "ls", "--json").document["entries"] == []


def test_a_miss_says_what_changed() -> None:
    assert "compiled (not" not in trnrt("run", str(CNN)).err
    assert "compiled (not in the cache): target trn2 -> trn1" in trnrt("run", str(CNN), "--target", "trn1").err
    assert "compiled (not" not in trnrt("run", str(CNN), "--target", "trn1").err


def test_no_cache() -> None:
    trnrt("run", str(CNN), "--no-cache")
    assert trnrt("cache", "ls", "--json").document["entries"] == []


def test_buckets_pad_and_cut() -> None:
    result = trnrt("run", str(CNN), "--rows", "9", "--buckets", "4,2")
    assert "9 rows ran in 3 slices (2 of 4, 1 of 2), the last one padded with 1 row" in result.err


@pytest.mark.parametrize("given", ["0", "a", "1,,2"])
def test_buckets_that_are_none(given: str) -> None:
    result = trnrt("run", str(CNN), "--buckets", given)
    assert result.code == 2 and "bucket" in result.err


def test_buckets_are_chosen() -> None:
    result = trnrt("buckets", str(CNN), "--expect", "1:0.9,30:0.1", "--json")
    document = result.document
    assert document["buckets"][0] == 1 and document["buckets"][-1] >= 30
    assert document["expected_us"] < document["one_bucket_us"]
    assert [row["batch"] for row in document["batches"]] == [1, 30]
    assert sum(row["weight"] * row["bucket_us"] for row in document["batches"]) == pytest.approx(
        document["expected_us"]
    )
    printed = trnrt("buckets", str(CNN), "--expect", "1:0.9,30:0.1").out
    assert f"--buckets {','.join(map(str, document['buckets']))};" in printed


def test_buckets_need_an_open_batch(tmp_path: Path) -> None:
    path = tmp_path / "fixed.onnx"
    onnx.save(parser.parse_model(OPEN.replace("N,3,h,w", "4,3,8,8").replace("N,3", "4,3")), path)
    result = trnrt("buckets", str(path), "--expect", "1")
    assert result.code == 2 and "no open batch" in result.err


def test_open_sizes_are_bound_by_a_flag(open_sizes: str) -> None:
    for given in ("image=3x20x30", "3x20x30", "image=1x3x20x30"):
        document = trnrt("inspect", open_sizes, "--shape", given, "--json").document
        assert document["steps"], given
    refused = trnrt("inspect", open_sizes)
    assert refused.code == 2 and "--shape image=3x224x224" in refused.err
    wrong = trnrt("inspect", open_sizes, "--shape", "image=4x20x30")
    assert wrong.code == 2 and "dimension 1 is 3" in wrong.err


def test_open_sizes_are_bound_by_the_input(open_sizes: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((2, 3, 7, 9), np.float32)
    np.savez(tmp_path / "images.npz", image=images)
    result = trnrt("run", open_sizes, "--input", str(tmp_path / "images.npz"), "--json", "--full")
    values = result.document["outputs"]
    assert result.code == 0
    np.testing.assert_allclose(np.array(values["y"]["data"]).reshape(2, 3), images.mean((2, 3)), rtol=1e-5)
