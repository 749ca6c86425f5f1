"""POST /predict: rows and pictures in, classes out."""

from __future__ import annotations

import io
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from engines import save
from PIL import Image
from serving import MODELS, MadeUpModel, MadeUpRepository, app_of, ask, doubling, error_of

from trnrt.importer import import_model
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.hosting.scores import score_kinds
from trnrt.serve.http.predicting import MOST_PIXELS, feeds_of, predictions_of
from trnrt.serve.http.protocol import RequestError
from trnrt.serve.http.tensors import TensorError, value_text

DIGITS = import_model(MODELS / "digits_cnn.onnx").metadata
LABELS = [str(k) for k in range(10)]
SIXTEEN = {"x": TensorMeta("x", "float32", (-1, 2, 2))}
LIMIT = 1000


def predict(model: MadeUpModel, *others: MadeUpModel, path: str = "/predict", **options: Any) -> httpx.Response:
    return ask(app_of(MadeUpRepository(model, *others)), "POST", path, **options)


def classifier(metadata: dict[str, str] | None = None) -> MadeUpModel:
    """Says what the first value of a row is, in tenths of its 0 to 1 (pixels of 0 to 255): a digit's class."""

    def compute(feeds: Any) -> Any:
        first = np.rint(feeds["image"].reshape(len(feeds["image"]), -1)[:, 0] * 255 / 10).astype(int)
        return {"logits": np.eye(10, dtype=np.float32)[first] * 3}

    image, logits = TensorMeta("image", "float32", (-1, 1, 8, 8)), TensorMeta("logits", "float32", (-1, 10))
    return MadeUpModel("digits", [image], [logits], compute, metadata=DIGITS if metadata is None else metadata)


def picture(value: int, kind: str = "PNG", size: tuple[int, int] = (8, 8)) -> bytes:
    made = io.BytesIO()
    Image.new("L", size, value).save(made, kind)
    return made.getvalue()


# -- rows ----------------------------------------------------------------------------------------------------------


def test_rows_in_values_out() -> None:
    answer = predict(doubling(), json={"instances": [[1, 2, 3, 4], [5, 6, 7, 8.5]]}).json()
    timing = answer.pop("timing")
    assert answer == {"model": "doubling", "version": "1", "predictions": [[2, 4, 6, 8], [10, 12, 14, 17]]}
    assert timing["total_ms"] > 0
    assert set(timing) == {
        *("queue_ms", "batch_ms", "compute_ms", "total_ms", "rows", "batch_rows", "bucket", "predicted_device_us")
    }
    assert (timing["rows"], timing["bucket"], timing["predicted_device_us"]) == (2, 1, 12.5)


@pytest.mark.parametrize(
    ("instances", "data"),
    [
        ([[[1, 2], [3, 4]]], [[[1, 2], [3, 4]]]),
        ([[1, 2, 3, 4], [[5, 6], [7, 8]]], [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
        ([{"x": [1, 2, 3, 4]}], [[[1, 2], [3, 4]]]),
    ],
)
def test_rows_nested_flat_and_named(instances: Any, data: Any) -> None:
    assert feeds_of(instances, list(SIXTEEN.values()), LIMIT)["x"].tolist() == data


def test_rows_of_several_inputs() -> None:
    metas = [TensorMeta("a", "int64", (-1,)), TensorMeta("b", "str", (-1, 2)), TensorMeta("c", "float32", (4, -1))]
    instances = [{"a": 1, "b": ["x", "y"], "c": [1, 2, 3]}, {"a": 2, "b": ["z", ""], "c": [4, 5, 6]}]
    feeds = feeds_of(instances, metas, LIMIT)
    assert feeds["a"].tolist() == [1, 2]
    assert feeds["b"].tolist() == [["x", "y"], ["z", ""]]
    assert feeds["c"].tolist() == [[1, 2, 3], [4, 5, 6]]


OPEN = TensorMeta("x", "float32", (-1, -1, 2))
BAD_ROWS = [
    ({"a": 1}, list(SIXTEEN.values()), "instances is an object; it is a list of rows"),
    ([], list(SIXTEEN.values()), "instances is an empty list"),
    ([[1]] * 1001, list(SIXTEEN.values()), "1001 instances; the limit of this server is 1000"),
    ([[1, 2, 3]], list(SIXTEEN.values()), "instance 0, input 'x': its data has 3 elements; shape [1, 2, 2] has 4"),
    ([[1, 2, 3, 4], 5], list(SIXTEEN.values()), "instance 1, input 'x': its data has 1 elements"),
    ([[[1, 2], [3]]], list(SIXTEEN.values()), "instance 0, input 'x': its nested data has a list of 1"),
    ([[1, 2, 3, "4"]], list(SIXTEEN.values()), "element 3 of its data is '4'; it is a number"),
    ([None], list(SIXTEEN.values()), "instance 0, input 'x': its data has 1 elements"),
    ([{"y": 1}], list(SIXTEEN.values()), "instance 0 has 'y'; the inputs are 'x'"),
    (
        [[1]],
        [*SIXTEEN.values(), TensorMeta("z", "int64", (-1,))],
        "instance 0 is a list; it is an object with 'x', 'z'",
    ),
    ([[[1, 2]], [[1, 2], [3, 4]]], [OPEN], "instance 1, input 'x': it has the shape [2, 2], and the first one [1, 2]"),
    ([[1, 2]], [OPEN], "it is nested 1 deep; the model wants [-1, 2]"),
    ([[[1, 2, 3]]], [OPEN], None),
    (
        [[[1] * 600]] * 2,
        [TensorMeta("x", "float32", (-1, -1, -1))],
        "asks for 600 elements; the limit of this server is 500",
    ),
    ([1], [TensorMeta("x", "float32", ())], "has no rows"),
]


@pytest.mark.parametrize(("instances", "metas", "told"), BAD_ROWS, ids=value_text)
def test_bad_rows(instances: Any, metas: list[TensorMeta], told: str | None) -> None:
    if told is None:
        # Whether the shape fits is for the model to say.
        assert feeds_of(instances, metas, LIMIT)["x"].shape == (1, 1, 3)
        return
    with pytest.raises(RequestError) as caught:
        feeds_of(instances, metas, LIMIT)
    assert told in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"instance": []}', b'{"instances": [NaN]}', b"\xff"])
def test_bad_bodies(body: bytes) -> None:
    error_of(predict(doubling(), content=body), 400)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/octet-stream", "image/gif", "application/x-www-form-urlencoded"]
)
def test_bad_types(kind: str) -> None:
    told = error_of(predict(doubling(), content=b"{}", headers={"Content-Type": kind}), 415)
    assert "application/json or multipart/form-data or image/png or image/jpeg" in told


def test_which_model() -> None:
    body = {"instances": [[1, 2, 3, 4]]}
    other = doubling(name="other")
    assert predict(doubling(), other, path="/predict?model=other", json=body).json()["model"] == "other"
    assert "the models are 'doubling', 'other'" in error_of(predict(doubling(), other, json=body), 400)
    error_of(predict(doubling(), other, path="/predict?model=none", json=body), 404)
    error_of(predict(doubling(), path="/predict?model=doubling&model=doubling", json=body), 400)
    assert "the models are none" in error_of(ask(app_of(MadeUpRepository()), "POST", "/predict", json=body), 400)
    other.state, other.reason = "failed", "it is broken"
    assert "it is broken" in error_of(predict(other, json=body), 503)


def test_a_model_without_rows() -> None:
    model = doubling()
    model.described = replace(model.described, batch=None)
    assert "no rows" in error_of(predict(model, json={"instances": [[1, 2, 3, 4]]}), 400)


def test_an_answer_that_json_can_not_hold() -> None:
    model = doubling()
    model.compute = lambda feeds: {"y": np.full((1, 4), np.nan, np.float32)}
    told = error_of(predict(model, json={"instances": [[1, 2, 3, 4]]}), 500)
    assert "output 'y': it holds NaN or infinity" in told


# -- pictures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_as_the_body(kind: str) -> None:
    headers = {"Content-Type": f"image/{kind.lower()}"}
    answer = predict(classifier(), content=picture(70, kind), headers=headers).json()
    assert answer["predictions"] == ["7"]
    assert answer["labels"] == LABELS
    share = math.exp(3) / (math.exp(3) + 9)
    assert answer["probabilities"][0] == pytest.approx([(1 - share) / 9] * 7 + [share] + [(1 - share) / 9] * 2)
    assert len(answer["top"][0]) == 5
    assert answer["top"][0][0] == {"label": "7", "probability": pytest.approx(share)}


def test_pictures_in_a_form_are_rows() -> None:
    files = [("image", (f"{k}.png", picture(k * 10, size=(8 + k, 8)), "image/png")) for k in range(3)]
    answer = predict(classifier(), files=files).json()
    assert answer["predictions"] == ["0", "1", "2"]
    # The type that a client says of a part is not what makes it a picture.
    answer = predict(classifier(), files={"x": ("x.txt", picture(30), "text/plain")}).json()
    assert answer["predictions"] == ["3"]


HOSTILE_NAME = '../../etc/pass"wd\x1b.png'


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is no PNG or JPEG image"),
        (b"GIF89a....", "is no PNG or JPEG image"),
        (picture(1)[:50], "can't read the image"),
        (picture(1)[:20] + b"\xff" * 40, "image"),
        (b"<svg/>", "is no PNG or JPEG image"),
    ],
)
def test_what_is_no_picture(content: bytes, told: str) -> None:
    text = error_of(predict(classifier(), content=content, headers={"Content-Type": "image/png"}), 400)
    assert told in text and "the body" in text and "/tmp" not in text
    text = error_of(predict(classifier(), files={"image": (HOSTILE_NAME, content)}), 400)
    assert told in text and "\x1b" not in text


def bomb(width: int, height: int) -> bytes:
    """The header of a picture that says how large it is; nothing more."""
    real = picture(0)
    import struct
    import zlib

    head = struct.pack(">II", width, height) + real[24:29]
    return real[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + real[33:]


@pytest.mark.parametrize("size", [(MOST_PIXELS, 2), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_a_picture_with_too_many_pixels_is_not_decoded(size: tuple[int, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = error_of(predict(classifier(), content=bomb(*size), headers={"Content-Type": "image/png"}), 400)
    assert "pixels" in text


def test_bad_forms() -> None:
    assert "no file" in error_of(predict(classifier(), files={"image": (None, "text")}), 400)
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        error_of(predict(classifier(), content=b"--y\r\nnonsense", headers={"Content-Type": kind}), 400)
    many = [("image", ("a.png", picture(0), "image/png"))] * 65
    assert "64" in error_of(predict(classifier(), files=many), 400)


def test_a_model_that_takes_no_pictures() -> None:
    options: dict[str, Any] = {"content": picture(0), "headers": {"Content-Type": "image/png"}}
    assert "takes no image" in error_of(predict(doubling(), **options), 400)
    text = error_of(predict(classifier({}), **options), 400)
    assert "neither the model's metadata" in text and "--scale" not in text
    model = classifier()
    more = TensorMeta("more", "float32", (-1,))
    model.described = replace(model.described, inputs=(*model.described.inputs, more))
    assert "can't be all of the model's inputs" in error_of(predict(model, **options), 400)


# -- what outputs mean ---------------------------------------------------------------------------------------------

SCORES = TensorMeta("scores", "float32", (-1, 3))
LABEL = TensorMeta("label", "int64", (-1,))
CLASSIFIER = Description(outputs=(SCORES,), labels=["a", "b", "c"])


def test_a_distribution_is_left_as_it_is() -> None:
    outputs = {"label": np.array([1]), "scores": np.array([[0.25, 0.5, 0.25]], np.float32)}
    told = predictions_of(outputs, Description(outputs=(LABEL, SCORES), labels=["a", "b", "c"]), 1)
    assert told["predictions"] == ["b"] and told["probabilities"] == [[0.25, 0.5, 0.25]]
    assert [item["label"] for item in told["top"][0]] == ["b", "a", "c"]


HALVES, LOGITS = [[0.5, 0.25, 0.25]], [[3.0, 0.0, -1.0]]
SIGMOIDS = [[0.9, 0.8, 0.1]]


@pytest.mark.parametrize(
    ("kind", "numbers", "activation"),
    [
        ("softmax", HALVES, ("softmax", "model", "graph")),
        ("sigmoid", SIGMOIDS, ("sigmoid", "model", "graph")),
        ("sigmoid", HALVES, ("sigmoid", "model", "graph")),
        ("scores", LOGITS, ("softmax", "server", "graph")),
        ("scores", HALVES, ("softmax", "server", "graph")),
        (None, HALVES, ("softmax", "model", "numbers")),
        (None, SIGMOIDS, ("softmax", "server", "numbers")),
    ],
)
def test_the_graph_decides_if_a_softmax_is_due(
    kind: str | None, numbers: list[list[float]], activation: tuple[str, ...]
) -> None:
    """The same numbers mean the same in every request; where the graph does not tell, the answer says so."""
    described = replace(CLASSIFIER, scores={} if kind is None else {"scores": kind})
    told = predictions_of({"scores": np.array(numbers, np.float32)}, described, 1)
    assert tuple(told["activation"].values()) == activation and told["predictions"] == ["a"]
    if activation[1] == "model":
        assert told["probabilities"] == [pytest.approx(numbers[0])]
    else:
        powers = np.exp(numbers[0])
        assert told["probabilities"][0] == pytest.approx(powers / powers.sum())
    unnamed = predictions_of({"scores": np.array(numbers, np.float32)}, replace(described, labels=None), 1)
    assert ("probabilities" in unnamed) == (kind == "softmax" or (kind is None and numbers is HALVES))


LAYER = """(float[N,4] x) => (float[N,4] y)
    <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[4] b = {1,2,3,4}>"""


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        ("h = MatMul(x, w)  y = Softmax(h)", "softmax"),
        ("h = MatMul(x, w)  y = Softmax<axis=1>(h)", "softmax"),
        ("h = MatMul(x, w)  s = Softmax(h)  y = Identity(s)", "softmax"),
        ("h = MatMul(x, w)  y = Softmax<axis=0>(h)", None),
        ("h = MatMul(x, w)  y = Sigmoid(h)", "sigmoid"),
        ("h = MatMul(x, w)  y = LogSoftmax(h)", "scores"),
        ("y = MatMul(x, w)", "scores"),
        ("h = MatMul(x, w)  y = Add(h, b)", "scores"),
        ("y = Gemm(x, w, b)", "scores"),
        ("s = Softmax(x)  t = Sigmoid(x)  y = Add(s, t)", None),
        ("h = MatMul(x, w)  y = Abs(h)", None),
    ],
)
def test_the_kind_of_an_output_by_its_graph(nodes: str, kind: str | None, tmp_path: Path) -> None:
    model = import_model(save(tmp_path, "m", f"{LAYER} {{ {nodes} }}"))
    assert score_kinds(model) == ({} if kind is None else {"y": kind})


def test_classes_without_labels_are_numbers() -> None:
    told = predictions_of({"scores": np.array([[0.25, 0.75, 0]], np.float32)}, Description(outputs=(SCORES,)), 1)
    assert (told["predictions"], told["labels"]) == (["1"], ["0", "1", "2"])
    # What is no distribution is no classes, either, where nobody names them.
    told = predictions_of({"scores": np.array([[1, 2, 3]], np.float32)}, Description(outputs=(SCORES,)), 1)
    assert told == {"predictions": [[1, 2, 3]]}


def test_several_outputs_of_a_row() -> None:
    metas = (TensorMeta("n", "int64", (-1,)), TensorMeta("t", "str", (-1, 2)), TensorMeta("s", "float32", ()))
    outputs = {"n": np.array([1, 2]), "t": np.array([["a", "b"], ["c", "d"]], object), "s": np.array(0.5, np.float32)}
    assert predictions_of(outputs, Description(outputs=metas, labels=["x"]), 2) == {
        "predictions": [{"n": 1, "t": ["a", "b"], "s": 0.5}, {"n": 2, "t": ["c", "d"], "s": 0.5}]
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_with_nan(bad: float) -> None:
    with pytest.raises(TensorError, match="NaN or infinity"):
        predictions_of({"scores": np.array([[bad, 0, 1]], np.float32)}, CLASSIFIER, 1)


def test_large_logits() -> None:
    told = predictions_of({"scores": np.array([[1e30, 0, -1e30]], np.float32)}, CLASSIFIER, 1)
    assert told["probabilities"] == [[1, 0, 0]]


def test_the_description_of_the_answer_is_the_answer() -> None:
    answer = predict(classifier(), content=picture(10), headers={"Content-Type": "image/png"}).json()
    described = ask(app_of(MadeUpRepository(doubling())), "GET", "/openapi.json").json()["components"]["schemas"]
    # kind and rule are those of detectors and segmenters.
    assert set(answer) == set(described["Prediction"]["properties"]) - {"kind", "rule"}
    # Only sequences have a length.
    lengths = {"length", "length_bucket"}
    assert set(answer["timing"]) == set(described["Timing"]["properties"]) - lengths
    assert set(answer["timing"]) == set(described["Timing"]["required"])
    assert json.dumps(answer)


def which_of(*models: MadeUpModel, **settings: Any) -> dict[str, Any]:
    """The query's ``model`` in /openapi.json."""
    document = ask(app_of(MadeUpRepository(*models, **settings)), "GET", "/openapi.json").json()
    (found,) = (p for p in document["paths"]["/predict"]["post"]["parameters"] if p["name"] == "model")
    return dict(found)


def test_the_description_says_if_the_model_is_required() -> None:
    one, two = doubling(), doubling(name="other")
    assert which_of(one)["required"] is False
    several = which_of(one, two)
    assert several["required"] is True
    assert [example["value"] for example in several["examples"].values()] == ["doubling", "other"]
    assert which_of()["required"] is True
    locked = which_of(one, two, api_keys="key")
    assert locked["required"] is True and not locked["examples"]
    told = error_of(predict(one, two, json={"instances": [[1, 2, 3, 4]]}), 400)
    assert "'doubling', 'other'" in told and "/predict?model=NAME" in told


def test_the_description_follows_the_models() -> None:
    repository = MadeUpRepository(doubling())
    app = app_of(repository)
    for required in (False, True, False):
        document = ask(app, "GET", "/openapi.json").json()
        (found,) = (p for p in document["paths"]["/predict"]["post"]["parameters"] if p["name"] == "model")
        assert found["required"] is required
        repository.models = {"doubling": doubling()} | ({} if required else {"new": doubling(name="new")})
