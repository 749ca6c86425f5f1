"""The preprocessing of pictures that the query of /predict asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from serving import MadeUpModel, MadeUpRepository, app_of, ask, error_of
from starlette.datastructures import QueryParams
from vision_models import png, thirds

from trnrt.inputs.images import ImageOptions
from trnrt.serve.hosting.description import TensorMeta
from trnrt.serve.http.preparing import image_options
from trnrt.serve.http.protocol import RequestError

DECLARED = {"image.scale": "0.5", "image.mean": "1"}


def mean_of(feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Each channel's mean."""
    return {"means": feeds["image"].mean(axis=(2, 3))}


def means(query: str, metadata: dict[str, str] | None = None, channels: int = 3) -> Any:
    """The answer for a picture whose means of red, green and blue are 85 each."""
    inputs, outputs = (
        [TensorMeta("image", "float32", (-1, channels, 6, 9))],
        [TensorMeta("means", "float32", (-1, channels))],
    )
    served = MadeUpModel("m", inputs, outputs, mean_of, metadata=metadata)
    headers = {"Content-Type": "image/png"}
    path = f"/predict?model=m{query}"
    return ask(app_of(MadeUpRepository(served)), "POST", path, content=png(thirds(9, 6)), headers=headers)


@pytest.mark.parametrize(
    ("query", "metadata", "wanted"),
    [
        ("&scale=1", None, [85, 85, 85]),
        ("&scale=0.1&mean=1,2,3&std=0.5", None, [15, 13, 11]),
        ("", DECLARED, [41.5, 41.5, 41.5]),
        ("&scale=1", DECLARED, [84, 84, 84]),
        ("&scale=1&mean=0&std=1,2,5", DECLARED, [85, 42.5, 17]),
    ],
)
def test_the_query_says_how_else_the_model(query: str, metadata: dict[str, str] | None, wanted: list[float]) -> None:
    response = means(query, metadata)
    assert response.status_code == 200, response.text
    np.testing.assert_allclose(response.json()["predictions"][0], wanted, rtol=1e-5)


def test_a_model_that_declares_nothing_is_refused_in_the_words_of_the_query() -> None:
    told = error_of(means(""), 400)
    assert "neither the model's metadata nor an option" in told and "give the query's scale 1/255" in told


def test_what_contradicts_the_input_is_refused() -> None:
    assert "RGBA has 4" in error_of(means("&scale=1&color=RGBA"), 400)
    assert "mean has 2 numbers for 3 channels" in error_of(means("&scale=1&mean=1,2"), 400)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("layout=CHWN", "layout is 'CHWN'; it is NCHW or NHWC"),
        ("fit=", "fit is ''; it is stretch, letterbox, crop or center"),
        ("color=rgb", "color is 'rgb'; it is L, RGB, BGR, RGBA or BGRA"),
        ("scale=1,2", "scale is '1,2'; it is a number, up to 1e+06"),
        ("scale=nan", "scale is 'nan'"),
        ("scale=1e30", "scale is '1e30'"),
        ("mean=1,2,3,4,5", "mean is '1,2,3,4,5'; it is 1 to 4 numbers with commas between, up to 1e+06"),
        ("std=0", "std is '0'; it is 1 to 4 numbers with commas between, of 1e-06 or more, up to 1e+06"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_the_limit(query: str, told: str) -> None:
    with pytest.raises(RequestError) as refusal:
        image_options(QueryParams(query))
    assert told in str(refusal.value).replace('"', "'")


def test_options_that_are_not_given_are_not_set() -> None:
    assert image_options(QueryParams("model=m&draw=none")) == ImageOptions()
    given = image_options(QueryParams("layout=NHWC&color=BGR&scale=-2&mean=1&std=-1,1,1&fit=crop"))
    assert given == ImageOptions("NHWC", "BGR", -2.0, (1.0,), (-1.0, 1.0, 1.0), "crop")
