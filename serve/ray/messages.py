"""What the processes of a Ray Serve application say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trnrt.nki.machine.timing import Range
from trnrt.serve.hosting.loading import TensorMeta
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings

Array = NDArray[Any]


@dataclass(frozen=True)
class Share:
    """What a replica is to serve: the first of ``paths`` that is this ``version`` of the model."""

    name: str
    paths: tuple[Path, ...]
    version: str
    settings: ServeSettings


@dataclass(frozen=True)
class Description:
    """What a front must know of a model to take requests for it: see ``LoadedModel``."""

    version: str
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    metadata: dict[str, str]
    labels: list[str] | None
    predictions: dict[int, Range]
    buckets: tuple[int, ...]
    batch: int | str | None
    mixing: str | None
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """A request: its checked inputs, the version of the model that they were checked for, and its id."""

    feeds: Mapping[str, Array]
    version: str
    request: str


@dataclass(frozen=True)
class Answer:
    """All outputs, and where the time went within the replica.

    ``described`` is set where the replica has another version of the model than the request was checked for: the
    outputs mean what that one says, and nothing else.
    """

    outputs: dict[str, Array]
    batch_ms: float
    compute_ms: float
    rows: int
    batch_rows: int
    bucket: int
    described: Description | None = None


@dataclass(frozen=True)
class Refusal:
    """A ``Problem``, as it travels."""

    status: int
    text: str

    @property
    def problem(self) -> Problem:
        """What the client is told."""
        return Problem(self.status, self.text)


@dataclass(frozen=True)
class Whereabouts:
    """Where a replica runs: Ray's id for it, its process and host, and the NeuronCores that it may see."""

    replica: str
    process: int
    host: str
    cores: str | None
