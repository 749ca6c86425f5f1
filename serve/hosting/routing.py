"""From a request's address to the version of a model that answers it.

An address is NAME, NAME@VERSION, or NAME@sha256: with at least 12 digits of the content's digest. If it names no
version, the highest version that is ready answers. With a canary, the canary's version gets its share of these
requests, and the highest other one the rest. A hash of the request's id (``X-Request-Id``) decides: a client that
repeats an id gets the same version, from every worker. Without an id it is random.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, cast

from numpy.typing import NDArray

from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.catalog import Canary
from trnrt.serve.hosting.contents import PREFIX
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.tensors import value_text

Array = NDArray[Any]
FEWEST_DIGITS = 12
_DIGITS = re.compile(f"{PREFIX}[0-9a-f]{{{FEWEST_DIGITS},64}}")


def choose_model(models: Sequence[Model], canary: Canary | None, request: str) -> Model:
    """The version for a request that names none. ``models``: a model's versions, the newest first."""
    main = choose_main(models, canary)
    if canary is None or (chosen := next((m for m in models if m.version == canary.version), None)) is None:
        return main
    # A canary that is not ready costs no request.
    return chosen if chosen.state == "ready" and _fraction(main.name, request) < canary.share else main


def choose_main(models: Sequence[Model], canary: Canary | None) -> Model:
    """The newest version that is ready, or else the newest. Unloaded ones don't count if there are others, and then the
    canary does not."""
    loaded = [model for model in models if model.state != "unloaded"] or models
    others = [model for model in loaded if canary is None or model.version != canary.version] or loaded
    return next((model for model in others if model.state == "ready"), others[0])


def find_version(models: Sequence[Model], version: str) -> Model:
    """A model's version by its number. Problem(404) if there is none."""
    found = next((model for model in models if model.version == version), None)
    if found is not None:
        return found
    versions = [model.version for model in models]
    known = f"its versions are {', '.join(versions)}" if versions[1:] else f"its only version is {versions[0]}"
    raise Problem(404, f"model {value_text(models[0].name)} has no version {value_text(version)}; {known}")


def find_content(models: Sequence[Model], digest: str) -> Model:
    """The version whose content has this digest; it answers only as long as it has. Problem: 404 if there is none, 400
    for a text that is no digest, or the beginning of several."""
    if not _DIGITS.fullmatch(digest):
        raise Problem(400, f"{value_text(digest)} is no digest: it is {PREFIX} and {FEWEST_DIGITS} to 64 digits of it")
    found = [model for model in models if model.digest.startswith(digest) and model.state != "unloaded"]
    if len({model.digest for model in found}) > 1:
        raise Problem(
            400, f"several contents of model {value_text(models[0].name)} begin with {digest}; send more digits"
        )
    if found:
        model = choose_main(found, None)
        return cast(Model, _ByContent(model, model.digest))
    served = ", ".join(f"{model.digest} (version {model.version})" for model in models if model.state == "ready")
    raise Problem(404, f"model {value_text(models[0].name)} has no content {digest}; it has {served or 'none'}")


class _ByContent:
    """A model that answers only with one content; all else is the model's own."""

    def __init__(self, model: Model, digest: str) -> None:
        self._model, self._digest = model, digest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, **options: Any
    ) -> Inference:
        """As the model's. Problem(404) if another content was loaded meanwhile."""
        found = await self._model.infer(feeds, outputs, **options)
        if found.described.digest != self._digest:
            name, other = value_text(self._model.name), found.described.digest
            raise Problem(404, f"model {name} had the content {self._digest}, and now has {other}")
        return found


def _fraction(name: str, request: str) -> float:
    """A number from 0 to 1, the same for the same id."""
    if not request:
        return random.random()
    digest = blake2b(f"{name} {request}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64
