"""``--max-instructions``: the kernels that each verb shows, runs and writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from commanding import trnrt

from trnrt.commands.options import read_budget
from trnrt.errors import OptionError

CNN = str(Path(__file__).parents[2] / "models" / "digits_cnn.onnx")
SMALL = ("--max-instructions", "20")


def test_inspect_shows_the_size_of_each_kernel() -> None:
    plain, cut = (trnrt("inspect", CNN, "--no-tiles", "--json", *flags).document for flags in ((), SMALL))
    (size,) = [part["instructions"] for part in plain["parts"]]
    assert size["unrolled"] == size["compiled"] > 20 and size["trips"] == 1
    sizes = [part["instructions"]["compiled"] for part in cut["parts"]]
    assert len(sizes) == 3 and max(sizes) <= 20
    assert [step["name"] for step in cut["steps"]] == [step["name"] for step in plain["steps"]]
    assert len(cut["nodes"]) == len(plain["nodes"])
    assert any(note.startswith("cut into 3 kernels: as one kernel") for note in cut["notes"])
    text = trnrt("inspect", CNN, "--no-tiles", *SMALL).out
    assert "as compiled" in text and all(f"digits_cnn_kernel{k}" in text for k in (1, 2, 3))
    assert "about" in text and "of earlier kernels from HBM" in text


def test_the_verbs_run_several_kernels(tmp_path: Path) -> None:
    whole, cut = (trnrt("run", CNN, "--no-cache", "--json", *flags).document for flags in ((), SMALL))
    (one,), (other,) = (document["outputs"].values() for document in (whole, cut))
    assert one["data"][0] == pytest.approx(other["data"][0], rel=1e-4, abs=1e-5)
    assert len(cut["parts"]) == 3 and cut["predicted_us"] > whole["predicted_us"]
    assert trnrt("validate", CNN, "--layers", *SMALL).code == 0
    profile = trnrt("profile", CNN, "--json", *SMALL).document
    assert [part["name"] for part in profile["parts"]] == [f"digits_cnn_kernel{k}" for k in (1, 2, 3)]
    assert profile["predicted_us"]["benchmark"] == pytest.approx(
        sum(part["predicted_us"]["benchmark"] for part in profile["parts"])
    )
    assert "all parts:" in trnrt("profile", CNN, *SMALL).out
    files = trnrt("compile", CNN, "-o", tmp_path, "--json", *SMALL).document["files"]
    assert sorted(Path(file).name for file in files if file.endswith(".py")) == [
        f"digits_cnn_kernel{k}.py" for k in (1, 2, 3)
    ]


def test_a_saved_plan_is_followed_by_cut_kernels(tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    assert trnrt("inspect", CNN, "--no-tiles", "--save-plan", saved, *SMALL).code == 0
    again = trnrt("inspect", CNN, "--no-tiles", "--json", "--plan", saved, *SMALL).document
    assert len(again["parts"]) == 3


def test_a_budget_that_is_too_small_ends_with_1() -> None:
    outcome = trnrt("inspect", CNN, "--max-instructions", "3")
    assert outcome.code == 1
    assert "alone takes" in outcome.err and "allow --max-instructions" in outcome.err


@pytest.mark.parametrize(("text", "number"), [("none", 0), ("None", 0), ("0", 0), (" 250 ", 250), ("100000", 100_000)])
def test_a_budget_in_words(text: str, number: int) -> None:
    assert read_budget(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1e5", "1.5", "many", "1_000", "9" * 13])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is not a number of instructions"):
        read_budget(text)
