"""A bundle: a model's file, its plans for some batch sizes, and the answers they were checked with, in one directory.

``trnrt compile -o DIR`` writes it, ``trnrt run DIR`` and ``trnrt serve DIR`` start from it without planning:

    bundle.json             the options, the buckets, the digest of the model, and the version of trnrt
    target.toml             the target, if it is a user's own
    model/                  the model's file, with its external data, and its own golden input if it has one
    plans/, arrays/, times/ as in the cache (``trnrt.cache.entries``)
    golden/ROWS.npz         onnxruntime's answers to the golden input of a bucket, for buckets that were checked

A bundle holds code (kernels): who can write to it can run code. A server must not read one that everybody may write to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.cache.code import PLANS, code_version
from trnrt.cache.entries import NEW_MODEL, Entries, Times
from trnrt.cache.places import MANIFEST, check_writers, is_bundle, model_place, paths_in
from trnrt.cache.plans import PlanCache, read_partition
from trnrt.errors import ModelFileError, OptionError
from trnrt.nki.machine.targets import file_of, get_target
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.options import Float8, PlanOptions
from trnrt.running.buckets import check_buckets
from trnrt.running.lengths import Lengths, check_lengths
from trnrt.text import quote

if TYPE_CHECKING:
    from trnrt.planner.parts.partition import Partition

_TARGET = "target.toml"
SCHEMA_VERSION = 1
_AGAIN = "compile the model again: trnrt compile MODEL -o DIR"
_DEFAULTS: Mapping[str, Any] = {"narrow": "faster", "choices": DEFAULT, "shapes": {}, "pads": {}}
_OF_PLANS = ("target", "dtype", "fallback", "shapes", "choices", "effort", "max_instructions", "narrow", "lnc")
_DECIDED = (*_OF_PLANS, "buckets", "lengths", "pads")
_READ: Mapping[str, Callable[[Any], Any]] = {"buckets": check_buckets, "lengths": check_lengths}


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read. ``digest``: of the model's file. ``version``: of the code that planned it.

    ``checked``: the (rows, length) of the buckets whose outputs agreed with onnxruntime's; length 0 without lengths.
    """

    directory: Path
    model: Path
    digest: str
    version: str
    options: PlanOptions
    buckets: tuple[int, ...]
    lengths: Lengths | None = None
    checked: frozenset[tuple[int, int]] = frozenset()

    @property
    def is_current(self) -> bool:
        """True if this version of trnrt planned it; another one plans it anew."""
        return self.version == code_version(PLANS)

    @property
    def entries(self) -> Entries:
        """Its plans, to read."""
        return Entries(self.directory, 0, frozen=True)

    @property
    def programs(self) -> Path | None:
        """The directory of AWS's compiler's programs, if there are any in it."""
        return self.directory if any(path.suffix in (".neff", ".pt") for path in paths_in(self.directory)) else None

    def answers(self, rows: int, length: int) -> Path:
        """The file of onnxruntime's answers to a bucket's golden input."""
        return self.directory / "golden" / f"{f'{rows}x{length}' if length else rows}.npz"

    def check_model(self, digest: str) -> None:
        """ModelFileError unless the model's file is the one that was compiled."""
        if digest != self.digest:
            raise ModelFileError(f"{quote(str(self.model))} is not the model that the bundle was made of", hint=_AGAIN)

    def check_arguments(self, asked: Mapping[str, Any]) -> None:
        """OptionError for an argument of a session that the bundle decides, unless it is the same. None: not given."""
        device = asked.get("device")
        given = {**asked, "lnc": None if device is None else device.lnc}
        for name in _DECIDED:
            value = given.get(name)
            if value is None or value == _DEFAULTS.get(name):
                continue
            mine = self._read_option(name)
            if (_READ[name](value) if name in _READ else value) != mine:
                raise OptionError(
                    f"{quote(str(self.directory))} was compiled with {name} {mine!r}, not {value!r}",
                    hint=f"leave {name} out, or {_AGAIN}",
                )

    def write(self) -> None:
        """Write the manifest, which makes the directory a bundle: do it last."""
        from trnrt.cache import write_whole

        own_target = file_of(self.options.target)
        if own_target is not None:
            write_whole(self.directory / _TARGET, own_target.content, mode=0o644)
        document = {
            "schema_version": SCHEMA_VERSION,
            "model": self.model.name,
            "digest": self.digest,
            "version": self.version,
            "options": _options_document(self.options),
            "buckets": list(self.buckets),
            "lengths": None if self.lengths is None else asdict(self.lengths),
            "checked": sorted(map(list, self.checked)),
        }
        write_whole(self.directory / MANIFEST, json.dumps(document, indent=1).encode("utf-8"), mode=0o644)

    def remove_manifest(self) -> None:
        """The directory is no bundle any more, or not yet: its files are about to be written."""
        (self.directory / MANIFEST).unlink(missing_ok=True)

    def _read_option(self, name: str) -> Any:
        options = self.options
        known = {
            "dtype": options.shown_dtype,
            "buckets": self.buckets,
            "lengths": None if self.lengths is None else self.lengths.sizes,
            "pads": None if self.lengths is None else dict(self.lengths.pads),
            "narrow": None if options.float8 is None else options.float8.narrow,
            "shapes": dict(options.shapes),
        }
        return known[name] if name in known else getattr(options, name, None)


class BundledPlans(PlanCache):
    """The plans of a bundle, and for all others the usual cache."""

    def __init__(self, bundle: Bundle, directory: Path | None = None, *, enabled: bool = True) -> None:
        super().__init__(directory, enabled=enabled)
        self._bundled = bundle.entries

    def partition(self, request: Mapping[str, Any], make: Callable[[], Partition]) -> tuple[Partition, str]:
        """See ``PlanCache``."""
        kept, reason = read_partition(self._bundled, request)
        if kept is not None:
            return kept, ""
        partition, note = super().partition(request, make)
        known = note == NEW_MODEL or note.startswith("batch ")  # what the other cache lacks is no news
        return partition, f"not in the bundle: {reason}" + (f"; {note}" if note and not known else "")

    def time(self, request: Mapping[str, Any], predict: Callable[[], Times]) -> Times:
        """See ``PlanCache``."""
        return self._bundled.time(request) or super().time(request, predict)


def read_bundle(path: str | os.PathLike[str] | bytes) -> Bundle | None:
    """The bundle in a directory; None for everything else.

    ModelFileError if it is damaged, or if every user may write to it.
    """
    if isinstance(path, bytes) or not is_bundle(path):
        return None
    directory = Path(path)
    check_writers(directory)
    try:
        document = json.loads((directory / MANIFEST).read_bytes())
        if document["schema_version"] != SCHEMA_VERSION:
            raise ModelFileError(
                f"{quote(str(directory))} is a bundle of version {document['schema_version']!r}, not {SCHEMA_VERSION}",
                hint=_AGAIN,
            )
        lengths = document["lengths"]
        if (directory / _TARGET).exists():
            get_target(directory / _TARGET)  # which makes its name known
        return Bundle(
            directory,
            model_place(directory, document["model"]),
            str(document["digest"]),
            str(document["version"]),
            _read_options(document["options"]),
            tuple(map(int, document["buckets"])),
            None if lengths is None else _read_lengths(lengths),
            frozenset((int(rows), int(length)) for rows, length in document["checked"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"{type(error).__name__}: {error}"
        raise ModelFileError(f"{quote(str(directory / MANIFEST))} is damaged: {text}", hint=_AGAIN) from None


def _options_document(options: PlanOptions) -> dict[str, Any]:
    return {
        "target": options.target,
        "dtype": options.dtype,
        "choices": options.choices.document,
        "effort": options.effort,
        "fallback": options.fallback,
        "shapes": {name: list(shape) for name, shape in options.shapes.items()},
        "max_instructions": options.max_instructions,
        "lnc": options.lnc,
        "float8": None if options.float8 is None else asdict(options.float8),
    }


def _read_options(document: Mapping[str, Any]) -> PlanOptions:
    float8 = document["float8"]
    ranges = () if float8 is None else tuple((str(name), float(most)) for name, most in float8["ranges"])
    return PlanOptions(
        target=document["target"],
        dtype=document["dtype"],
        choices=Choices.from_document(document["choices"]),
        effort=document["effort"],
        fallback=document["fallback"],
        shapes={name: tuple(shape) for name, shape in document["shapes"].items()},
        max_instructions=document["max_instructions"],
        lnc=document["lnc"],
        float8=None if float8 is None else Float8(float8["dtype"], ranges, float8["narrow"]),
    )


def _read_lengths(document: Mapping[str, Any]) -> Lengths:
    inputs, outputs = ({name: tuple(axes) for name, axes in document[side].items()} for side in ("inputs", "outputs"))
    return Lengths(tuple(document["sizes"]), inputs, dict(document["pads"]), outputs)
