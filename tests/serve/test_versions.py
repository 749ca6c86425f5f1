"""Versions of a model: which are served, how a request finds one, and how two of them share the traffic."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from engines import run, save
from serving import client_of, error_of

from trnrt.errors import OptionError
from trnrt.serve.hosting.catalog import Canary, Catalog, Change, Pinned, parse_canary
from trnrt.serve.hosting.contents import digest_of
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.policies import chosen_sources
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.processes.summary import summary_rows
from trnrt.serve.settings import ServeSettings, read_settings

TIMES = "(float[N,1] x) => (float[N,1] y) <float w = {%d}> { y = Mul(x, w) }"
ROW = {"instances": [[1]]}
INFER = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}


def save_version(folder: Path, number: int, factor: int | None = None, name: str = "times") -> Path:
    """A version that multiplies, by its own number if there is no ``factor``."""
    place = folder / name / str(number)
    place.mkdir(parents=True, exist_ok=True)
    return save(place, "model", TIMES % (factor or number))


def settings_of(folder: Path, **settings: Any) -> ServeSettings:
    return ServeSettings(**{"model_dir": folder, "max_batch": 1, "admin": True, **settings})


def chosen(folder: Path, **settings: Any) -> list[str]:
    return [source.key for source in chosen_sources(settings_of(folder, **settings))[0]]


def serve(folder: Path, work: Callable[[Repository, httpx.AsyncClient], Awaitable[None]], **settings: Any) -> None:
    """Do something with a repository that is ready, and a client of it."""

    async def whole() -> None:
        repository = Repository(settings_of(folder, **settings), Metrics())
        await repository.start()
        assert repository.ready, repository.reasons
        async with client_of(make_app(repository)) as client:
            await work(repository, client)

    run(whole())


async def version(client: httpx.AsyncClient, model: str = "times", **options: Any) -> str:
    """The version that answers, which is also what it multiplies by."""
    response = await client.post(f"/predict?model={model}", json=ROW, **options)
    assert response.status_code == 200, response.text
    (found,) = response.json()["predictions"]
    assert [float(response.json()["version"])] == found
    return str(response.json()["version"])


async def act(client: httpx.AsyncClient, path: str, **options: Any) -> httpx.Response:
    return await client.post(f"/v2/repository/models/{path}", **options)


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    rows = (await client.post("/v2/repository/index")).json()
    return {f"{row['name']}@{row['version']}": row["state"] for row in rows}


# -- policies ------------------------------------------------------------------------------------------------------


def test_the_policy_says_which_versions_are_served(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        save_version(tmp_path, number)
    save(tmp_path, "flat", TIMES % 1)
    assert chosen(tmp_path) == ["flat", "times@10"], "the highest by number"
    assert chosen(tmp_path, versions="all") == ["flat", "times@10", "times@2", "times@1"]
    assert chosen(tmp_path, versions="1,2,7") == ["flat", "times@2", "times@1"]
    assert chosen(tmp_path, canary="2=10%") == ["flat", "times@10", "times@2"]
    assert chosen(tmp_path, canary="times:10=10%") == ["flat", "times@10", "times@2"]
    with pytest.raises(OptionError, match="model 'times' has none of them; its versions are 10, 2, 1"):
        chosen(tmp_path, versions="3")


def test_only_numbers_with_a_model_file_are_versions(tmp_path: Path) -> None:
    save_version(tmp_path, 1)
    for name in ("0", "02", "new", "3"):
        (tmp_path / "times" / name).mkdir()
    (tmp_path / "times" / "0" / "model.onnx").touch()
    (tmp_path / "times" / "config.pbtxt").touch()
    (tmp_path / "empty").mkdir()
    assert chosen(tmp_path, versions="all") == ["times@1"]
    save(tmp_path, "times", TIMES % 1)
    with pytest.raises(OptionError, match="two models are called 'times'"):
        chosen(tmp_path)


@pytest.mark.parametrize("text", ["", "2", "2=", "2=101%", "2=1.5", "0=10%", "x:=1%", "2=-1%", "2=1.1.1%", "²=1%"])
def test_a_canary_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="write it as 2=10%"):
        read_settings({"canary": [text]})


def test_a_canary_needs_its_version_and_another_one(tmp_path: Path) -> None:
    assert parse_canary("m:2=12.5%") == ("m", Canary("2", 0.125)) and parse_canary("3=0.5") == ("", Canary("3", 0.5))
    save_version(tmp_path, 1)
    for text, told in {
        "2=10%": "no model has version 2",
        "times:1=1%": "model 'times' has not",
        "x:1=1%": "'x' has",
    }.items():
        with pytest.raises(OptionError, match=told):
            chosen(tmp_path, canary=text)
    save_version(tmp_path, 2)
    with pytest.raises(OptionError, match="leaves model 'times' only '2'"):
        chosen(tmp_path, canary="2=10%", versions="2")
    for number in (1, 2):
        save_version(tmp_path, number, name="other")
    with pytest.raises(OptionError, match="the models 'other', 'times' have version 2") as caught:
        chosen(tmp_path, canary="2=10%")
    assert caught.value.hint == "name one: --canary other:2=10%"
    with pytest.raises(OptionError, match="two canaries"):
        chosen(tmp_path, canary="times:2=10%,times:1=10%")


@pytest.mark.parametrize("text", ["newest", "0", "1,", "2;3", "1,latest"])
def test_a_policy_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="it is latest, all, or versions"):
        read_settings({"versions": text})
    assert ServeSettings(versions=[2, 3]).versions == "2,3" and ServeSettings(versions=2).versions == "2"  # type: ignore[arg-type]


def test_ray_refuses_what_it_can_not_do(tmp_path: Path) -> None:
    for given in ({"versions": "all"}, {"canary": ["2=1%"]}):
        with pytest.raises(OptionError, match="no meaning with --engine ray: Ray serves files"):
            read_settings({"engine": "ray", **given})
    ray_app = pytest.importorskip("trnrt.serve.ray_app")
    save_version(tmp_path, 1)
    with pytest.raises(OptionError, match="--engine ray serves no folders of versions"):
        ray_app.application(ServeSettings(engine="ray", model_dir=tmp_path))


# -- requests ------------------------------------------------------------------------------------------------------


def test_a_request_names_a_version_or_a_content(tmp_path: Path) -> None:
    files = [save_version(tmp_path, number) for number in (1, 2)]
    digests = [digest_of(file) for file in files]

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        assert await version(client) == "2", "the highest by default"
        for number in ("1", "2"):
            short = digests[int(number) - 1][: len("sha256:") + 12]
            for path in (
                f"times@{number}",
                f"times/versions/{number}",
                f"times@{number}/versions/{number}",
                f"times@{short}",
            ):
                response = await client.post(f"/v2/models/{path}/infer", json=INFER)
                assert response.status_code == 200, response.text
                answer = response.json()
                assert (answer["model_name"], answer["model_version"]) == ("times", number)
                assert answer["outputs"][0]["data"] == [int(number)]
                told = (await client.get(f"/v2/models/{path}")).json()
                assert (told["name"], told["versions"], told["digest"]) == (
                    "times",
                    ["1", "2"],
                    digests[int(number) - 1],
                )
                assert (await client.get(f"/v2/models/{path}/ready")).status_code == 200
            for address in (f"times@{number}", f"times@{short}"):
                assert await version(client, address) == number
        for path, status, text in (
            ("times@3", 404, "no version '3'; its versions are 2, 1"),
            ("times@", 404, "names no version"),
            ("times@01", 404, "no version"),
            ("times@1/versions/2", 400, "name two versions"),
            ("times@sha256:0123456789ab", 404, "has no content sha256:0123456789ab; it has sha256:"),
            (f"times@{digests[0][:18]}", 400, "is no digest: it is sha256: and 12 to 64 digits"),
            (f"times@{digests[0].upper()}", 404, "no version"),
            ("other@1", 404, "there is no model 'other@1'"),
        ):
            assert text in error_of(await client.post(f"/v2/models/{path}/infer", json=INFER), status)

    serve(tmp_path, work, versions="all")


def test_a_content_that_is_replaced_while_it_is_asked_for_is_404(tmp_path: Path) -> None:
    file = save_version(tmp_path, 1)

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        first = digest_of(file)
        asked = repository.find(f"times@{first}")
        x = {"x": np.ones((1, 1), np.float32)}
        assert (await asked.infer(x)).outputs["y"] == 1
        save_version(tmp_path, 1, factor=5)
        assert (await act(client, "times@1/load")).status_code == 200
        with pytest.raises(Exception, match=f"had the content {first}, and now has sha256:"):
            await asked.infer(x)
        assert "has no content" in error_of(await client.post(f"/predict?model=times@{first}", json=ROW), 404)

    serve(tmp_path, work)


def test_the_page_the_summary_and_the_metrics_have_every_version(tmp_path: Path) -> None:
    for number in (1, 2):
        save_version(tmp_path, number)

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        assert [await version(client, f"times@{number}") for number in "121"] == ["1", "2", "1"]
        page = (await client.get("/metrics")).text
        assert 'trnrt_inference_seconds_count{model="times",version="1"} 2.0' in page
        assert 'trnrt_inference_seconds_count{model="times",version="2"} 1.0' in page
        listed = (await client.get("/models.json")).json()["models"]
        assert [(one["name"], one["version"]) for one in listed] == [("times@2", "2"), ("times@1", "1")]
        assert all(one["digest"].startswith("sha256:") for one in listed)
        assert [row.name for row in summary_rows(repository)] == ["times@2", "times@1"]
        assert await states(client) == {"times@2": "READY", "times@1": "READY"}
        assert (await client.post("/predict", json=ROW)).json()["version"] == "2", "one model, whatever its versions"

    serve(tmp_path, work, versions="all")


# -- loading and unloading -----------------------------------------------------------------------------------------


def test_a_new_version_takes_over_when_it_is_loaded(tmp_path: Path) -> None:
    save_version(tmp_path, 1)

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        (save_version(tmp_path, 2)).write_bytes(b"half a mod")
        assert "model 'times' can't be loaded" in error_of(await act(client, "times/load"), 400)
        assert await version(client) == "1" and await states(client) == {"times@1": "READY"} and repository.ready
        save_version(tmp_path, 2)
        assert (await act(client, "times/load")).status_code == 200
        assert await version(client) == "2" and await states(client) == {"times@2": "READY"}
        error_of(await client.post("/predict?model=times@1", json=ROW), 404)
        assert (await act(client, "times@1/load")).status_code == 200, "whatever the policy is"
        assert [await version(client), await version(client, "times@1")] == ["2", "1"]

    serve(tmp_path, work)


def test_requests_that_arrive_for_a_version_that_ends_are_answered(tmp_path: Path) -> None:
    save_version(tmp_path, 1)

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        old = repository.find("times")
        save_version(tmp_path, 2)
        with old.arriving():
            loading = asyncio.create_task(act(client, "times/load"))
            while await version(client) == "1":
                await asyncio.sleep(0.01)
            found = await old.infer({"x": np.ones((1, 1), np.float32)})
        assert found.outputs["y"] == 1
        assert (await loading).status_code == 200 and old.state == "unloaded"

    serve(tmp_path, work)


def test_versions_are_unloaded_alone_or_together(tmp_path: Path) -> None:
    for number in (1, 2):
        save_version(tmp_path, number)

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        assert (await act(client, "times@2/unload")).status_code == 200
        assert await states(client) == {"times@2": "UNAVAILABLE", "times@1": "READY"} and repository.ready
        assert await version(client) == "1", "back to the one before"
        assert (await client.get("/v2/models/times")).json()["versions"] == ["1"]
        assert "it was unloaded" in error_of(await client.post("/predict?model=times@2", json=ROW), 503)
        assert (await act(client, "times/unload")).status_code == 200
        assert set((await states(client)).values()) == {"UNAVAILABLE"}
        assert (await act(client, "times/load")).status_code == 200
        assert await states(client) == {"times@2": "READY", "times@1": "READY"}
        for path, status in (
            ("times@3/load", 404),
            ("times@3/unload", 404),
            ("none@1/load", 404),
            ("times@x/load", 400),
        ):
            error_of(await act(client, path), status)

    serve(tmp_path, work, versions="all")


def test_a_version_that_goes_takes_its_series_along(tmp_path: Path) -> None:
    save_version(tmp_path, 1)

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        async def page() -> str:
            return (await client.get("/metrics")).text

        assert (await client.post("/predict", json=ROW)).status_code == 200
        assert 'trnrt_inference_seconds_count{model="times",version="1"} 1.0' in await page()
        save_version(tmp_path, 2)
        assert (await act(client, "times/load")).status_code == 200
        assert 'version="1"' not in await page() and 'version="2"' in await page()
        save_version(tmp_path, 3).write_bytes(b"nonsense")
        assert (await act(client, "times@3/load")).status_code == 400
        assert 'version="3"' not in await page()
        assert (await act(client, "times/unload")).status_code == 200
        assert 'trnrt_model_state{model="times",state="unloaded",version="2"} 1.0' in await page()

    serve(tmp_path, work)


def test_only_versions_that_changed_are_loaded_again(tmp_path: Path) -> None:
    for number in (1, 2):
        save_version(tmp_path, number)

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        models = [repository.models[f"times@{number}"] for number in (1, 2)]
        assert all(isinstance(model, ServedModel) for model in models)
        before = [model._engine for model in models if isinstance(model, ServedModel)]
        save_version(tmp_path, 2, factor=7)
        assert (await act(client, "times/load")).status_code == 200
        after = [model._engine for model in models if isinstance(model, ServedModel)]
        assert after[0] is before[0] and after[1] is not before[1]
        assert (await client.post("/predict", json=ROW)).json()["predictions"] == [[7]]
        assert repository._store is not None
        assert len([folder for folder in repository._store.folder.iterdir() if folder.is_dir()]) == 2

    serve(tmp_path, work, versions="all")


# -- canaries ------------------------------------------------------------------------------------------------------


def test_traffic_is_divided_and_given_back_in_one_call(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save_version(tmp_path, number)

    async def work(repository: Repository, client: httpx.AsyncClient) -> None:
        found = Counter([await version(client) for _ in range(400)])
        assert set(found) == {"2", "3"} and 60 < found["3"] < 140, found  # 100 expected, with a deviation of 9
        page = (await client.get("/metrics")).text
        for number in ("2", "3"):
            assert f'trnrt_inference_seconds_count{{model="times",version="{number}"}} {found[number]}.0' in page
        assert (await client.get("/v2/models/times")).json()["digest"] == digest_of(tmp_path / "times/2/model.onnx")
        same = {await version(client, headers={"X-Request-Id": "a-session"}) for _ in range(20)}
        assert len(same) == 1, "an id's version is always the same"
        path = "/v2/repository/models/times/canary"
        assert (await client.get(path)).json() == {"version": "3", "share": 0.25}
        assert (await act(client, "times/canary", json={"version": "3", "share": 0})).status_code == 200
        assert (await client.get(path)).json() == {"version": "3", "share": 0}
        assert {await version(client) for _ in range(50)} == {"2"}
        assert await version(client, "times@3") == "3", "it is still there"
        assert (await act(client, "times/canary", json={"version": "3", "share": 1})).status_code == 200
        assert {await version(client) for _ in range(50)} == {"3"}

    serve(tmp_path, work, canary="3=25%")


def test_a_canary_that_is_not_ready_costs_no_request(tmp_path: Path) -> None:
    save_version(tmp_path, 1)
    save_version(tmp_path, 2).write_bytes(b"nonsense")

    async def work() -> None:
        repository = Repository(settings_of(tmp_path, canary="2=1.0"), Metrics())
        await repository.start()
        assert list(repository.reasons) == ["times@2"]
        async with client_of(make_app(repository)) as client:
            assert {await version(client) for _ in range(10)} == {"1"}
            assert "times@2" in error_of(await client.get("/v2/health/ready"), 503)
            save_version(tmp_path, 2)
            assert (await act(client, "times/load")).status_code == 200
            assert {await version(client) for _ in range(10)} == {"2"}
            assert (await act(client, "times/canary", json={"version": "2", "share": 0})).status_code == 200
            assert (await act(client, "times@1/unload")).status_code == 200
            assert await version(client) == "2", "there is no other one any more"
            assert (await act(client, "times@1/load")).status_code == 200
            assert await version(client) == "1"
            assert (await act(client, "times@2/unload")).status_code == 200
            assert await version(client) == "1" and repository.catalog.canaries == {}
            assert (await client.get("/v2/repository/models/times/canary")).json() == {}
            error_of(await client.get("/v2/repository/models/none/canary"), 404)
            for body, status in (({"version": "2", "share": 0.1}, 404), ({"version": "1", "share": 0.1}, 400)):
                error_of(await act(client, "times/canary", json=body), status)
            error_of(await act(client, "none/canary", json={"version": "1", "share": 0.1}), 404)

    run(work())


def test_a_change_leads_from_one_catalog_to_the_next() -> None:
    def pinned(number: str, digest: str = "sha256:0") -> Pinned:
        path = Path(number)
        return Pinned("m", number, path, path, is_versioned=True, digest=digest, folder=Path(digest) / number)

    first = Catalog({"m@1": pinned("1"), "m@2": pinned("2")}, canaries={"m": Canary("2", 0.1)})
    second = first.apply(Change("m", load=(pinned("3"),), forget=("m@1",)))
    assert list(second.pinned) == ["m@2", "m@3"] and second.canaries == first.canaries
    third = second.apply(Change("m", unload=("m@2",)))
    assert third.loaded_versions("m") == ["3"] and third.canaries == {} and third.unloaded == {"m@2"}
    assert third.copies() == {Path("sha256:0/3")}
    fourth = third.apply(Change("m", load=(pinned("2", "sha256:1"),), canary=Canary("3", 0.0)))
    assert fourth.unloaded == set() and fourth.canaries == {"m": Canary("3", 0.0)}
    assert fourth.pinned["m@2"].digest == "sha256:1"
