"""Declarations of models: kept by the digest of the file, and equal to what the importer reads."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path

import onnx
import pytest
from onnx import parser

from trnrt.cache.declared import open_model
from trnrt.cache.entries import Entries
from trnrt.cache.plans import PlanCache
from trnrt.errors import ModelFileError
from trnrt.importer import ImportedModel, describe, import_model

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))
BATCHES = "g (float[s0,s1] x, float[s2,s1] m) => (float[s0,s1] y) { e = Exp(x)  y = Mul(e, m) }"
PARAMETER = "g (float[n,4] x, int64[2] shape) => (float[a,b] y) { y = Reshape(x, shape) }"
WITHOUT_BATCH = "g (float[2,3] x) => (float[3,2] y) { y = Transpose(x) }"


def parsed(text: str) -> onnx.ModelProto:
    model: onnx.ModelProto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    onnx.helper.set_model_props(model, {"unit": "\u00b5m \N{SNOWMAN}"})
    return model


def sources() -> list[Path | bytes]:
    return [*MODELS, *(parsed(text).SerializeToString() for text in (BATCHES, PARAMETER, WITHOUT_BATCH))]


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    return PlanCache(tmp_path / "cache")


def kept(cache: PlanCache) -> list[Path]:
    return list((cache.directory / "models").glob("*.json"))


def declared(model: ImportedModel | None) -> dict[str, object]:
    """All but the graph."""
    if model is None:
        return {}
    plain = {one.name: getattr(model, one.name) for one in fields(model) if one.name not in ("read", "apart")}
    return plain | {"apart": declared(model.apart)}


def forbid_importing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("trnrt.cache.declared.import_model", lambda *_: pytest.fail("it was imported"))


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem if isinstance(source, Path) else "bytes")
def test_a_kept_declaration_is_the_importer_s(source: Path | bytes, cache: PlanCache) -> None:
    expected, first = import_model(source), open_model(source, cache)
    with pytest.MonkeyPatch.context() as patch:
        forbid_importing(patch)
        second = open_model(source, cache)
    assert declared(first) == declared(second) == declared(expected)
    assert describe(second.model) == describe(expected.model)
    assert second.apart is None or second.apart.model is second.model


def test_a_graph_can_be_read_while_it_is_bound(cache: PlanCache) -> None:
    source = parsed(BATCHES).SerializeToString()
    first, second = open_model(source, cache), open_model(source, cache)
    shapes = {"x": (2, 3), "m": (2, 3)}
    assert describe(second.bind(shapes).model) == describe(first.bind(shapes).model)


def test_another_file_of_the_same_name_is_imported(tmp_path: Path, cache: PlanCache) -> None:
    path = tmp_path / "model.onnx"
    for text in (BATCHES, WITHOUT_BATCH):
        onnx.save(parsed(text), path)
        assert declared(open_model(path, cache)) == declared(import_model(path))
    assert len(kept(cache)) == 2


def test_a_copy_has_its_own_name(tmp_path: Path, cache: PlanCache) -> None:
    onnx.save(parsed(BATCHES), tmp_path / "one.onnx")
    shutil.copy(tmp_path / "one.onnx", tmp_path / "two.onnx")
    assert [open_model(tmp_path / f"{name}.onnx", cache).name for name in ("one", "two")] == ["one", "two"]
    assert len(kept(cache)) == 1


def test_a_file_that_changed_gives_no_other_graph(tmp_path: Path, cache: PlanCache) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parsed(BATCHES), path)
    open_model(path, cache)
    model = open_model(path, cache)
    onnx.save(parsed(WITHOUT_BATCH), path)
    with pytest.raises(ModelFileError, match="was changed after the session was opened"):
        model.model  # noqa: B018


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_is_still_read(replaced: bool, tmp_path: Path, cache: PlanCache) -> None:
    path, other = tmp_path / "model.onnx", tmp_path / "other.onnx"
    onnx.save(parsed(BATCHES), path)
    graph = describe(open_model(path, cache).model)
    model = open_model(path, cache)
    onnx.save(parsed(WITHOUT_BATCH), other)
    if replaced:
        other.rename(path)
    else:
        path.unlink()
    assert describe(model.model) == graph and model.name == "model"


def test_a_relative_path_is_of_the_folder_at_the_start(
    tmp_path: Path, cache: PlanCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(parsed(BATCHES), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    open_model("model.onnx", cache)
    model = open_model("model.onnx", cache)
    monkeypatch.chdir("/")
    assert describe(model.model) == describe(import_model(tmp_path / "model.onnx").model)


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"digest": "0", "content": {}}', "changed"])
def test_a_damaged_declaration_counts_for_nothing(damage: str, cache: PlanCache) -> None:
    source = parsed(BATCHES).SerializeToString()
    open_model(source, cache)
    (path,) = kept(cache)
    path.write_text(path.read_text().replace("float32", "float64") if damage == "changed" else damage)
    assert declared(open_model(source, cache)) == declared(import_model(source))
    assert "float32" in path.read_text()  # mended


def test_external_data_is_not_kept(tmp_path: Path, cache: PlanCache) -> None:
    model = parsed("g (float[n,4] x) => (float[n,4] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }")
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    assert (tmp_path / "data").exists()
    assert open_model(path, cache).digest == import_model(path).digest
    assert kept(cache) == []


def test_without_a_cache_nothing_is_kept(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "cache", enabled=False)
    open_model(parsed(BATCHES).SerializeToString(), cache)
    assert not cache.directory.exists()


def test_a_cache_that_others_may_write_to_is_not_read(cache: PlanCache) -> None:
    cache.directory.mkdir()
    cache.directory.chmod(0o777)
    assert open_model(parsed(BATCHES).SerializeToString(), cache).batch == "s0"
    assert kept(cache) == []


@pytest.mark.parametrize("name", ["none.onnx", "."])
def test_what_is_no_file_is_refused_as_ever(name: str, tmp_path: Path, cache: PlanCache) -> None:
    with pytest.raises(ModelFileError, match=r"there is no such file|this is a folder"):
        open_model(tmp_path / name, cache)


def test_clearing_the_cache_removes_declarations(cache: PlanCache) -> None:
    open_model(parsed(BATCHES).SerializeToString(), cache)
    size = cache.entries.size()
    assert size > 0
    assert Entries(cache.directory, cache.limit).clear() == size
    assert kept(cache) == []
