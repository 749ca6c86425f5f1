"""A served model with sequence lengths: requests of different lengths share a batch, each answer has its own length."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from encoding import encoder, reference, save_encoder, sentences
from engines import RELU, loaded, model_of, run, save
from prometheus_client.parser import text_string_to_metric_families

from trnrt.running.buckets import cover
from trnrt.running.lengths import Fitted
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.loading import batch_sizes, with_length
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.routes_protocol import timing


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An encoder with an open length; the cache is empty."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    return save_encoder(tmp_path / "encoder.onnx")


def test_requests_of_different_lengths_share_a_batch(path: Path) -> None:
    async def work() -> None:
        metrics = Metrics()
        model = model_of(path, metrics, lengths=[4, 8], max_batch=4)
        assert await model.load() is None
        pieces = [sentences(1, length, seed=length) for length in (5, 8, 3, 7)]
        found = await asyncio.gather(*(model.infer(piece) for piece in pieces))
        assert [one.batch_rows for one in found] == [3, 3, 1, 3]
        assert [(one.length, one.length_bucket) for one in found] == [(5, 8), (8, 8), (3, 4), (7, 8)]
        for piece, one in zip(pieces, found, strict=True):
            for ours, want in zip(one.outputs.values(), reference(encoder(), piece), strict=True):
                np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-5)
        assert (timing(found[0])["length"], timing(found[0])["length_bucket"]) == (5, 8)
        families = text_string_to_metric_families(metrics.render()[0].decode())
        (places,) = (family for family in families if family.name == "trnrt_sequence_places")
        assert {sample.labels["kind"]: sample.value for sample in places.samples} == {"given": 23, "padding": 5}

    run(work())


def test_every_length_of_every_bucket_is_compiled(path: Path) -> None:
    async def work() -> None:
        model = await loaded(path, lengths=[4, 8], max_batch=2)
        described = model.described
        assert {length: tuple(times) for length, times in described.by_length.items()} == {4: (1, 2), 8: (1, 2)}
        assert set(described.named_predictions) == {"1x4", "2x4", "1x8", "2x8"}
        assert described.times(8) == described.predictions
        engine = model._ready_engine().loaded
        assert len(engine._prepared) == 2 and len(engine.session._programs.loaded) == 4
        await model.infer(sentences(2, 3))
        assert len(engine.session._programs.loaded) == 4 and not engine._others

    run(work())


def test_a_longer_sequence_is_a_bad_request(path: Path) -> None:
    async def work() -> None:
        model = await loaded(path, lengths=[4], max_batch=1)
        with pytest.raises(Problem, match="have the length 5; the largest of the session's lengths is 4") as caught:
            await model.infer(sentences(1, 5))
        assert caught.value.status == 400

    run(work())


def test_a_model_that_sees_the_padding_does_not_load(tmp_path: Path, path: Path) -> None:
    async def work() -> None:
        model = model_of(save_encoder(tmp_path / "wrong.onnx", masked=False), lengths=[4])
        reason = await model.load()
        assert model.state == "failed" and reason is not None and "padding changes output" in reason

    run(work())


def test_an_open_length_names_the_way_out(path: Path) -> None:
    async def work() -> None:
        reason = await model_of(path).load()
        assert reason is not None and "the open dimension sequence" in reason and "--lengths" in reason

    run(work())


def test_other_models_are_served_as_without_lengths(tmp_path: Path, path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), lengths=[4], pad=["ids=1"], max_batch=1)
        found = await model.infer({"x": np.ones((1, 4), np.float32)})
        assert not model.described.by_length and "length" not in timing(found)

    run(work())


@pytest.mark.parametrize("buckets", [(), (4,), (1, 8, 32)])
def test_the_sizes_of_batches_cover_the_rows(buckets: tuple[int, ...]) -> None:
    for rows in (1, 3, 8, 31, 33, 70):
        sizes = batch_sizes(rows, buckets)
        assert sizes == (tuple(part.bucket for part in cover(rows, buckets)) if buckets else (rows,))


def test_an_answer_without_lengths_is_left_as_it_is() -> None:
    answer = Inference({"y": np.ones(2)}, 0.0, 0.0, 0.0, 2, 2, 2)
    assert with_length(answer, Fitted({"x": np.ones(2)}), Metrics().model("m")) is answer
