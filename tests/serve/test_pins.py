"""Content by digest: private copies of what is served, which no change of a file reaches before it is loaded."""

from __future__ import annotations

import asyncio
import fcntl
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from engines import RELU, numbers, run, save

from trnrt.cache.places import golden_file
from trnrt.errors import ModelFileError, OptionError
from trnrt.serve.hosting import contents
from trnrt.serve.hosting.catalog import Change, Pinned
from trnrt.serve.hosting.contents import copy_content, digest_of
from trnrt.serve.hosting.files import Source, find_sources
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.pins import Store, why_changed
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings
from trnrt.session import InferenceSession
from trnrt.validate.bundling import check_bundle, write_bundle

NEG = RELU.replace("Relu", "Neg")
WEIGHTS = "(float[N,4] x) => (float[N,4] y) <float[4,4] w = {%s}> { y = MatMul(x, w) }"


def hexadecimal(content: bytes) -> str:
    return sha256(content).hexdigest()


def save_apart(folder: Path, name: str, location: str, factor: int = 1) -> Path:
    """A model whose weights, ``factor`` times those of a unit matrix, are in another file."""
    path = save(folder, name, WEIGHTS % ",".join(map(str, (factor * np.eye(4)).ravel().astype(int))))
    model = onnx.load(path)
    (tensor,) = model.graph.initializer
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    data = tensor.raw_data
    place = Path(os.path.normpath(folder / location))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    onnx.external_data_helper.set_external_data(tensor, location, 0, len(data))
    tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


async def answer(repository: Repository, name: str = "relu") -> str:
    """The model's outputs for numbers."""
    x = numbers(2, 4)
    y = (await repository.find(name).infer({"x": x})).outputs["y"]
    return next(word for word, z in {"relu": np.maximum(x, 0), "neg": -x}.items() if np.array_equal(y, z))


def test_a_digest_is_sha256sums(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)
    assert digest_of(path) == f"sha256:{hexadecimal(path.read_bytes())}"
    np.savez(golden_file(path), x=numbers(1, 4))
    listed = (
        f"{hexadecimal(path.read_bytes())}  model.onnx\n{hexadecimal(golden_file(path).read_bytes())}  golden.npz\n"
    )
    assert digest_of(path) == f"sha256:{hexadecimal(listed.encode())}"
    big = save_apart(tmp_path, "big", "weights/big.data")
    data = tmp_path / "weights" / "big.data"
    listed = f"{hexadecimal(big.read_bytes())}  model.onnx\n{hexadecimal(data.read_bytes())}  weights/big.data\n"
    assert digest_of(big) == f"sha256:{hexadecimal(listed.encode())}"


def test_a_copy_has_all_files_and_the_same_digest(tmp_path: Path) -> None:
    path = save_apart(tmp_path, "big", "weights/big.data")
    np.savez(golden_file(path), x=numbers(1, 4))
    target = tmp_path / "copy" / "other.onnx"
    assert copy_content(path, target) == digest_of(path) == digest_of(target)
    there = sorted(str(file.relative_to(target.parent)) for file in target.parent.rglob("*") if file.is_file())
    assert there == ["other.golden.npz", "other.onnx", "weights/big.data"]
    os.truncate(target.parent / "weights" / "big.data", 8)
    assert digest_of(target) != digest_of(path), "the data files belong to the content"


def test_a_data_file_elsewhere_is_neither_copied_nor_loaded(tmp_path: Path) -> None:
    """A data file outside the folder is refused if the model names it, and if a link beside the model leads there."""

    async def work() -> None:
        folder = tmp_path / "models"
        folder.mkdir()
        save_apart(folder, "above", "../secret.data")
        save_apart(folder, "linked", "linked.data")
        (folder / "linked.data").rename(tmp_path / "other.data")
        (folder / "linked.data").symlink_to(tmp_path / "other.data")
        repository = Repository(ServeSettings(model_dir=folder), Metrics())
        await repository.start()
        for name in ("above", "linked"):
            model = repository.find(name)
            assert model.state == "failed" and "outside the model's folder" in str(model.reason)
            assert str(folder) in str(model.reason), "the message has the user's path"
        copies = [file.name for file in repository._store.folder.rglob("*.data")] if repository._store else None
        assert copies == []

    run(work())


def test_a_file_that_is_being_written_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, "relu", RELU)
    real, writes = contents._Reading.read, [1]

    def read(reading: contents._Reading) -> str:
        digest = real(reading)
        if writes:
            writes.pop()
            path.write_bytes(path.read_bytes() + b"\0")
        return digest

    monkeypatch.setattr(contents._Reading, "read", read)
    monkeypatch.setattr(contents, "PAUSE_S", 0.0)
    digest = copy_content(path, tmp_path / "copy" / "relu.onnx")
    assert digest == f"sha256:{hexadecimal(path.read_bytes())}", "another attempt read the whole file"
    writes += [1] * contents.ATTEMPTS
    with pytest.raises(ModelFileError, match="changed while it was read, 3 times"):
        digest_of(path)


def test_too_large_a_content_and_other_kinds_of_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, "relu", RELU)
    monkeypatch.setattr(contents, "LARGEST_MODEL", 64)
    with pytest.raises(ModelFileError, match="larger than 64 bytes"):
        digest_of(path)
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelFileError, match="not a regular file"):
        digest_of(tmp_path / "pipe.onnx")
    with pytest.raises(ModelFileError, match="no such file"):
        digest_of(tmp_path / "none.onnx")


@pytest.mark.parametrize("in_place", [True, False], ids=["written", "renamed"])
def test_what_is_pinned_is_served_until_it_is_loaded_again(tmp_path: Path, in_place: bool) -> None:
    def put(content: bytes) -> None:
        path = tmp_path / "relu.onnx"
        if in_place:
            path.write_bytes(content)
        else:
            (tmp_path / "new").write_bytes(content)
            (tmp_path / "new").replace(path)

    async def work() -> None:
        path = save(tmp_path, "relu", RELU)
        repository = Repository(ServeSettings(models=[path], max_batch=1), Metrics())
        put(save(tmp_path, "other", NEG).read_bytes())
        await repository.start()
        assert await answer(repository) == "relu", "the content when the server started"
        model = repository.find("relu")
        assert isinstance(model, ServedModel) and await model.load() is None
        assert await answer(repository) == "relu", "as after a failure of the device"
        first = model.digest
        await repository.act_on_all("load", "relu")
        assert await answer(repository) == "neg" and model.digest == digest_of(path) != first
        put(b"half a mod")
        with pytest.raises(Problem, match="ONNX"):
            await repository.act_on_all("load", "relu")
        assert repository.ready and await model.load() is None and await answer(repository) == "neg"
        path.unlink()
        with pytest.raises(Problem, match="its file is gone"):
            await repository.act_on_all("load", "relu")
        assert repository._store is not None
        assert len([folder for folder in repository._store.folder.iterdir() if folder.is_dir()]) == 1

    run(work())


def test_a_bundle_is_copied_whole_and_may_be_a_version(tmp_path: Path) -> None:
    async def work() -> None:
        session = InferenceSession(save(tmp_path, "relu", RELU), cache_dir=tmp_path / "cache", backend="simulator")
        folder = tmp_path / "models" / "deep" / "3"
        check_bundle(write_bundle(session, folder, (1,)))
        repository = Repository(ServeSettings(model_dir=tmp_path / "models"), Metrics())
        digest = digest_of(folder)
        assert [(key, one.digest) for key, one in repository.catalog.pinned.items()] == [("deep@3", digest)]
        (folder / "bundle.json").write_text("{}")
        await repository.start()
        assert await answer(repository, "deep") == "relu" and digest_of(folder) != digest
        with pytest.raises(Problem, match="is damaged") as caught:
            await repository.act_on_all("load", "deep@3")
        assert caught.value.status == 400
        (folder / "bundle.json").unlink()
        (folder / "bundle.json").symlink_to(tmp_path / "relu.onnx")
        with pytest.raises(ModelFileError, match="is a link out of it"):
            digest_of(folder)

    run(work())


def test_what_is_prepared_waits_for_its_commit(tmp_path: Path) -> None:
    """Also in a worker that still loads what it began with; and nothing is left of what is aborted."""

    async def work() -> None:
        path = save(tmp_path, "relu", RELU)
        repository = Repository(ServeSettings(models=[path], max_batch=1), Metrics())
        model, store = repository.find("relu"), repository._store
        assert isinstance(model, ServedModel) and store is not None
        change = Change("relu", load=(store.pin(Source("relu", "1", save(tmp_path, "other", NEG))),))
        loading = asyncio.create_task(repository.start())
        assert await repository.act("prepare", change) is None
        await loading
        assert await answer(repository) == "relu"
        await repository.act("abort", change)
        assert await answer(repository) == "relu" and repository.ready
        assert await repository.act("prepare", change) is None
        await repository.act("commit", change)
        assert await answer(repository) == "neg" and repository.catalog.pinned["relu"] is change.load[0]
        new = Change("new", load=(store.pin(Source("new", "1", path)),))
        assert await repository.act("prepare", new) is None
        await repository.act("abort", new)
        assert list(repository.models) == ["relu"] and repository.ready
        await repository.act_on_all("unload", "relu")
        again = Change("relu", load=(store.pin(Source("relu", "1", path)),))
        for failing in (False, True):
            if failing:
                again.load[0].file.write_bytes(b"nonsense")
            assert bool(await repository.act("prepare", again)) == failing
            await repository.act("abort", again)
            assert model.state == "unloaded" and repository.ready

    run(work())


def test_a_copy_that_changed_is_not_loaded(tmp_path: Path) -> None:
    async def work() -> None:
        path = save(tmp_path, "relu", RELU)
        repository = Repository(ServeSettings(models=[path], max_batch=1), Metrics())
        model = repository.find("relu")
        assert isinstance(model, ServedModel)
        model.path.write_bytes(save(tmp_path, "other", NEG).read_bytes())
        await repository.start()
        assert model.state == "failed" and "any more" in str(model.reason) and not repository.ready
        model.path.unlink()
        assert "can't read" in str(why_changed(model.pinned))
        await repository.act_on_all("load", "relu")
        assert await answer(repository) == "relu"

    run(work())


def test_without_room_for_a_copy_the_model_says_so(tmp_path: Path) -> None:
    store = Store.make()
    path = save_apart(tmp_path, "big", "big.golden.npz")
    pinned = store.pin(Source("big", "1", path))
    assert "name of another of its files" in pinned.problem and pinned.folder is None
    assert why_changed(pinned) == pinned.problem and not list(store.folder.glob("big*"))


def test_a_killed_servers_copies_are_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path))
    path = save(tmp_path, "relu", RELU)
    mine, theirs = Store.make(), Store.make()
    for store in (mine, theirs):
        assert store.pin(Source("relu", "1", path)).digest
    left = tmp_path / "serving" / "1-left"
    left.mkdir()
    (left / "lock").touch()
    new = Store.make()
    assert mine.folder.is_dir() and theirs.folder.is_dir() and not left.exists()
    with (mine.folder / "lock").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert mine.folder.stat().st_mode & 0o077 == 0, "private"
    for store in (mine, theirs, new):
        store.close()
    assert [file.name for file in (tmp_path / "serving").iterdir()] == ["lock"]


def test_a_cache_that_can_not_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "file"))
    store = Store.make()
    assert store.pin(Source("relu", "1", save(tmp_path, "relu", RELU))).digest
    store.close()
    assert not store.folder.exists() and not store.folder.parent.exists()


def test_a_path_in_a_message_is_the_users(tmp_path: Path) -> None:
    mine, users = tmp_path / "copy", tmp_path / "users"
    pinned = Pinned("m", "1", users / "model.onnx", mine / "m.onnx", folder=mine)
    for name, real in (("m.onnx", "model.onnx"), ("m.golden.npz", "model.golden.npz"), ("w/m.data", "w/m.data")):
        assert pinned.name_source(f"{mine / name}: no") == f"{users / real}: no"


def test_a_bundle_that_everybody_may_write_is_not_copied(tmp_path: Path) -> None:
    """The copy is private, and the bundle's code is run: the server looks at the bundle itself."""
    bundle, store = tmp_path / "bundle", Store.make()
    bundle.mkdir()
    (bundle / "bundle.json").write_text('{"model": "relu.onnx"}', encoding="utf-8")
    source = Source("relu", "1", bundle)
    assert store.pin(source).digest
    (bundle / "bundle.json").chmod(0o666)
    assert "every user may write to" in store.pin(source).problem


# -- links and names -----------------------------------------------------------------------------------------------


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "models", save(tmp_path, "secret", RELU)
    folder.mkdir()
    save(folder, "relu", RELU)
    (folder / "linked.onnx").symlink_to(outside)
    with pytest.raises(OptionError, match=r"linked.onnx' is a link out of --model-dir, to .*secret.onnx"):
        find_sources(ServeSettings(model_dir=folder))
    assert list(find_sources(ServeSettings(model_dir=folder, follow_links=True))) == ["linked", "relu"]
    assert list(find_sources(ServeSettings(models=[folder / "linked.onnx"]))) == ["linked"], "the operator named it"
    (folder / "linked.onnx").unlink()
    (folder / "deep").mkdir()
    (folder / "deep" / "1").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "model.onnx").write_bytes(outside.read_bytes())
    with pytest.raises(OptionError, match="is a link out of --model-dir"):
        find_sources(ServeSettings(model_dir=folder))
    (folder / "deep" / "1").unlink()
    (folder / "relu.golden.npz").symlink_to(tmp_path / "anything")
    with pytest.raises(OptionError, match=r"golden.npz' is a link out of --model-dir"):
        find_sources(ServeSettings(model_dir=folder))


def test_a_link_that_comes_later_is_refused_for_its_model_alone(tmp_path: Path) -> None:
    async def work() -> None:
        folder = tmp_path / "models"
        folder.mkdir()
        save(folder, "relu", RELU)
        repository = Repository(ServeSettings(model_dir=folder, max_batch=1), Metrics())
        await repository.start()
        (folder / "linked.onnx").symlink_to(save(tmp_path, "secret", RELU))
        with pytest.raises(Problem, match="is a link out of --model-dir") as caught:
            await repository.act_on_all("load", "linked")
        assert caught.value.status == 400
        await repository.act_on_all("load", "relu")
        assert list(repository.models) == ["relu"]

    run(work())


def test_links_inside_the_folder_are_followed_as_kubernetes_mounts_files(tmp_path: Path) -> None:
    async def work() -> None:
        folder = tmp_path / "models"
        for number, graph in ((1, RELU), (2, NEG)):
            (folder / f"..{number}" / "deep" / "1").mkdir(parents=True)
            save(folder / f"..{number}", "relu", graph)
            save(folder / f"..{number}" / "deep" / "1", "model", graph)
        (folder / "..data").symlink_to("..1")
        (folder / "relu.onnx").symlink_to("..data/relu.onnx")
        (folder / "deep").symlink_to("..data/deep")
        repository = Repository(ServeSettings(model_dir=folder, max_batch=1), Metrics())
        (folder / "new").symlink_to("..2")
        (folder / "new").replace(folder / "..data")
        await repository.start()
        assert list(repository.models) == ["deep@1", "relu"]
        assert [await answer(repository, name) for name in ("relu", "deep")] == ["relu", "relu"]
        for name in ("relu", "deep"):
            await repository.act_on_all("load", name)
        assert [await answer(repository, name) for name in ("relu", "deep")] == ["neg", "neg"]

    run(work())


@pytest.mark.parametrize("name", ["my model", "a@2", "a+b", "-x", ".x.y", "a#1", "x" * 129, "a\nb", "100%"])
def test_names_that_no_address_can_have_are_refused_at_the_start(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, name, RELU)
    with pytest.raises(OptionError, match="is no name of a model") as caught:
        find_sources(ServeSettings(models=[path]))
    assert "rename it" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["resnet50-v1.7", "Digits_2", "2d", "größe"])
def test_names_may_have_letters_digits_and_a_few_marks(tmp_path: Path, name: str) -> None:
    assert list(find_sources(ServeSettings(models=[save(tmp_path, name, RELU)]))) == [name]
