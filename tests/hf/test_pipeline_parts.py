"""The parts of trnrt.hf that need neither torch nor transformers."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import trnrt
from trnrt.cache.entries import EXPORTS, Entries
from trnrt.errors import BackendError, OptionError
from trnrt.hf import pipeline
from trnrt.hf.exporting import digest_folder
from trnrt.hf.tasks import TASKS, find_task
from trnrt.hf.tokenizing import find_lengths, read_pads, spread_lengths


@pytest.mark.parametrize(("alias", "name"), [("ner", "token-classification"), ("fill-mask", "fill-mask")])
def test_a_task_is_found_by_each_of_its_names(alias: str, name: str) -> None:
    assert find_task(alias) is TASKS[name]


@pytest.mark.parametrize("task", ["text-generation", "translation_en_to_de", "summarization", "image-text-to-text"])
def test_generation_is_refused_with_the_reason(task: str) -> None:
    with pytest.raises(OptionError, match=f"'{task}': trnrt generates no text: it has no KV cache") as caught:
        pipeline(task, "folder")
    assert "text-classification" in (caught.value.hint or "")


def test_other_tasks_are_refused() -> None:
    with pytest.raises(OptionError, match="'object-detection': trnrt runs no pipeline for it"):
        find_task("object-detection")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("trnrt.hf.find_spec", lambda name: None if name == "torch" else find("json"))
    with pytest.raises(BackendError, match="pipelines need torch, not installed here") as caught:
        trnrt.hf.pipeline("text-classification", "folder")
    assert caught.value.hint == "pip install 'trnrt[hf]'"


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [(512, (16, 32, 64, 128, 256, 512)), (77, (16, 32, 64, 77)), (16, (16,)), (8, (8,))],
)
def test_lengths_double_up_to_the_longest(longest: int, lengths: tuple[int, ...]) -> None:
    assert spread_lengths(longest) == lengths


@pytest.mark.parametrize(
    ("tokenizer", "model", "longest"),
    [(384, 512, 384), (10**30, 128, 128), (10**30, None, 512), (None, None, 512), (256, -1, 256)],
)
def test_the_longest_is_what_tokenizer_and_model_take(tokenizer: int | None, model: int | None, longest: int) -> None:
    config = SimpleNamespace() if model is None else SimpleNamespace(max_position_embeddings=model)
    assert find_lengths(config, SimpleNamespace(model_max_length=tokenizer))[-1] == longest


def test_places_are_padded_with_the_pad_token() -> None:
    assert read_pads(SimpleNamespace(pad_token_id=1)) == {"input_ids": 1.0}
    assert read_pads(SimpleNamespace(pad_token_id=None)) == {}


def test_an_export_is_known_by_its_task_and_the_folder_s_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    first = digest_folder(tmp_path, TASKS["fill-mask"])
    (tmp_path / "README.md").write_text("no part of the model")
    assert digest_folder(tmp_path, TASKS["fill-mask"]) == first
    assert digest_folder(tmp_path, TASKS["feature-extraction"]) != first
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert digest_folder(tmp_path, TASKS["fill-mask"]) != first


def test_exports_count_in_the_cache_and_are_evicted_and_cleared(tmp_path: Path) -> None:
    cache = Entries(tmp_path, limit=10_000)
    request = {"name": "model", "batch": 1}
    assert cache.put(request, {"name": "plan"}, []) == ""
    for name, age in (("old", 60.0), ("new", -60.0)):
        place = tmp_path / EXPORTS / name
        place.mkdir(parents=True)
        (place / "model.onnx").write_bytes(bytes(8_000))
        used = cache.entries()[0].used - age
        os.utime(place, (used, used))
    assert cache.size() > 16_000
    cache.shrink()
    assert [place.name for place in (tmp_path / EXPORTS).iterdir()] == ["new"]
    assert cache.clear() >= 8_000
    assert list((tmp_path / EXPORTS).iterdir()) == []
