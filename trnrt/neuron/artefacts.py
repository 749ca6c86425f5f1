"""Compiled models on disk: how each was made, and why one does not fit.

    <stem>.pt            by the route trace: the TorchScript module with the compiled kernel (NEFF) and the weights
    <stem>.neff          by the route neff: the compiled kernel alone; the weights are arguments, and come from the plan
    <stem>_neuron.json   its source, target and versions: see ``Made``; and the digest of the file

The SDK's pages do not say which versions can load TorchScript modules that other versions saved. So such a file is only
loaded by the versions that made it. A NEFF is loaded by the runtime, which refuses one that it can't run.
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

from trnrt.neuron.device import installed_versions
from trnrt.neuron.frontend import FRONTEND_VARIABLE
from trnrt.neuron.routes import Route
from trnrt.planner.naming import identifier
from trnrt.planner.plan import Plan

SCHEMA_VERSION = 2
_COMPILERS = ("nki", "neuronx-cc")
_BY = {"neff": _COMPILERS, "trace": (*_COMPILERS, "torch-neuronx", "torch", "libneuronxla")}
"""The packages whose version may change what a route writes."""
CODE_SETTINGS = (
    "NEURON_CC_FLAGS",
    "NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE",
    "NKI_LNC1_SHARED_HBM",
    "NKI_PREFETCH_RING_SIZE",
    "XLA_DOWNCAST_BF16",
    "XLA_USE_BF16",
)
"""The variables that change compiled code: the compiler's flags (compiler/neuronx-cc/api-reference-guide/index.rst);
the prefetch ring (nki.compiler.CompileConfig, 2.33.1), HBM shared at LNC 1 (nki.collectives.all_gather, 2.33.0),
transposes by DMA (in nki 0.6's code); and the two by which PyTorch/XLA rounds (about-neuron/announcements/neuron2.x/
announce-eos-bf16-vars.rst)."""


@dataclass(frozen=True)
class Made:
    """The origin of an artefact: these digests, for this target and physical cores, by this route, with these versions.

    ``weights``: "" if the artefact has none. ``frontend``: NKI_COMPILER_FRONTEND; ``settings``: those of CODE_SETTINGS
    that were set. ``debug_info``: it has its source lines, which does not change its results.
    """

    kernel: str
    weights: str
    target: str
    lnc: int
    route: str
    versions: Mapping[str, str]
    frontend: str
    settings: Mapping[str, str]
    debug_info: bool = False

    @property
    def key(self) -> str:
        """A name for artefacts made in this way."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode("utf-8")).hexdigest()[:32]


def describe_made(plan: Plan, source: bytes, lnc: int, route: Route, *, debug_info: bool = False) -> Made:
    """The origin that a plan's artefact would have here and now, in this environment."""
    shapes = [(t.name, t.shape, t.dtype) for t in (*plan.inputs, *plan.results)]
    kernel = hashlib.sha256(source + _kernels_digest() + repr((plan.entry, shapes)).encode("utf-8"))
    for name, array in plan.weights.items():
        kernel.update(f"{name} {array.dtype.name} {array.shape} ".encode())
    weights = ""
    if route.has_weights:
        digest = hashlib.sha256()
        for array in plan.weights.values():
            digest.update(array.tobytes())
        weights = digest.hexdigest()[:32]
    by = _BY.get(route.name, ())
    return Made(
        kernel=kernel.hexdigest()[:32],
        weights=weights,
        target=plan.target,
        lnc=lnc,
        route=route.name,
        versions={name: version for name, version in installed_versions().items() if name in by},
        frontend=os.environ.get(FRONTEND_VARIABLE, ""),
        settings={name: os.environ[name] for name in CODE_SETTINGS if os.environ.get(name)},
        debug_info=debug_info,
    )


def misfit(made: Made, wanted: Made, *, anywhere: bool = False) -> str:
    """Why an artefact is not the wanted one; "" if it is.

    ``anywhere``: it may be from another machine, with other packages and settings, as a NEFF that is run without them.
    """
    if made.route != wanted.route:
        return f"it was compiled by the route {made.route}, and {wanted.route} is used"
    if made.target != wanted.target:
        return f"it was compiled for {made.target}, and {wanted.target} is wanted"
    if made.lnc != wanted.lnc:
        return f"it was compiled for {made.lnc} physical cores per logical one, and {wanted.lnc} is wanted"
    if not anywhere and (reason := _misfit_here(made, wanted)):
        return reason
    if wanted.debug_info and not made.debug_info:
        return "it was compiled without the lines of its source, which a device profile needs"
    if made.kernel != wanted.kernel:
        return "it was compiled from another kernel module: the model, its shapes or this version of trnrt differ"
    return "" if made.weights == wanted.weights else "it holds other weights"


def _misfit_here(made: Made, wanted: Made) -> str:
    """The first difference in packages and settings, as a sentence; "" if there is none."""
    for name in sorted({*made.versions, *wanted.versions}):
        before, here = made.versions.get(name, "no version"), wanted.versions.get(name, "none")
        if before != here:
            return f"it was compiled with {name} {before}, and {here} is installed here"
    for name in sorted({*made.settings, *wanted.settings}):
        before, here = made.settings.get(name, ""), wanted.settings.get(name, "")
        if before != here:
            return f"it was compiled with {name}={before!r}, and it is {here!r} here"
    if made.frontend != wanted.frontend:
        return f"it was compiled with {FRONTEND_VARIABLE}={made.frontend!r}, and it is {wanted.frontend!r} here"
    return ""


def stem_of(plan: Plan) -> str:
    """The stem of a plan's file names."""
    return identifier(plan.name)


def find(directory: Path, stem: str, wanted: Made, route: Route, *, anywhere: bool = False) -> tuple[Path | None, str]:
    """The artefact in a directory, or None and the reason."""
    path, note = directory / f"{stem}{route.suffix}", directory / f"{stem}_neuron.json"
    try:
        document = json.loads(note.read_bytes())
        made = Made(**{name: document["made"][name] for name in Made.__dataclass_fields__})
        digest = document["digest"]
        reason = misfit(made, wanted, anywhere=anywhere)
        if not reason and digest != _digest_of(path):
            reason = "it was changed after it was made: its digest differs"
    except FileNotFoundError as error:
        return None, f"there is no {Path(error.filename).name} in {directory}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"{note} can't be read: {error}"
    return (None, f"{path} does not fit: {reason}") if reason else (path, "")


def find_below(directory: Path, stem: str, wanted: Made, route: Route) -> tuple[Path | None, str]:
    """``find`` in the directory or its folders: each holds one batch, and a server runs several.

    The folders of bundles (``NAME/BATCH``) are one further down. What a portable route wrote there may be from another
    machine.
    """
    reasons = []
    notes = [note for depth in ("*", "*/*") for note in sorted(directory.glob(f"{depth}/{stem}_neuron.json"))]
    for folder in (directory, *(note.parent for note in notes)):
        found, reason = find(folder, stem, wanted, route, anywhere=route.is_portable)
        if found is not None:
            return found, ""
        reasons.append(reason)
    if len(reasons) > 1 and not (directory / f"{stem}_neuron.json").exists():
        del reasons[0]  # if there are folders, the directory itself need not have one
    return None, "; ".join(reasons)


def keep(directory: Path, stem: str, made: Made, suffix: str, save: Callable[[Path], None]) -> list[Path]:
    """Write an artefact with ``save``, which gets a path, and its record; a reader sees both or neither."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, note = directory / f"{stem}{suffix}", directory / f"{stem}_neuron.json"
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
