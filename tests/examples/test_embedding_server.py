"""``examples/embedding_server``: its embeddings are sentence-transformers', and its server answers and refuses."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import server
from embedding import Embedder, default_lengths
from folder import FolderError, read_folder
from sentence_folder import DATA, MAX_LENGTH, TEXTS, WIDTH, cosines, encode, write_folder, write_weights
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer

from trnrt import InferenceSession
from trnrt.errors import BackendError, OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stored graph, without its weights."""
    return write_folder(tmp_path_factory.mktemp("folder"))


@pytest.fixture(scope="module")
def embedder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """The stored graph with its tokenizer."""
    return Embedder(
        read_folder(folder),
        DATA / "model.onnx",
        lengths=[8, 24],
        buckets=[1, 4],
        cache_dir=tmp_path_factory.mktemp("cache"),
    )


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.9999), ("bfloat16", 0.999)])
def test_embeddings_are_those_of_sentence_transformers(folder: Path, dtype: str, least: float, tmp_path: Path) -> None:
    model = Embedder(
        read_folder(folder), DATA / "model.onnx", lengths=[8, 24], buckets=[1, 4], dtype=dtype, cache_dir=tmp_path
    )
    tokens = model.tokenize(TEXTS)
    assert [len(one.ids) for one in tokens] == [3, 8, 6, 2, 3, 16, MAX_LENGTH, MAX_LENGTH]
    found = model.embed(tokens)
    assert cosines(found, np.load(DATA / "embeddings.npy")).min() >= least
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-2)


def test_texts_of_one_length_bucket_run_together(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[int, ...]] = []
    run = embedder.session.run

    def noted(names: None, feeds: dict[str, Any]) -> Any:
        runs.append(feeds["input_ids"].shape)
        return run(names, feeds)

    monkeypatch.setattr(embedder.session, "run", noted)
    assert embedder.embed(embedder.tokenize(TEXTS)).shape == (len(TEXTS), WIDTH)
    assert runs == [(5, 8), (3, 24)]


def test_a_length_below_the_folders_limit_truncates(folder: Path, tmp_path: Path) -> None:
    model = Embedder(read_folder(folder), DATA / "model.onnx", lengths=[4], buckets=[1], cache_dir=tmp_path)
    assert [len(one.ids) for one in model.tokenize(TEXTS)] == [3, 4, 4, 2, 3, 4, 4, 4]


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ([1], "length 1 holds no word: the tokenizer adds 2 tokens"),
        ([8, 25], "length 25 is never used: .* to 24 tokens"),
    ],
)
def test_lengths_that_suit_no_text_are_refused(folder: Path, lengths: list[int], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        Embedder(read_folder(folder), DATA / "model.onnx", lengths=lengths)


def test_lower_case_keeps_special_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_folder(tmp_path) / "tokenizer.json"))
    tokenizer.normalizer = BertNormalizer(lowercase=False)
    tokenizer.add_special_tokens(["[SEP]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    edit(tmp_path / "sentence_bert_config.json", do_lower_case=True)
    edit(tmp_path / "config_sentence_transformers.json", prompts={"query": "THE "}, default_prompt_name="query")
    model = Embedder(read_folder(tmp_path), DATA / "model.onnx", lengths=[8], cache_dir=tmp_path / "cache")
    (found,) = model.tokenize(["A Dog [SEP] CAT"])
    assert found.tokens == ["[CLS]", "the", "a", "dog", "[SEP]", "cat", "[SEP]"]


def test_default_lengths() -> None:
    assert default_lengths(256) == [16, 32, 64, 128, 256]
    assert default_lengths(384) == [16, 32, 64, 128, 256, 384]
    assert default_lengths(10) == [10]


def asked(embedder: Embedder, *requests: tuple[str, Any]) -> list[httpx.Response]:
    """The answers of the server, in this process, to a path and a body each; GET for a body of None."""

    async def work() -> list[httpx.Response]:
        app = server.make_app(embedder, "tiny")
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
            return [
                await client.request("GET" if body is None else "POST", f"http://server{path}", json=body)
                for path, body in requests
            ]

    return asyncio.run(work())


def test_embed(embedder: Embedder) -> None:
    found, health = asked(embedder, ("/embed", {"texts": list(TEXTS)}), ("/health", None))
    answer = found.json()
    assert answer["tokens"] == [3, 8, 6, 2, 3, 16, 24, 24]
    vectors = np.array(answer["embeddings"], np.float32)
    assert cosines(vectors, np.load(DATA / "embeddings.npy")).min() >= 0.9999
    assert health.json() == {"model": "tiny", "lengths": [8, 24], "backend": embedder.session.backend}


def test_clients_of_openais_api(embedder: Embedder) -> None:
    bodies = {"input": TEXTS[1], "model": "any"}, {"input": list(TEXTS[:3]), "encoding_format": "base64"}
    one, several = (answer.json() for answer in asked(embedder, *(("/v1/embeddings", body) for body in bodies)))
    assert one["object"] == "list" and one["model"] == "tiny"
    assert one["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert [item["index"] for item in several["data"]] == [0, 1, 2]
    row = np.frombuffer(base64.b64decode(several["data"][1]["embedding"]), "<f4")
    np.testing.assert_allclose(row, one["data"][0]["embedding"], rtol=1e-5, atol=1e-6)


def test_bad_requests(embedder: Embedder) -> None:
    bad: list[Any] = [
        {},
        {"texts": []},
        {"texts": "a"},
        {"texts": [1]},
        {"texts": ["a"] * (server.MOST_TEXTS + 1)},
        {"texts": ["a" * (server.MOST_CHARACTERS + 1)]},
    ]
    assert [answer.status_code for answer in asked(embedder, *(("/embed", body) for body in bad))] == [422] * len(bad)


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
@pytest.mark.parametrize(
    "text", [r'"\ud800"', "NaN", '{"a": 1}', f'["{"a" * 1_000_000}"]', "[" + '"a",' * 9_999 + '"a"]']
)
def test_bad_texts_get_a_short_answer(embedder: Embedder, path: str, text: str) -> None:
    async def work() -> httpx.Response:
        transport = httpx.ASGITransport(app=server.make_app(embedder, "tiny"), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, headers={"Content-Type": "application/json"}) as client:
            field = "texts" if path == "/embed" else "input"
            return await client.post(f"http://server{path}", content=f'{{"{field}": {text}}}')

    answer = asyncio.run(work())
    assert answer.status_code == 422 and len(answer.content) < 1000
    assert all(reason["msg"] for reason in answer.json()["detail"])


def test_requests_that_wait_run_together(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    embed = embedder.embed

    def noted(tokens: Any) -> Any:
        sizes.append(len(tokens))
        return embed(tokens)

    monkeypatch.setattr(embedder, "embed", noted)

    async def work() -> list[Any]:
        queue = server.Queue(embedder)
        worker = asyncio.create_task(queue.work())
        found = await asyncio.gather(*(queue.embed(embedder.tokenize([text])) for text in TEXTS[:3]))
        worker.cancel()
        return found

    found = np.concatenate(asyncio.run(work()))
    assert sizes == [3] and cosines(found, np.load(DATA / "embeddings.npy")[:3]).min() >= 0.9999


def test_too_many_waiting_texts_are_refused(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_WAITING", 1)
    (answer,) = asked(embedder, ("/embed", {"texts": ["a", "a"]}))
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"


def test_an_error_of_the_core_is_one_requests_answer(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    embed = embedder.embed

    def fail_for_two(tokens: Any) -> Any:
        if len(tokens) == 2:
            raise RuntimeError("the core failed")
        return embed(tokens)

    monkeypatch.setattr(embedder, "embed", fail_for_two)
    answers = asked(embedder, *(("/embed", {"texts": ["a"] * count}) for count in (2, 1)))
    assert [answer.status_code for answer in answers] == [500, 200]


def edit(path: Path, **changes: Any) -> None:
    """Change values of a JSON file, which may be new."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(before | changes), encoding="utf-8")


def test_what_a_folder_says(tmp_path: Path) -> None:
    found = read_folder(write_folder(tmp_path, "cls", normalize=False))
    assert (found.pooling, found.normalize, found.max_length, found.prompt) == ("cls", False, MAX_LENGTH, "")
    # As sentence-transformers 6 writes it: the limit is the tokenizer's, and the pooling has one name.
    (tmp_path / "sentence_bert_config.json").unlink()
    edit(tmp_path / "tokenizer_config.json", model_max_length=20)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean", "include_prompt": true}')
    edit(tmp_path / "config_sentence_transformers.json", prompts={"query": "find: "}, default_prompt_name="query")
    found = read_folder(tmp_path)
    assert (found.pooling, found.max_length, found.prompt) == ("mean", 20, "find: ")
    edit(tmp_path / "tokenizer_config.json", model_max_length=10**30)
    assert read_folder(tmp_path).max_length == 32  # the positions of config.json


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"can't read .*modules\.json"):
        read_folder(tmp_path)
    write_folder(tmp_path, "max")
    with pytest.raises(FolderError, match="pools by max; this example knows mean and cls"):
        read_folder(tmp_path)
    edit(tmp_path / "1_Pooling" / "config.json", pooling_mode="mean", include_prompt=False)
    with pytest.raises(FolderError, match="leaves the prompt out"):
        read_folder(tmp_path)
    modules = [{"path": "", "type": "models.Transformer"}, {"path": "2", "type": "models.Dense"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(FolderError, match="has the modules Transformer, Dense"):
        read_folder(tmp_path)
    for content in ('{"a": 1}', "[[1]]", "3"):
        (tmp_path / "modules.json").write_text(content, encoding="utf-8")
        with pytest.raises(FolderError, match="a settings file is not as sentence-transformers writes it"):
            read_folder(tmp_path)


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_tokenizer_that_cant_be_read(tmp_path: Path, content: str | None) -> None:
    path = write_folder(tmp_path) / "tokenizer.json"
    path.unlink() if content is None else path.write_text(content, encoding="utf-8")
    with pytest.raises(FolderError, match=r"can't read .*tokenizer\.json"):
        Embedder(read_folder(tmp_path), DATA / "model.onnx", lengths=[8])


def test_the_command_line_says_what_is_wrong(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(*arguments: str | Path) -> str:
        monkeypatch.setattr("sys.argv", ["server.py", *map(str, arguments)])
        assert server.main() == 2
        return capsys.readouterr().err

    assert "can't read" in main(tmp_path, DATA / "model.onnx")
    assert "error: " in main(folder, tmp_path / "none.onnx")
    assert "lengths '4,x' are not whole numbers" in main(folder, DATA / "model.onnx", "--lengths", "4,x")


def test_a_length_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(BackendError, match="can't run sequences of 32 and 64") as caught:
        InferenceSession(DATA / "model.onnx", lengths=[64])
    assert "lengths that the model takes" in str(caught.value.hint)


def test_a_graph_that_sees_the_padding_is_refused(folder: Path) -> None:
    from encoding import encoder

    with pytest.raises(OptionError, match="padding changes output"):
        Embedder(read_folder(folder), encoder(masked=False), lengths=[8])  # type: ignore[arg-type]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_export_and_answers_of_sentence_transformers_itself(tmp_path: Path, pooling: str) -> None:
    for needed in ("torch", "transformers", "sentence_transformers", "onnxscript"):
        pytest.importorskip(needed)
    from export import export

    folder = write_folder(tmp_path / "folder", pooling, normalize=pooling == "mean")
    write_weights(folder)
    export(read_folder(folder), tmp_path / "model.onnx")
    model = Embedder(
        read_folder(folder), tmp_path / "model.onnx", lengths=[8, 24], buckets=[4], cache_dir=tmp_path / "cache"
    )
    found, want = model.embed(model.tokenize(TEXTS)), encode(folder)
    assert cosines(found, want).min() >= 0.9999
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
