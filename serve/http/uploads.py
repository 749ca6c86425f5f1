"""Forms with files: whole ones alone, within limits, in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from trnrt.serve.http.protocol import RequestError
from trnrt.serve.http.tensors import value_text

MOST_FILES = 64
CHARSETS = ("utf-8", "us-ascii", "iso-8859-1")
"""The charsets that a form may name, for the names of its fields and files."""
MOST_FIELD_BYTES = 64 << 10
"""Bytes of a form's field that is no file."""


class WholeForm(MultiPartParser):
    """A form that must end with its closing boundary. Its files stay in memory: the limits on bodies bound them."""

    spool_max_size = 0  # no limit

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None]) -> None:
        whole = self._check_end(stream)
        super().__init__(headers, whole, max_files=MOST_FILES, max_fields=MOST_FILES, max_part_size=MOST_FIELD_BYTES)
        self._ended = False

    def on_end(self) -> None:
        """The parser has met the closing boundary."""
        self._ended = True

    async def _check_end(self, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The stream; an error at its end if that is not the form's, so that ``parse`` closes its files."""
        async with aclosing(stream):
            async for chunk in stream:
                yield chunk
        if not self._ended:
            raise MultiPartException("it ends before its closing boundary, so that a part of it is missing")


def _check_charset(content_type: str) -> None:
    """RequestError for a charset that names of fields rarely have: Python's decoders of some others fail, or take
    minutes for 64 KiB."""
    given = parse_options_header(content_type)[1].get(b"charset", b"utf-8").decode("latin-1")
    if given.lower() not in CHARSETS:
        raise RequestError(f"the form's charset is {value_text(given)}; it is one of {', '.join(CHARSETS)}")


async def read_uploads(request: Request) -> list[tuple[str, bytes]]:
    """The files of a form with their names; the fields may have any names.

    Raises:
        RequestError: for a form that is malformed, cut, over a limit, or without a file
    """
    _check_charset(request.headers.get("content-type", ""))
    parser = WholeForm(request.headers, request.stream())
    try:
        async with aclosing(parser.stream):
            form = await parser.parse()
    except MultiPartException as error:
        raise RequestError(f"the form can't be read: {error.message}") from None
    try:
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        if not files:
            raise RequestError("the form has no file; send a PNG or JPEG picture as a file of it")
        return [(file.filename or "the file", await file.read()) for file in files]
    finally:
        await form.close()
