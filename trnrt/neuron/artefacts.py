"""Compiled models on disk: how each was made, and why one does not fit.

    <stem>.pt            the TorchScript module with the compiled kernel (NEFF) and the weights
    <stem>_neuron.json   its source, target and versions: see ``Made``; and the digest of the .pt

The SDK's pages do not say which versions can load models that other versions saved. So an artefact is only loaded by
the versions that made it.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from trnrt.neuron.device import installed_versions
from trnrt.planner.naming import identifier
from trnrt.planner.plan import Plan

SCHEMA_VERSION = 1
_BY = ("nki", "neuronx-cc", "torch-neuronx", "torch")


@dataclass(frozen=True)
class Made:
    """The origin of an artefact: these digests, for this target and physical cores, by these package versions.

    ``debug_info``: it has its source lines, which does not change its results.
    """

    kernel: str
    weights: str
    target: str
    lnc: int
    versions: Mapping[str, str]
    debug_info: bool = False

    @property
    def key(self) -> str:
        """A name for artefacts made in this way."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode("utf-8")).hexdigest()[:32]


def describe_made(plan: Plan, source: bytes, lnc: int, *, debug_info: bool = False) -> Made:
    """The origin that a plan's artefact would have here and now."""
    shapes = [(t.name, t.shape, t.dtype) for t in (*plan.inputs, *plan.results)]
    kernel = hashlib.sha256(source + _kernels_digest() + repr((plan.entry, shapes)).encode("utf-8"))
    weights = hashlib.sha256()
    for name, array in plan.weights.items():
        weights.update(f"{name} {array.dtype.name} {array.shape} ".encode())
        weights.update(array.tobytes())
    versions = {name: version for name, version in installed_versions().items() if name in _BY}
    return Made(kernel.hexdigest()[:32], weights.hexdigest()[:32], plan.target, lnc, versions, debug_info)


def misfit(made: Made, wanted: Made) -> str:
    """Why an artefact is not the wanted one; "" if it is."""
    if made.target != wanted.target:
        return f"it was compiled for {made.target}, and {wanted.target} is wanted"
    if made.lnc != wanted.lnc:
        return f"it was compiled for {made.lnc} physical cores per logical one, and {wanted.lnc} is wanted"
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
    """The stem of a plan's file names."""
    return identifier(plan.name)


def find(directory: Path, stem: str, wanted: Made) -> tuple[Path | None, str]:
    """The artefact in a directory, or None and the reason."""
    path, note = directory / f"{stem}.pt", directory / f"{stem}_neuron.json"
    try:
        document = json.loads(note.read_bytes())
        made = Made(**{name: document["made"][name] for name in Made.__dataclass_fields__})
        digest = document["digest"]
        reason = misfit(made, wanted)
        if not reason and digest != _digest_of(path):
            reason = "it was changed after it was made: its digest differs"
    except FileNotFoundError as error:
        return None, f"there is no {Path(error.filename).name} in {directory}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"{note} can't be read: {error}"
    return (None, f"{path} does not fit: {reason}") if reason else (path, "")


def find_below(directory: Path, stem: str, wanted: Made) -> tuple[Path | None, str]:
    """``find`` in the directory or one of its folders: each folder holds one batch, and a server runs several."""
    reasons = []
    for folder in (directory, *(note.parent for note in sorted(directory.glob(f"*/{stem}_neuron.json")))):
        found, reason = find(folder, stem, wanted)
        if found is not None:
            return found, ""
        reasons.append(reason)
    if len(reasons) > 1 and not (directory / f"{stem}_neuron.json").exists():
        del reasons[0]  # if there are folders, the directory itself need not have one
    return None, "; ".join(reasons)


def keep(directory: Path, stem: str, made: Made, save: Callable[[Path], None]) -> list[Path]:
    """Write an artefact with ``save``, which gets a path, and its record; a reader sees both or neither."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, note = directory / f"{stem}.pt", directory / f"{stem}_neuron.json"
    with tempfile.TemporaryDirectory(dir=directory, prefix=f".{stem}.") as folder:
        model, record = Path(folder) / path.name, Path(folder) / note.name
        save(model)
        content = {"schema_version": SCHEMA_VERSION, "made": asdict(made), "digest": _digest_of(model)}
        record.write_text(json.dumps(content, indent=1), encoding="utf-8")
        model.replace(path)
        # Last: without the record the artefact is not loaded, and an older record has another digest.
        record.replace(note)
    return [path, note]


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _kernels_digest() -> bytes:
    """The digest of the code that kernel modules call."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parents[1] / "kernels").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
