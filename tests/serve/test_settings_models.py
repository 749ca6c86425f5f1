"""Settings by model: the tables of the file, what they change, and what is told of a wrong one."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from engines import RELU, loaded, numbers, run, save

from trnrt.errors import OptionError
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.settings import ServeSettings, check_names, read_settings


def settings_of(tmp_path: Path, text: str, **flags: object) -> ServeSettings:
    path = tmp_path / "server.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings({"config": path, **flags})


def test_a_model_has_its_own_settings_and_the_rest_of_the_servers(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        'max_queue = 7\n[model.one]\nmax_batch = 4\ndtype = "bfloat16"\nlengths = "64,32"\n'
        '[model."b.2"]\nshadow = 0.5\n',
    )
    one, other = settings.for_model("one"), settings.for_model("b.2")
    assert (one.max_batch, one.dtype, one.lengths, one.max_queue) == (4, "bfloat16", [64, 32], 7)
    assert (other.max_batch, other.dtype, other.shadow) == (32, "float32", 0.5)
    assert settings.for_model("none") is settings and settings.for_model("one") is one
    assert pickle.loads(pickle.dumps(settings)).for_model("one").dtype == "bfloat16"
    changed = settings.model_copy(update={"model": {"one": {"max_batch": 8}}})
    assert changed.for_model("one").max_batch == 8 and settings.for_model("one").max_batch == 4


@pytest.mark.parametrize(
    ("text", "sizes", "own"),
    [
        ("", (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32)),
        ("max_batch = 6\n", (1, 2, 4, 6), (1, 2, 4, 6)),
        ("buckets = [16, 1, 4, 4]\n", (1, 4, 16), (1, 4, 16)),
        ("[model.m]\nbuckets = [1, 3]\n", (1, 2, 4, 8, 16, 32), (1, 3)),
        ("buckets = [1, 4]\n[model.m]\nmax_batch = 2\n", (1, 4), (1, 2)),
        ("max_batch = 4\n[model.m]\nbuckets = '1,8'\n", (1, 2, 4), (1, 8)),
    ],
)
def test_buckets(tmp_path: Path, text: str, sizes: tuple[int, ...], own: tuple[int, ...]) -> None:
    settings = settings_of(tmp_path, text)
    assert settings.bucket_sizes == sizes and settings.for_model("m").bucket_sizes == own


def test_buckets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_BUCKETS", "4, 1")
    assert read_settings({}).bucket_sizes == (1, 4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[model.a]\nmax_bach = 3\n", r"server.toml': \[model.a\]: there is no setting 'max_bach'.*max_batch"),
        ("[model.a]\nport = 3\n", r"\[model.a\]: a model has no setting 'port' of its own"),
        ("[model.a]\nmax_batch = 0\n", r"server.toml': \[model.a\] max_batch: it must be at least 1, not 0"),
        ("[model.a]\ndtype = 'int8'\n", r"\[model.a\] dtype: .*'bfloat16'.* not 'int8'"),
        ("[model.a]\ntarget = 'trn9'\n", r"\[model.a\] target: unknown target 'trn9'"),
        ("[model.a]\npad = 'x=1'\n", r"server.toml': \[model.a\]: pad has no meaning without lengths"),
        ("[model.a]\nbuckets = [1, 4]\nmax_batch = 8\n", r"\[model.a\]: max_batch = 8, .* buckets is 4"),
        ("buckets = [1, 4]\nmax_batch = 8\n", r"max_batch = 8, but the largest of the buckets is 4"),
        ("[model.a]\nbuckets = [0]\n", r"\[model.a\] buckets: .* not 0"),
        ("model = 3\n", r"\[model.NAME\]: it is no table"),
    ],
)
def test_a_wrong_table_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        settings_of(tmp_path, text)


def test_a_table_of_a_model_that_is_not_there(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "[model.oen]\nmax_batch = 4\n")
    with pytest.raises(
        OptionError, match=r"server.toml': \[model.oen\]: there is no model 'oen'; the models are one, two"
    ):
        check_names(settings, ["one", "two"])
    hashed = "a" * 64
    settings = settings_of(tmp_path, f"[key.alice]\nsha256 = '{hashed}'\nmodels = ['oen']\n")
    with pytest.raises(OptionError, match=r"\[key.alice\] models: there is no model 'oen'"):
        check_names(settings, ["one"])


def test_a_model_is_compiled_and_limited_by_its_table(tmp_path: Path) -> None:
    paths = [save(tmp_path, "one", RELU), save(tmp_path, "two", RELU)]
    text = "max_batch = 2\n[model.one]\nbuckets = [1, 3]\nmax_queue = 5\nbatching = false\nmax_tensor_elements = 100\n"
    settings = settings_of(tmp_path, text, models=paths, backend="simulator")

    async def work() -> None:
        repository = Repository(settings, Metrics())
        await repository.start()
        one, two = repository.find("one"), repository.find("two")
        assert one.described.buckets == (1, 3) and two.described.buckets == (1, 2)
        assert isinstance(one, ServedModel) and isinstance(two, ServedModel)
        assert one._engine is not None and two._engine is not None
        assert one._engine.loaded.most_rows == 3 and two._engine.loaded.most_rows == 2
        assert not one._engine.loaded.mergeable and two._engine.loaded.mergeable
        assert one._engine.batcher._limits.queue == 5 and two._engine.batcher._limits.queue == 256
        assert (await one.infer({"x": numbers(3, 4)})).bucket == 3

    run(work())


def test_buckets_as_a_setting(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "m", RELU), backend="simulator", buckets=[2, 5])
        assert model.described.buckets == (2, 5)
        assert (await model.infer({"x": numbers(4, 4)})).bucket == 5
        assert (await model.infer({"x": numbers(7, 4)})).bucket == 7  # 5 and 2

    run(work())
