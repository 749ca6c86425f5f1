"""Mistakes that people make with models that nobody prepared: the error names the place, and the way out works."""

from __future__ import annotations

import traceback
from pathlib import Path

import numpy as np
import onnx
import pytest
from commanding import Outcome, trnrt
from PIL import Image
from planning import modelled

from trnrt import InferenceSession, errors

PICTURES = "(float[N,1,H,W] image) => (float[N,1,a,b] y) { y = Conv(image, w) }"
TEXTS = "(string[N] s, float[N] x) => (float[N] y, string[N] t) { y = Neg(x)  t = Identity(s) }"
IN_NO_TIME = ("--rps", "10", "--p99", "1us", "--max-batch", "1")
"""A demand that nothing meets: the latency is predicted, and no queue is played through."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a model of pictures of any size, and one with texts."""
    monkeypatch.chdir(tmp_path)
    onnx.save(modelled(PICTURES, {"w": np.ones((1, 1, 3, 3), np.float32)}), "pictures.onnx")
    onnx.save(modelled(TEXTS), "texts.onnx")
    return tmp_path


def refused(outcome: Outcome, *parts: str, code: int = 2) -> None:
    """The command was refused, with these words and without a traceback."""
    assert outcome.code == code, outcome
    said = " ".join(outcome.err.split())
    assert all(part in said for part in parts), said
    assert "Traceback" not in said


def test_pictures_that_no_memory_holds(folder: Path) -> None:
    huge = trnrt("run", "pictures.onnx", "--shape", "image=1x99999x99999")
    refused(huge, "1 random row of this model need 74.5 GiB", "hint: ask for fewer rows, or for smaller ones (--shape)")
    assert trnrt("run", "pictures.onnx", "--shape", "image=1x9x9").code == 0


def test_pictures_smaller_than_the_kernel(folder: Path) -> None:
    small = trnrt("inspect", "pictures.onnx", "--shape", "image=1x2x2")
    refused(
        small, "can't take the input shapes 'image' (1, 1, 2, 2)", "nothing would be left", "hint: Give other sizes."
    )


def test_rows_that_differ(folder: Path) -> None:
    onnx.save(modelled("(float[N,2] a, float[N,2] b) => (float[N,2] y) { y = Add(a, b) }"), "two.onnx")
    np.savez("rows.npz", a=np.ones((2, 2), np.float32), b=np.ones((3, 2), np.float32))
    refused(trnrt("run", "two.onnx", "--input", "rows.npz"), "'a' has 2, 'b' has 3", "hint: give each as many rows")


def test_texts_are_planned(folder: Path) -> None:
    """No values are needed where nothing runs."""
    assert "not possible" in trnrt("plan", "texts.onnx", *IN_NO_TIME).out
    assert trnrt("buckets", "texts.onnx", "--expect", "1:1", "--most", "1").code == 0
    refused(trnrt("run", "texts.onnx"), "'s' holds strings", "hint: give it with --input")


def test_an_axis_that_is_an_input(folder: Path) -> None:
    """``plan`` takes no --input: it must not ask for one."""
    onnx.save(modelled("(float[N,4] x, int64[1] a) => (float[n,m] y) { y = ReduceSum(x, a) }"), "axis.onnx")
    outcome = trnrt("plan", "axis.onnx", *IN_NO_TIME)
    refused(
        outcome, "input 'a' holds an operator's shape, axes or count", "hint: export the model with it as a constant"
    )
    constant = modelled("(float[N,4] x) => (float[N,1] y) { y = ReduceSum(x, a) }", {"a": np.array([1])})
    onnx.save(constant, "constant.onnx")
    assert "not possible" in trnrt("plan", "constant.onnx", *IN_NO_TIME).out


def test_names_with_commas(folder: Path) -> None:
    onnx.save(modelled("(float[2] x) => (float[2] y) { a = Neg(x)  b = Abs(x)  y = Add(a, b) }"), "three.onnx")
    refused(trnrt("cut", "three.onnx", "--outputs", "a,b", "-o", "c.onnx"), "hint: write spaces: --outputs a b")
    assert trnrt("cut", "three.onnx", "--outputs", "a", "b", "-o", "c.onnx").code == 0


def test_a_file_in_place_of_a_directory(folder: Path) -> None:
    refused(
        trnrt("compile", "texts.onnx", "-o", "texts.onnx"), "can't write into 'texts.onnx'", "hint: name a directory"
    )


def test_nothing_to_quantise(folder: Path) -> None:
    np.savez("rows.npz", x=np.ones((20, 4), np.float64))
    onnx.save(
        modelled("(double[N,4] x) => (double[N,2] y) { y = MatMul(x, w) }", {"w": np.ones((4, 2))}), "doubles.onnx"
    )
    outcome = trnrt("quantize", "doubles.onnx", "--data", "rows.npz", "-o", "q.onnx")
    refused(outcome, "doubles has nothing to quantise", "float64 or float16 must be exported in float32 first", code=1)


def test_a_name_of_slashes_and_colons(folder: Path) -> None:
    model = modelled("(float[N,2] x) => (float[N,2] y) { a = Neg(x)  y = Exp(a) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "serving/in:0"
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "model/a:0"
    onnx.save(model, "names.onnx")
    np.save("x.npy", np.ones((3, 2), np.float32))
    assert trnrt("run", "names.onnx", "--input", "serving/in:0=x.npy").code == 0
    assert trnrt("cut", "names.onnx", "--outputs", "model/a:0", "-o", "c.onnx").code == 0
    assert trnrt("inspect", "c.onnx", "--shape", "serving/in:0=2").code == 0


def test_a_pattern_after_a_flag_is_several_words(folder: Path) -> None:
    for verb in ("run", "validate"):
        several = trnrt(verb, "pictures.onnx", "--input", "a.png", "b.png")
        refused(several, "error: got unexpected extra argument (b.png)", "hint: --input takes one file; repeat it")
    assert "Usage:" in trnrt("inspect", "pictures.onnx", "b.onnx").err


def test_a_folder_is_for_predict(folder: Path) -> None:
    (folder / "photos").mkdir()
    refused(trnrt("run", "pictures.onnx", "--input", "photos"), "'photos': it is a folder", "`trnrt predict`")


def test_pixels_without_a_meaning_lead_to_the_preset(folder: Path) -> None:
    Image.new("L", (9, 9)).save("a.png")
    refused(trnrt("run", "pictures.onnx", "--input", "a.png"), "--preprocess imagenet", "--scale 1/255", "--mean")


def test_a_refused_run_leads_to_inspect(folder: Path) -> None:
    text = "(float[2,3] x) => (float[2,3] y) { a = Hardmax(x)  y = Shrink(a) }"
    onnx.save(modelled(text), "odd.onnx")
    refused(trnrt("run", "odd.onnx"), "runs these nodes on the CPU", "`trnrt inspect` shows", code=1)


def test_python_shows_the_hint() -> None:
    with pytest.raises(errors.InputError) as caught:
        InferenceSession(modelled(TEXTS).SerializeToString()).run(None, {"z": np.zeros(2, np.float32)})
    assert "hint: its inputs are s, x" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["picture.onnx", "pictures", "pitcures.onnx"])
def test_a_missing_model_has_neighbours(folder: Path, name: str) -> None:
    refused(trnrt("inspect", name), f"{name}: there is no such file", "hint: Check the path; there is 'pictures.onnx'.")
    assert trnrt("inspect", "rf.onnx").err.endswith("hint: Check the path.\n")
