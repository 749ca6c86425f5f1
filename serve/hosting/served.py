"""The interface of a served model, whether this process or Ray's replicas compute its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import NDArray

from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.description import Description
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.tensors import value_text

Array = NDArray[Any]


class Model(Protocol):
    """See ``ServedModel``; the other one is in ``trnrt.serve.ray.models``."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def retry_after(self) -> int | None: ...
    @property
    def described(self) -> Description: ...
    @property
    def busy(self) -> str | None: ...
    def admit(self) -> None: ...
    def arriving(self) -> AbstractContextManager[None]: ...
    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> Inference: ...
    async def load(self) -> str | None: ...
    async def unload(self, *, patient: bool = False) -> None: ...
    async def wait_idle(self) -> None: ...


def check_ready(model: Model) -> None:
    """Problem(503) with the reason unless the model is ready."""
    if model.state != "ready":
        reason = f": {model.reason}" if model.reason else ""
        text = f"model {value_text(model.name)} is not ready, but {model.state}{reason}"
        raise Problem(503, text, retry_after=model.retry_after)
