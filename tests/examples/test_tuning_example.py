"""examples/tuning: the kernel's numbers for every choice of its arguments, and the page that tunes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from commanding import trnrt
from tiny_checkpoints import load_module

from trnrt.nki.loading import find_launches, loading

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "tuning" / "product.py"
CALL = "product(bf16[1024,1024], bf16[1024,2048])"


@pytest.mark.parametrize("copy_by", ["vector", "scalar"])
@pytest.mark.parametrize(("tiles_m", "tiles_n", "load_n"), [(1, 1, 1), (2, 2, 1), (2, 2, 2), (1, 2, 2), (2, 1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_kernel_is_the_product(dtype: Any, tiles_m: int, tiles_n: int, load_n: int, copy_by: str) -> None:
    generator = np.random.default_rng(tiles_m + 10 * tiles_n)
    lhs_t = generator.standard_normal((256, 256)).astype(dtype)
    rhs = generator.standard_normal((256, 1024)).astype(dtype)
    module = load_module("examples/tuning/product.py")
    found = module.product(lhs_t, rhs, tiles_m=tiles_m, tiles_n=tiles_n, load_n=load_n, copy_by=copy_by)
    wanted = module.product_in_numpy(lhs_t, rhs)
    step = 2.0**-7 if dtype is not np.float32 else 1e-5
    np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=step, atol=1e-4)


def test_nothing_in_it_is_refused() -> None:
    assert trnrt("nki", "check", SCRIPT, "--call", CALL, "--nki", "0.6").code == 0


def test_the_page_shows_what_the_best_and_the_default_take() -> None:
    """The whole search takes long for a test: the calls that the page names are timed."""
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    shown = [line.split("  ") for line in page.splitlines() if line.startswith(("best  ", "default  "))]
    for _, *cells in shown:
        time, call = [cell.strip() for cell in cells if cell.strip()]
        (found,) = trnrt("nki", "profile", SCRIPT, "--call", call, "--json").document["calls"]
        assert float(time.split()[0]) == pytest.approx(found["predicted_us"]["benchmark"], rel=0.01), call
    assert len(shown) == 2


def test_the_space_of_the_example(tmp_path: Path) -> None:
    space = ROOT / "examples" / "tuning" / "space.toml"
    text = space.read_text(encoding="utf-8").partition("\n")[2]
    assert text in (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    arguments = ("--space", space, "--reference", "product_in_numpy", "--results", tmp_path / "results.jsonl")
    small = "product(bf16[256,512], bf16[256,1024])"
    document = trnrt("nki", "tune", SCRIPT, "--call", small, *arguments, "--jobs", "1", "--json").document
    assert document["space_size"] == 72 == len(document["candidates"])
    timed = {tuple(one["values"].values()) for one in document["candidates"] if one["us"] is not None}
    # 4 x 2 tiles at most: the blocks that divide them and fit eight banks, with loads that divide the block.
    assert {values[:3] for values in timed} == {
        (str(m), str(n), str(load)) for m in (1, 2, 4) for n in (1, 2) for load in (1, 2) if n % load == 0
    }
    assert json.dumps(document["best"]) and all(one["within"] for one in document["numbers"]["results"])


def test_the_call_of_the_page_can_be_read() -> None:
    with loading(SCRIPT, "trn2"):
        (launch,) = find_launches(SCRIPT, [CALL])
        assert launch.value_of("copy_by") == "vector"
