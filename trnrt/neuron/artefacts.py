"""Compiled models on disk: what each is good for, and the reason where it does not fit.

    <stem>.pt            the TorchScript module with the compiled kernel (NEFF) and the weights
    <stem>_neuron.json   what it was made from, for, and by: see ``Made``; and the digest of the .pt

The SDK's pages do not say which versions may load what others have saved, so an artefact is taken by the very versions
that made it, and by no others.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trnrt.neuron.device import installed_versions
from trnrt.planner.naming import identifier
from trnrt.planner.plan import Plan

SCHEMA_VERSION = 1
_BY = ("nki", "neuronx-cc", "torch-neuronx", "torch")


@dataclass(frozen=True)
class Made:
    """What an artefact was made from (digests), for (target, physical cores) and by (versions of packages).

    ``debug_info``: it keeps the lines of its source, which changes nothing of what it computes.
    """

    kernel: str
    weights: str
    target: str
    lnc: int
    versions: Mapping[str, str]
    debug_info: bool = False

    @property
    def key(self) -> str:
        """A name for what is made of all this."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode("utf-8")).hexdigest()[:32]


def describe_made(plan: Plan, source: bytes, lnc: int, *, debug_info: bool = False) -> Made:
    """What the artefact of a plan would be, compiled here and now."""
    shapes = [(t.name, t.shape, t.dtype) for t in (*plan.inputs, *plan.results)]
    kernel = hashlib.sha256(source + _kernels_digest() + repr((plan.entry, shapes)).encode("utf-8"))
    weights = hashlib.sha256()
    for name, array in plan.weights.items():
        weights.update(f"{name} {array.dtype.name} {array.shape} ".encode())
        weights.update(array.tobytes())
    versions = {name: version for name, version in installed_versions().items() if name in _BY}
    return Made(kernel.hexdigest()[:32], weights.hexdigest()[:32], plan.target, lnc, versions, debug_info)


def misfit(made: Made, wanted: Made) -> str:
    """Why an artefact is not the wanted one; nothing where it is."""
    if made.target != wanted.target:
        return f"it was compiled for {made.target}, and {wanted.target} is wanted"
    if made.lnc != wanted.lnc:
        return f"it was compiled for {made.lnc} physical cores in a logical one, and {wanted.lnc} is wanted"
    for name in sorted({*made.versions, *wanted.versions}):
        before, here = made.versions.get(name, "no version"), wanted.versions.get(name, "none")
        if before != here:
            return f"it was compiled with {name} {before}, and {here} is installed here"
    if wanted.debug_info and not made.debug_info:
        return "it was compiled without the lines of its source, which a device profile needs"
    if made.kernel != wanted.kernel:
        return "it was compiled from another kernel module: the model, its shapes or this version of trnrt differ"
    return "" if made.weights == wanted.weights else "it holds other weights"


def stem_of(plan: Plan) -> str:
    """What the files of a plan are called."""
    return identifier(plan.name)


def find(directory: Path, stem: str, wanted: Made) -> tuple[Path | None, str]:
    """The artefact in a directory, or why there is none that fits."""
    path, note = directory / f"{stem}.pt", directory / f"{stem}_neuron.json"
    try:
        document = json.loads(note.read_bytes())
        made = Made(**{name: document["made"][name] for name in Made.__dataclass_fields__})
        digest = document["digest"]
        reason = misfit(made, wanted)
        if not reason and digest != _digest_of(path):
            reason = "it was changed after it was made: its digest is another one"
    except FileNotFoundError as error:
        return None, f"there is no {Path(error.filename).name} in {directory}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"{note} can't be read: {error}"
    return (None, f"{path} does not fit: {reason}") if reason else (path, "")


def find_below(directory: Path, stem: str, wanted: Made) -> tuple[Path | None, str]:
    """``find`` in the directory or a folder of it: one directory holds one batch, and a server runs several."""
    reasons = []
    for folder in (directory, *(note.parent for note in sorted(directory.glob(f"*/{stem}_neuron.json")))):
        found, reason = find(folder, stem, wanted)
        if found is not None:
            return found, ""
        reasons.append(reason)
    if len(reasons) > 1 and not (directory / f"{stem}_neuron.json").exists():
        del reasons[0]  # where there are folders, it is no news that nothing is beside them
    return None, "; ".join(reasons)


def keep(directory: Path, stem: str, made: Made, save: Callable[[Path], None]) -> list[Path]:
    """Write an artefact by ``save``, which is given a path, and what it is good for; a reader sees both or neither."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, note = directory / f"{stem}.pt", directory / f"{stem}_neuron.json"
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{stem}.", suffix=".pt")
    os.close(handle)
    try:
        save(Path(temporary))
        content = {"schema_version": SCHEMA_VERSION, "made": asdict(made), "digest": _digest_of(Path(temporary))}
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    # Last, and whole: without it the artefact is not taken, and with an older one its digest does not match.
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{stem}.", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1))
    Path(temporary).replace(note)
    return [path, note]


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _kernels_digest() -> bytes:
    """Of the code that kernel modules call."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parents[1] / "kernels").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def describe(made: Made) -> dict[str, Any]:
    """What an artefact is good for, as JSON."""
    return {"target": made.target, "lnc": made.lnc, "versions": dict(made.versions)}
