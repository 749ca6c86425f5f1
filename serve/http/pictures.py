"""The thread that decodes the pictures of requests, one after the other.

It is a thread of their own, as a picture can take seconds: other work, such as parsing large JSON or loading a model,
never waits behind them. And it is a daemon, so that a shutdown does not wait for a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import Event

from trnrt.inputs.images import ImageOptions
from trnrt.serve.hosting.description import Description
from trnrt.serve.hosting.threads import ComputeThread
from trnrt.serve.http.predicting import Sent, pictures_of
from trnrt.serve.http.protocol import RequestError


async def read_pictures(
    files: Sequence[tuple[str, bytes]], described: Description, largest: int, said: ImageOptions
) -> Sent:
    """``pictures_of`` on the thread of pictures; it decodes no further one when nobody waits any more."""
    unwanted = Event()

    def check() -> None:
        if unwanted.is_set():
            raise RequestError("nobody waits for these pictures any more")

    def work() -> Sent:
        check()
        return pictures_of(files, described, largest, said, check)

    try:
        sent: Sent = await _thread().call(work)
        return sent
    finally:
        unwanted.set()


@cache
def _thread() -> ComputeThread:
    return ComputeThread("pictures")
