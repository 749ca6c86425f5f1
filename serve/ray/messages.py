"""The messages between the processes of a Ray Serve application.

A replica answers an ``Ask`` with an ``Inference`` or a ``Problem``. ``Inference.described`` is set only if the replica
has another version of the model than the request was checked for: that one says what the outputs mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trnrt.serve.settings import ServeSettings

Array = NDArray[Any]


@dataclass(frozen=True)
class Share:
    """A replica's model: the first of ``paths`` that has this ``version``."""

    name: str
    paths: tuple[Path, ...]
    version: str
    settings: ServeSettings


@dataclass(frozen=True)
class Ask:
    """A request: its inputs, the version of the model that they were checked for, and its ids for the log."""

    feeds: Mapping[str, Array]
    version: str
    request: str
    trace: Mapping[str, str]


@dataclass(frozen=True)
class Whereabouts:
    """A replica's place: its id in Ray, its process and host, and the NeuronCores that it may use."""

    replica: str
    process: int
    host: str
    cores: str | None
