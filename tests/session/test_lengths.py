"""Sequences of any length from a few compiled ones: padded, cut back, and refused where padding shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoding import BOTH, encoder, reference, sentences, with_inputs
from onnx import parser

import trnrt
from trnrt.errors import InputError, OptionError
from trnrt.running.lengths import Lengths, check_lengths, parse_lengths, parse_pad


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("length", [1, 3, 4, 5, 9, 16])
def test_answers_are_those_without_padding(length: int) -> None:
    model = encoder()
    session = trnrt.InferenceSession(model, lengths=[4, 16], buckets=[1, 4])
    feeds = sentences(3, length)
    for ours, want in zip(session.run(None, feeds), reference(model, feeds), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-5)
    size = 4 if length <= 4 else 16
    padding = "1 place" if size - length == 1 else f"{size - length} places"
    noted = [f"length {length} ran as {size}, padded with {padding}"] * (length != size)
    assert list(session.last_run.notes) == [*noted, "3 rows ran in 1 slice of 4, padded with 1 row"]


def test_one_program_runs_all_lengths_of_a_bucket() -> None:
    session = trnrt.InferenceSession(encoder(), lengths=[8])
    for length in (2, 5, 8):
        session.run(None, sentences(1, length))
    assert len(session._programs.loaded) == 1


def test_what_the_padded_places_hold_changes_no_bit() -> None:
    model = encoder()
    feeds = sentences(2, 5)
    first, second = (
        trnrt.InferenceSession(model, lengths=[8], pads=pads).run(None, feeds) for pads in (None, {"ids": 7})
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_random_inputs_have_the_largest_length_or_the_given_shape() -> None:
    model = encoder()
    assert trnrt.InferenceSession(model, lengths=[4, 16]).random_inputs(2)["ids"].shape == (2, 16)
    shapes = {"ids": (6,)}
    assert trnrt.InferenceSession(model, lengths=[4, 16], shapes=shapes).random_inputs(2)["mask"].shape == (2, 6)


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"masked": False, "masked_mean": False}, "embedding"),
        ({"masked": False}, "embedding"),
        ({"masked_mean": False}, "embedding"),
        ({"masked": False, "outputs": "float[batch,sequence,8] tokens"}, "tokens"),
    ],
)
def test_a_model_that_sees_the_padding_is_refused(options: dict[str, Any], output: str) -> None:
    with pytest.raises(OptionError, match=f"padding changes output '{output}': sequences of 4, padded to 8") as caught:
        trnrt.InferenceSession(encoder(**options), lengths=[8])
    assert "attention_mask" in str(caught.value.hint)


def test_the_tokens_alone_may_be_padded_where_only_the_mean_is_wrong() -> None:
    model = encoder(masked_mean=False, outputs="float[batch,sequence,8] tokens")
    session, feeds = trnrt.InferenceSession(model, lengths=[8]), sentences(2, 3)
    np.testing.assert_allclose(session.run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-4, atol=1e-5)


# The ids say themselves what is padding, if it is 7.
BY_ID = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[batch,sequence] ids) => (float[batch] count)
<int64 pad = {7}, int64[1] axis = {1}> { is_pad = Equal(ids, pad)  is_word = Not(is_pad)  w = Cast<to = 1>(is_word)
  count = ReduceSum<keepdims = 0>(w, axis) }"""


def test_the_padded_number_may_matter_and_can_be_given() -> None:
    model = parser.parse_model(BY_ID).SerializeToString()
    with pytest.raises(OptionError, match="padding changes output 'count'"):
        trnrt.InferenceSession(model, lengths=[8])
    session = trnrt.InferenceSession(model, lengths=[8], pads={"ids": 7})
    np.testing.assert_array_equal(session.run(None, {"ids": np.array([[1, 7, 3, 4, 7]])})[0], [3])


# The 4 padded places change the output by less than 1e-4 of it.
COUNTS = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[batch,sequence] x) => (int64[batch] count)
<int64 least = {100000}, int64[1] axis = {1}, int64 one = {1}> { zero = Sub(x, x)  ones = Add(zero, one)
  places = ReduceSum<keepdims = 0>(ones, axis)  count = Add(places, least) }"""


def test_integer_outputs_must_be_equal() -> None:
    with pytest.raises(OptionError, match=r"padding changes output 'count': .* differ by up to 4"):
        trnrt.InferenceSession(parser.parse_model(COUNTS).SerializeToString(), lengths=[8])


GROWS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,sequence] x) => (float[batch,twice] y) { y = Concat<axis = 1>(x, x) }"""


def test_outputs_that_grow_otherwise_are_refused() -> None:
    with pytest.raises(OptionError, match=r"output 'y' is \[2, 8\] for sequences of 4 and \[2, 16\] for 8"):
        trnrt.InferenceSession(parser.parse_model(GROWS).SerializeToString(), lengths=[8])


def test_a_longer_sequence_names_the_way_out() -> None:
    session = trnrt.InferenceSession(encoder(), lengths=[4, 16])
    with pytest.raises(InputError, match="have the length 17; the largest of the session's lengths is 16") as caught:
        session.run(None, sentences(1, 17))
    assert caught.value.hint == "truncate them, or name a larger length: --lengths 4,16,32"


def test_inputs_of_different_lengths_are_refused() -> None:
    model = with_inputs(encoder(), ids=("batch", "one"), mask=("batch", "other"))
    session, feeds = trnrt.InferenceSession(model, lengths=[8]), sentences(2, 5)
    np.testing.assert_allclose(session.run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="different lengths: 'ids' has 4, 'mask' has 5"):
        session.run(None, feeds | {"ids": feeds["ids"][:, :4]})


def test_a_fixed_batch_runs_in_slices() -> None:
    outputs = BOTH.replace("batch", "2")
    model = with_inputs(encoder(outputs=outputs), ids=(2, "sequence"), mask=(2, "sequence"))
    session, feeds = trnrt.InferenceSession(model, lengths=[8]), sentences(3, 5)
    for ours, want in zip(session.run(None, feeds), reference(encoder(), feeds), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-5)
    assert "the model's batch is fixed at 2" in session.last_run.notes[-1]


def test_no_rows_and_no_length() -> None:
    session, feeds = trnrt.InferenceSession(encoder(), lengths=[8]), sentences(2, 5)
    embedding, tokens = session.run(None, {name: array[:0] for name, array in feeds.items()})
    assert embedding.shape == (0, 8) and tokens.shape == (0, 5, 8)
    with pytest.raises(InputError, match="dimension 1 is 0"):
        session.run(None, {name: array[:, :0] for name, array in feeds.items()})


IMAGE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,h,w] image) => (float[N,3] y) { p = GlobalAveragePool(image)  y = Flatten(p) }"""
FIXED = '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,3] x) => (float[N,3] y) { y = Relu(x) }'


@pytest.mark.parametrize(
    ("text", "told"), [(FIXED, "no input of the model has an open length"), (IMAGE, "which are no one length")]
)
def test_a_model_without_a_sequence_is_refused(text: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        trnrt.InferenceSession(parser.parse_model(text).SerializeToString(), lengths=[8])


@pytest.mark.parametrize(
    ("pads", "told"),
    [
        ({"ids": 1.5}, "the input is int64"),
        ({"ids": 1e30}, "the input is int64"),
        ({"types": 1}, "'types', which has no open length"),
    ],
)
def test_pads_that_fit_nothing_are_refused(pads: dict[str, float], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        trnrt.InferenceSession(encoder(), lengths=[8], pads=pads)
    with pytest.raises(OptionError, match="there are no lengths"):
        trnrt.InferenceSession(encoder(), pads=pads)


@pytest.mark.parametrize("text", ["", "a", "4,,8", "0,4", "-1", "1.5"])
def test_what_are_no_lengths(text: str) -> None:
    with pytest.raises(OptionError, match="length"):
        parse_lengths(text)


def test_lengths_are_sorted_and_pads_are_numbers() -> None:
    assert parse_lengths("16,4,4") == check_lengths([4, 16]) == (4, 16)
    assert parse_pad("ids=1") == ("ids", 1.0)
    with pytest.raises(OptionError, match="pad 'ids' is no input with a number"):
        parse_pad("ids")
    with pytest.raises(OptionError, match="there are no lengths"):
        check_lengths([])


def test_numpys_lengths_are_numbers_and_texts_are_none() -> None:
    session = trnrt.InferenceSession(encoder(), lengths=np.array([8, 4]))  # type: ignore[arg-type]
    assert session.lengths is not None and session.lengths.sizes == (4, 8)
    assert session.run(None, sentences(1, 3))[1].shape == (1, 3, 8)
    for wrong in ("48", 8, [4.5]):
        with pytest.raises(OptionError, match="are not whole numbers"):
            check_lengths(wrong)  # type: ignore[arg-type]


def test_an_input_with_the_length_twice_is_padded_on_both_axes() -> None:
    lengths = Lengths((4,), {"scores": (1, 2)}, {"scores": -1})
    fitted = lengths.fit({"scores": np.ones((1, 3, 3), np.float32)})
    np.testing.assert_array_equal(fitted.arrays["scores"][0, 3], [-1, -1, -1, -1])
    assert fitted.arrays["scores"].shape == (1, 4, 4) and fitted.arrays["scores"].dtype == np.float32


def test_lengths_are_chosen_by_predicted_time() -> None:
    session = trnrt.InferenceSession(encoder())
    chosen, timed = session.choose_lengths({3: 0.9, 200: 0.1}, batch=16)
    assert chosen[-1] == 200 and set(chosen) <= set(timed) == {3, 4, 200}
    assert timed[3].us < timed[200].us
    with pytest.raises(OptionError, match="padding changes output"):
        trnrt.InferenceSession(encoder(masked_mean=False)).choose_lengths({8: 1})


def test_lengths_are_chosen_with_the_sessions_pads() -> None:
    session = trnrt.InferenceSession(parser.parse_model(BY_ID).SerializeToString(), lengths=[8], pads={"ids": 7})
    chosen, _ = session.choose_lengths({5: 1})
    assert chosen == (5,)
