"""A served model: what it says of itself, what it refuses, and that answers are onnxruntime's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from engines import (
    FIXED,
    FIXED_MIXING,
    LAST_ROWS,
    MIXING,
    NO_BATCH,
    RELU,
    VARYING,
    loaded,
    model_of,
    numbers,
    run,
    save,
)

from trnrt.serve.hosting import loading
from trnrt.serve.hosting.description import NOTHING_KNOWN, TensorMeta
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.http.problems import Problem

MODELS = Path(__file__).parents[2] / "models"


def check(model: ServedModel, feeds: dict[str, Any]) -> None:
    model._ready_engine().checker.check(feeds)


def refused(model: ServedModel, **feeds: Any) -> str:
    with pytest.raises(Problem) as caught:
        check(model, feeds)
    assert caught.value.status == 400
    return caught.value.text


@pytest.mark.parametrize("name", ["digits_cnn", "digits_ffnn", "digits_mlp_sklearn"])
def test_merged_answers_are_onnxruntimes(name: str) -> None:
    async def work() -> None:
        model = await loaded(MODELS / f"{name}.onnx")
        (given,) = model.described.inputs
        reference = onnxruntime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
        pieces = [np.abs(numbers(rows, *given.shape[1:], seed=rows)) for rows in (1, 2, 3, 1, 40)]
        found = await asyncio.gather(*(model.infer({given.name: piece}) for piece in pieces))
        assert max(inference.batch_rows for inference in found[:4]) == 7
        for piece, inference in zip(pieces, found, strict=True):
            expected = reference.run(None, {given.name: piece})
            assert list(inference.outputs) == [meta.name for meta in model.described.outputs]
            for meta, want in zip(model.described.outputs, expected, strict=True):
                assert inference.outputs[meta.name].dtype == meta.dtype
                np.testing.assert_allclose(inference.outputs[meta.name], want, rtol=1e-4, atol=1e-5)

    run(work())


def test_an_answer_stays_what_it_is_when_others_follow() -> None:
    async def work() -> None:
        model = await loaded(MODELS / "digits_cnn.onnx")
        first = await model.infer({"image": np.abs(numbers(1, 1, 8, 8))})
        kept = first.outputs["logits"].copy()
        await model.infer({"image": np.abs(numbers(1, 1, 8, 8, seed=1))})
        assert np.array_equal(first.outputs["logits"], kept)

    run(work())


def test_it_tells_of_itself_what_the_file_says(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU, labels='["a", "b"]'), max_batch=6)
        described = model.described
        assert described.inputs == (TensorMeta("x", "float32", (-1, 4)),)
        assert described.outputs == (TensorMeta("y", "float32", (-1, 4)),)
        assert described.labels == ["a", "b"] and described.metadata == {"labels": '["a", "b"]'}
        assert described.buckets == tuple(described.predictions) == (1, 2, 4, 6)
        assert all(0 < found.least_us < found.us < found.most_us for found in described.predictions.values())

    run(work())


def test_before_it_is_ready_it_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        model = model_of(save(tmp_path, "relu", RELU))
        assert (model.state, model.described) == ("loading", NOTHING_KNOWN)
        with model.arriving(), pytest.raises(Problem) as caught:
            await model.infer({"x": numbers(1, 4)})
        assert caught.value.status == 503 and "Retry-After" in caught.value.headers

    run(work())


def test_inputs_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "two", "(float[N,4] x, int64[N,2] z) => (float[N,4] y) { y = Relu(x) }"))
        z = np.zeros((1, 2), np.int64)
        x = numbers(1, 4)
        check(model, {"x": x, "z": z})
        assert "missing input: 'z' (int64, [-1, 2])" in refused(model, x=x)
        assert "no input 'w'" in refused(model, x=x, z=z, w=z)
        assert refused(model, x=x.astype(np.float64), z=z) == "input 'x' is float64; the model wants float32"
        assert "has shape [4], of rank 1" in refused(model, x=x[0], z=z)
        assert "has shape [1, 3]; the model wants [-1, 4]" in refused(model, x=x[:, :3], z=z)
        assert "dimension 0 is 0" in refused(model, x=x[:0], z=z[:0])
        assert "different numbers of rows: 'x' has 2, 'z' has 1" in refused(model, x=numbers(2, 4), z=z)
        with pytest.raises(Problem, match="no output 'q'; its outputs are 'y'"):
            await model.infer({"x": x, "z": z}, ["q"])

    run(work())


def test_a_tensor_may_not_be_too_large(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), max_tensor_elements=16)
        check(model, {"x": numbers(4, 4)})
        assert "has 20 elements; the limit is 16" in refused(model, x=numbers(5, 4))

    run(work())


def test_only_the_outputs_asked_for() -> None:
    async def work() -> None:
        model = await loaded(MODELS / "digits_ffnn.onnx")
        inference = await model.infer({"image": np.abs(numbers(1, 1, 8, 8))}, ["label"])
        assert list(inference.outputs) == ["label"]

    run(work())


def test_a_fixed_batch_takes_any_rows_and_is_filled_by_several_requests(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "fixed", FIXED))
        pieces = [numbers(rows, 3, seed=rows) for rows in (1, 2, 1, 3, 9)]
        found = await asyncio.gather(*(model.infer({"x": piece}) for piece in pieces))
        assert [(f.batch_rows, f.bucket) for f in found] == [(4, 4), (4, 4), (4, 4), (3, 4), (9, 12)]
        for piece, inference in zip(pieces, found, strict=True):
            assert np.array_equal(inference.outputs["y"], np.maximum(piece, 0))

    run(work())


def test_rows_that_depend_on_each_other_are_not_merged(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "mixing", MIXING))
        pieces = [numbers(rows, 3, seed=rows) for rows in (1, 2, 2, 3)]
        found = await asyncio.gather(*(model.infer({"x": piece}) for piece in pieces))
        for piece, inference in zip(pieces, found, strict=True):
            assert inference.batch_rows == inference.bucket == len(piece)
            np.testing.assert_allclose(inference.outputs["y"].sum(axis=0), 1, rtol=1e-5)
        fixed = await loaded(save(tmp_path, "fixed", FIXED_MIXING))
        assert "2 rows for a batch fixed at 4" in refused(fixed, x=numbers(2, 3))
        inference = await fixed.infer({"x": numbers(4, 3)})
        np.testing.assert_allclose(inference.outputs["y"].sum(axis=0), 1, rtol=1e-5)

    run(work())


def test_the_last_rows_are_those_of_each_request(tmp_path: Path) -> None:
    """Neither the padding's nor a neighbour's: all rows of a small batch would be the last ones."""

    async def work() -> None:
        model = await loaded(save(tmp_path, "last", LAST_ROWS))
        pieces = [numbers(rows, 3, seed=rows) for rows in (1, 2, 5, 7)]
        found = await asyncio.gather(*(model.infer({"x": piece}) for piece in pieces))
        for piece, inference in zip(pieces, found, strict=True):
            np.testing.assert_array_equal(inference.outputs["y"], piece[-3:])

    run(work())


def test_no_batching_means_none(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), batching=False)
        found = await asyncio.gather(*(model.infer({"x": numbers(1, 4)}) for _ in range(4)))
        assert [inference.batch_rows for inference in found] == [1, 1, 1, 1]

    run(work())


def test_a_model_without_a_batch_runs_one_request_at_a_time(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "none", NO_BATCH))
        assert model.described.buckets == () and model.described.batch is None
        given = [{"x": numbers(3, 4, seed=k), "z": numbers(2, seed=k)} for k in range(3)]
        found = await asyncio.gather(*(model.infer(feeds) for feeds in given))
        for feeds, inference in zip(given, found, strict=True):
            assert np.array_equal(inference.outputs["y"], np.maximum(feeds["x"], 0))
            assert np.array_equal(inference.outputs["w"], -feeds["z"])
            assert inference.rows == inference.batch_rows == 1

    run(work())


def test_open_sizes_are_named_or_the_model_is_not_ready(tmp_path: Path) -> None:
    async def work() -> None:
        path = save(tmp_path, "varying", VARYING)
        model = model_of(path)
        reason = await model.load()
        assert reason is not None and "open dimension" in reason and "--shape" in reason
        assert (model.state, model.reason) == ("failed", reason)
        other = save(tmp_path, "relu", RELU)
        for text in ("x=5", "5"):
            assert (await loaded(path, shape=[text])).state == "ready"
            assert (await loaded(other, shape=[text])).state == "ready"

    run(work())


def test_sizes_that_vary_are_not_mixed_and_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MOST_SHAPES", 2)

    async def work() -> None:
        model = await loaded(save(tmp_path, "varying", VARYING), shape=["x=5"], max_batch=2)
        pieces = [numbers(1, width, seed=width) for width in (5, 6, 7, 8, 5, 6)]
        found = await asyncio.gather(*(model.infer({"x": piece}) for piece in pieces))
        for piece, inference in zip(pieces, found, strict=True):
            assert np.array_equal(inference.outputs["y"], np.maximum(piece, 0))
        engine = model._engine
        assert engine is not None
        assert len(engine.loaded._others) <= 2 and len(engine.loaded._spare._programs.loaded) <= 2
        assert len(engine.loaded.session._programs.loaded) == 2

    run(work())


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"nonsense", "ONNX"), (None, "can't")],
)
def test_what_does_not_load_says_why_and_may_be_loaded_later(tmp_path: Path, content: bytes | None, told: str) -> None:
    async def work() -> None:
        path = tmp_path / "relu.onnx"
        if content is not None:
            path.write_bytes(content)
        model = model_of(path)
        reason = await model.load()
        assert reason is not None and model.state == "failed" and (told in reason or "no such" in reason.lower())
        with pytest.raises(Problem) as caught:
            await model.infer({"x": numbers(1, 4)})
        assert caught.value.status == 503 and reason in caught.value.text
        save(tmp_path, "relu", RELU)
        assert await model.load() is None
        await model.infer({"x": numbers(1, 4)})

    run(work())


def test_loading_anew_keeps_the_old_one_until_the_new_one_is_ready(tmp_path: Path) -> None:
    async def work() -> None:
        path = save(tmp_path, "relu", RELU)
        model = await loaded(path)
        save(tmp_path, "relu", "(float[N,4] x) => (float[N,4] y) { y = Neg(x) }")
        loading_anew = asyncio.create_task(model.load())
        x = numbers(2, 4)
        answers = []
        while not loading_anew.done():
            answers.append((await model.infer({"x": x})).outputs["y"])
        assert np.array_equal(answers[0], np.maximum(x, 0))
        assert np.array_equal((await model.infer({"x": x})).outputs["y"], -x)
        path.write_bytes(b"nonsense")
        assert await model.load() is not None
        assert model.state == "ready"
        assert np.array_equal((await model.infer({"x": x})).outputs["y"], -x)

    run(work())


def test_unloading_answers_what_is_queued(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), max_batch=1)
        asked = [asyncio.create_task(model.infer({"x": numbers(1, 4)})) for _ in range(20)]
        await asyncio.sleep(0)
        await model.unload()
        assert len([inference.rows for inference in await asyncio.gather(*asked)]) == 20
        with pytest.raises(Problem, match="is unloaded"):
            await model.infer({"x": numbers(1, 4)})

    run(work())
