"""The interface of a served model, whether this process or Ray's replicas compute its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import NDArray

from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.description import Description

Array = NDArray[Any]


class Model(Protocol):
    """See ``ServedModel``; the other one is in ``trnrt.serve.ray.models``."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def retry_after(self) -> int | None: ...
    @property
    def described(self) -> Description: ...
    def admit(self) -> None: ...
    def arriving(self) -> AbstractContextManager[None]: ...
    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> Inference: ...
    async def load(self) -> str | None: ...
    async def unload(self) -> None: ...
    async def wait_idle(self) -> None: ...
