"""Forms with pictures: a form that was cut is refused, and no part of one takes more than its limits."""

from __future__ import annotations

import io
import tempfile
from typing import Any

import httpx
import pytest
from PIL import Image
from serving import MODELS, MadeUpModel, MadeUpRepository, app_of, ask, error_of

from trnrt.importer import import_model
from trnrt.serve.hosting.description import TensorMeta
from trnrt.serve.http.uploads import CHARSETS, MOST_FIELD_BYTES, MOST_FILES

DIGITS = import_model(MODELS / "digits_cnn.onnx").metadata
HEAD = {"Content-Type": "multipart/form-data; boundary=b"}


def model() -> MadeUpModel:
    image, sums = TensorMeta("image", "float32", (-1, 1, 8, 8)), TensorMeta("sums", "float32", (-1,))
    return MadeUpModel(
        "sums", [image], [sums], lambda feeds: {"sums": feeds["image"].sum(axis=(1, 2, 3))}, metadata=DIGITS
    )


def picture() -> bytes:
    made = io.BytesIO()
    Image.new("L", (8, 8), 100).save(made, "PNG")
    return made.getvalue()


def part(content: bytes, name: str = "image", *lines: str, file: str | None = "a.png") -> bytes:
    said = f'; filename="{file}"' if file is not None else ""
    head = "\r\n".join([f'Content-Disposition: form-data; name="{name}"{said}', *lines])
    return b"--b\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"


def post(body: Any, **settings: Any) -> httpx.Response:
    return ask(app_of(MadeUpRepository(model(), **settings)), "POST", "/predict", content=body, headers=HEAD)


TWO = part(picture()) + part(picture())


@pytest.mark.parametrize("tail", [b"--b--\r\n", b"--b--", b"--b--\r\nepilogue", b"--b-- \r\n"])
def test_a_whole_form(tail: bytes) -> None:
    assert len(post(TWO + tail).json()["predictions"]) == 2


def test_a_form_that_is_cut_is_refused_wherever_it_is() -> None:
    """The pictures before the cut are whole: they used to be answered, although more were sent."""
    whole = TWO + b"--b--\r\n"
    app = app_of(MadeUpRepository(made := model()))
    for end in {*range(1, len(whole) - 3, 7), len(TWO), len(TWO) - 2, *range(len(whole) - 9, len(whole) - 2)}:
        answer = ask(app, "POST", "/predict", content=whole[:end], headers=HEAD)
        assert "form" in error_of(answer, 400), end
    assert made.answered == 0


def test_the_error_says_why() -> None:
    assert "before its closing boundary" in error_of(post(TWO), 400)
    assert "before its closing boundary" in error_of(post(TWO + part(picture())[:-30]), 400)
    assert "no file" in error_of(post(b"--b--\r\n"), 400)
    assert "no file" in error_of(post(part(b"x", file=None) + b"--b--\r\n"), 400)
    error = error_of(
        ask(
            app_of(MadeUpRepository(model())),
            "POST",
            "/predict",
            content=TWO,
            headers={"Content-Type": "multipart/form-data"},
        ),
        400,
    )
    assert "boundary" in error


LIMITS: list[tuple[bytes, str]] = [
    (part(b"x") * (MOST_FILES + 1), "Too many files"),
    (part(b"x", file=None) * (MOST_FILES + 1), "Too many fields"),
    (part(b"x" * (MOST_FIELD_BYTES + 1), file=None), "exceeded maximum size"),
    (part(b"x", "image", "X-Long: " + "y" * 10_000), "Invalid multipart data"),
    (part(b"x", "image", *(f"X-{k}: y" for k in range(50))), "Invalid multipart data"),
    (part(b"x", "n" * 10_000), "Invalid multipart data"),
]


@pytest.mark.parametrize(("body", "told"), LIMITS, ids=lambda value: str(value)[:20])
def test_parts_are_limited(body: bytes, told: str) -> None:
    assert told in error_of(post(body + b"--b--\r\n"), 400)


def test_files_never_reach_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are bounded by the limits on bodies, which the disk's space is not."""

    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise AssertionError("a file on the disk")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    big = picture() + bytes(3 << 20)
    assert post(part(big) + b"--b--\r\n").status_code == 200
    error_of(post(part(big) + b"--b--\r\n", max_body_mib=1), 413)


@pytest.mark.parametrize("charset", ["undefined", "punycode", "idna", "utf-16", "zlib", "x\\0", ""])
def test_a_charset_is_one_of_a_few(charset: str) -> None:
    """It chooses Python's decoder of the names: some raise errors of their own (500), punycode's takes minutes."""
    hostile = {"Content-Type": f'multipart/form-data; boundary=b; charset="{charset}"'}
    body = part(b"\xff" * 5, file=None) + TWO + b"--b--\r\n"
    app = app_of(MadeUpRepository(model()))
    assert "charset" in error_of(ask(app, "POST", "/predict", content=body, headers=hostile), 400)


@pytest.mark.parametrize("charset", CHARSETS)
def test_the_usual_charsets_are_taken(charset: str) -> None:
    named = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset.upper()}"}
    app = app_of(MadeUpRepository(model()))
    assert ask(app, "POST", "/predict", content=TWO + b"--b--\r\n", headers=named).status_code == 200
