"""Pipelines on trnrt give what transformers' own give in PyTorch: in an environment with the extra ``hf``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import trnrt
from trnrt.cache.plans import PlanCache
from trnrt.errors import InputError, ModelFileError, OptionError
from trnrt.hf import pipeline
from trnrt.hf.exporting import MODEL

pytest.importorskip("optimum.exporters.onnx", exc_type=ImportError)
from hugging_face_folders import LONGEST, make_image_folder, make_text_folder  # for the extra alone

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of torch and transformers
    pytest.mark.usefixtures("own_cache"),
]
TEXTS = ["a good film", "it was not good", "i liked the acting in paris, and the plot was not dull"]
Make = Callable[..., Path]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return make_text_folder(tmp_path / "text", "BertForSequenceClassification", num_labels=3)


def compare(task: str, folder: Path, *given: Any, **options: Any) -> Any:
    """The answer of a pipeline on trnrt, after a comparison with PyTorch's."""
    import transformers

    answer = pipeline(task, folder)(*given, **options)
    expected = transformers.pipeline(task, model=str(folder), device="cpu")(*given, **options)
    ours, theirs = list(leaves(answer)), list(leaves(expected))
    assert [one for one in ours if not is_number(one)] == [one for one in theirs if not is_number(one)]
    actual, desired = ([one for one in side if is_number(one)] for side in (ours, theirs))
    assert actual
    np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-5)
    return answer


def is_number(value: object) -> bool:
    return isinstance(value, float | np.floating)


def leaves(value: Any) -> Iterator[Any]:
    """The strings and numbers of an answer, in order."""
    if isinstance(value, dict):
        value = [part for name in sorted(value) for part in (name, value[name])]
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


@pytest.mark.parametrize(
    ("task", "architecture"),
    [
        ("text-classification", "BertForSequenceClassification"),
        ("text-classification", "DistilBertForSequenceClassification"),
        ("text-classification", "RobertaForSequenceClassification"),
        ("ner", "BertForTokenClassification"),
        ("feature-extraction", "BertModel"),
        ("feature-extraction", "RobertaForMaskedLM"),
    ],
)
def test_texts(tmp_path: Path, task: str, architecture: str) -> None:
    assert len(compare(task, make_text_folder(tmp_path / "folder", architecture), TEXTS)) == len(TEXTS)


def test_a_batch_of_texts(text: Path) -> None:
    answer = compare("text-classification", text, TEXTS, batch_size=2, top_k=None)
    assert [len(scores) for scores in answer] == [3, 3, 3]


def test_masked_words(tmp_path: Path) -> None:
    folder = make_text_folder(tmp_path / "mask", "BertForMaskedLM")
    answer = compare("fill-mask", folder, ["a [MASK] film", "the plot was [MASK] and i liked it"], top_k=3)
    assert [len(words) for words in answer] == [3, 3]


def test_questions(tmp_path: Path) -> None:
    folder = make_text_folder(tmp_path / "questions", "BertForQuestionAnswering")
    answer = compare("question-answering", folder, question="it was good", context="i liked the acting in paris")
    assert answer["answer"]


def test_labels_that_no_model_was_trained_for(text: Path) -> None:
    answer = compare("zero-shot-classification", text, TEXTS[0], candidate_labels=["good", "bad film"])
    assert sorted(answer["labels"]) == ["bad film", "good"]


@pytest.mark.parametrize("task", ["image-classification", "image-feature-extraction"])
def test_pictures(tmp_path: Path, task: str) -> None:
    generator = np.random.default_rng(0)
    sizes = ((40, 50), (64, 32))
    pictures = [Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]
    assert len(compare(task, make_image_folder(tmp_path / "vit"), pictures)) == 2


def test_lengths_of_texts_share_a_few_plans(text: Path) -> None:
    classify = pipeline("text-classification", text)
    assert classify.model.session.lengths.sizes == (16, 32, LONGEST)
    classify([" ".join(["good"] * count) for count in range(1, 15)])  # with two marks, 3 to 16 tokens
    assert len(PlanCache().entries.entries()) == 1
    classify(" ".join(["good"] * 15))
    assert classify.model.session.last_run.notes == ("length 17 ran as 32, padded with 15 places",)
    assert len(PlanCache().entries.entries()) == 2


def test_padded_places_have_the_tokenizer_s_own_pad(tmp_path: Path) -> None:
    folder = make_text_folder(tmp_path / "roberta", "RobertaForSequenceClassification")
    assert pipeline("text-classification", folder).model.session.lengths.pads == {"input_ids": 1}


def test_texts_that_are_too_long_are_refused_unless_truncated(text: Path) -> None:
    classify = pipeline("text-classification", text)
    with pytest.raises(InputError, match=f"length 52; the largest of the session's lengths is {LONGEST}"):
        classify("good " * 50)
    assert classify("good " * 50, truncation=True)


def test_without_lengths_nothing_is_padded(text: Path) -> None:
    classify = pipeline("text-classification", text, lengths=[])
    classify(TEXTS[:2])
    assert classify.model.session.last_run.notes == ()
    assert len(PlanCache().entries.entries()) == 2


def test_a_folder_is_exported_once(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline("text-classification", text)
    monkeypatch.setattr("trnrt.hf.exporting._export", None)
    assert pipeline("sentiment-analysis", text)(TEXTS[0])
    (text / "config.json").write_text((text / "config.json").read_text().replace("LABEL_0", "awful"))
    with pytest.raises(TypeError, match="not callable"):
        pipeline("text-classification", text)


def test_the_export_goes_to_a_folder_of_the_user_s(text: Path, tmp_path: Path) -> None:
    place = tmp_path / "onnx" / "text"
    expected = pipeline("text-classification", text, exported=place)(TEXTS)
    assert {"config.json", MODEL} <= {path.name for path in place.iterdir()}
    assert not [path for path in place.iterdir() if path.is_dir()]
    with trnrt.InferenceSession(place / MODEL, dtype="bf16", lengths=[8, LONGEST]) as session:
        classify = pipeline("text-classification", text, session=session)
        answer = classify(TEXTS)
        assert classify.model.session is session
    assert answer != expected
    for one, other in zip(answer, expected, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=0.05)
    with pytest.raises(OptionError, match="a session has its own target"):
        pipeline("text-classification", text, session=session, dtype="bf16")
    with pytest.raises(OptionError, match="needs the model's output last_hidden_state; it has logits"):
        pipeline("feature-extraction", text, exported=place)


def test_target_and_dtype_are_the_session_s(text: Path) -> None:
    session = pipeline("text-classification", text, target="trn1", dtype="bf16").model.session
    assert (session.target, session.dtype) == ("trn1", "bfloat16")


def test_a_model_without_the_task_s_head_is_refused(text: Path) -> None:
    with pytest.raises(OptionError, match="is a BertForSequenceClassification; fill-mask needs one with ForMaskedLM"):
        pipeline("fill-mask", text)


def test_a_folder_without_a_model_or_tokenizer_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"is no Hugging Face folder: it has no config\.json"):
        pipeline("text-classification", tmp_path)
    for path in text.glob("*token*"):
        path.unlink()
    with pytest.raises(ModelFileError, match="has no tokenizer that can be read"):
        pipeline("text-classification", text)


def test_what_optimum_can_t_export_is_refused(text: Path) -> None:
    (text / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelFileError, match="optimum can't export"):
        pipeline("text-classification", text)
