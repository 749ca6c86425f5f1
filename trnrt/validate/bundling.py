"""Writing a bundle (``trnrt.cache.bundles``): the model, its plans, and onnxruntime's answers to check them by."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.cache import write_whole
from trnrt.cache.bundles import Bundle, make_bundle
from trnrt.cache.entries import USAGE, Entries
from trnrt.cache.places import golden_file
from trnrt.errors import ModelFileError
from trnrt.importer.reading.external import files_beside
from trnrt.inputs.drawing import as_numpy
from trnrt.inputs.npz import pack_npz
from trnrt.running.rows import as_matrix
from trnrt.session import InferenceSession
from trnrt.validate.golden import Golden, golden_feeds, make_golden
from trnrt.validate.running import open_onnxruntime
from trnrt.validate.tolerances import Noise, Tolerance, default_tolerance

Array = NDArray[Any]
Shape = tuple[int, int]
"""The rows and the length of a bucket; length 0 without lengths."""


def write_bundle(
    session: InferenceSession,
    directory: Path,
    buckets: tuple[int, ...],
    planned: Callable[[int], None] = lambda _count: None,
) -> Bundle:
    """Write the model and its plans for these batch sizes, of every length; not checked yet.

    ``planned`` is called after each shape. The directory's files of another bundle are overwritten. OSError if it
    can't be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    bundle = make_bundle(session, directory, buckets)
    bundle.remove_manifest()
    _copy_model(session.serialized(), bundle.model)
    for done, (rows, length) in enumerate(shapes_of(bundle), 1):
        if problem := session.keep_plan(Entries(directory, sys.maxsize), rows, length):
            raise OSError(problem)
        planned(done)
    (directory / USAGE).unlink(missing_ok=True)
    _let_others_read(directory)
    bundle.write()
    return bundle


def shapes_of(bundle: Bundle) -> list[Shape]:
    """The shapes that a bundle has plans for, the smallest first."""
    lengths = (0,) if bundle.lengths is None else bundle.lengths.sizes
    return [(rows, length) for length in lengths for rows in bundle.buckets]


def check_bundle(bundle: Bundle, checked: Callable[[int], None] = lambda _count: None) -> Bundle:
    """Run every shape's golden input on the simulator, compare it with onnxruntime's answers, and keep these.

    ``checked`` is called after each shape. Returns the bundle that says so. BackendError if an output is too far from
    onnxruntime's, or if that can't run the model; InputError if it needs a golden input of its own.
    """
    session = InferenceSession(bundle.directory, backend="simulator")
    reference, noise = open_onnxruntime(session), Noise(session)
    (bundle.directory / "golden").mkdir(exist_ok=True)
    for done, (rows, length) in enumerate(shapes_of(bundle), 1):
        feeds = golden_inputs(session, bundle.model, rows, length)
        golden = make_golden(session, reference, feeds, noise)
        golden.check(run_golden(session, feeds))
        _write_answers(bundle.answers(rows, length), session, golden)
        checked(done)
    found = replace(bundle, checked=frozenset(shapes_of(bundle)))
    found.write()
    return found


def golden_inputs(session: InferenceSession, model: Path, rows: int, length: int) -> dict[str, Array]:
    """The golden input of a shape; see ``golden_feeds``."""
    feeds = golden_feeds(session, model, rows)
    return feeds if session.lengths is None else session.lengths.resize(feeds, length)


def run_golden(session: InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The session's outputs by name, all of them arrays."""
    names = [info.name for info in session.model.outputs]
    return dict(zip(names, map(as_matrix, session.run(None, feeds)), strict=True))


def read_golden(session: InferenceSession, bundle: Bundle, shape: Shape, noise: Callable[[], Noise]) -> Golden | None:
    """A shape's golden input with the answers in the bundle; None if it was not checked.

    ``noise``: opened if an output exceeds the tolerance that the bundle has. ModelFileError if it is damaged.
    """
    if shape not in bundle.checked:
        return None
    path = bundle.answers(*shape)
    try:
        with np.load(path, allow_pickle=False) as held:
            kept = dict(held)
        expected, own = {}, {}
        for place, info in enumerate(session.model.outputs):
            expected[info.name] = kept[f"expected_{place}"].astype(_dtype(info.dtype), copy=False)
            if f"atol_{place}" in kept:
                own[info.name] = Tolerance(float(kept[f"rtol_{place}"]), kept[f"atol_{place}"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path} is damaged: {error}", hint="compile the model again") from None
    feeds = golden_inputs(session, bundle.model, *shape)
    if own:
        return Golden(feeds, expected, None, lambda: own)
    return Golden(feeds, expected, default_tolerance(session.dtype), lambda: noise().tolerances(feeds, expected))


def _write_answers(path: Path, session: InferenceSession, golden: Golden) -> None:
    arrays: dict[str, Array] = {}
    measured: Mapping[str, Tolerance] = golden.measured() if golden.default is None else {}
    for place, info in enumerate(session.model.outputs):
        arrays[f"expected_{place}"] = _storable(golden.expected[info.name])
        if info.name in measured:
            arrays[f"rtol_{place}"] = np.asarray(measured[info.name].rtol)
            arrays[f"atol_{place}"] = np.asarray(measured[info.name].atol)
    packed = io.BytesIO()
    pack_npz(packed, arrays)
    write_whole(path, packed.getvalue(), mode=0o644)


def _storable(array: Array) -> Array:
    """As .npz can hold it: texts of a fixed width, and float32 for bfloat16."""
    if array.dtype.kind == "O":
        return array.astype(np.str_)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _dtype(name: str) -> Any:
    return object if name == "str" else as_numpy(name)


def _let_others_read(directory: Path) -> None:
    """A server may run as another user than the one who compiled; the cache's files are its owner's alone."""
    for folder in ("plans", "arrays", "times"):
        (directory / folder).chmod(0o755)
        for path in (directory / folder).iterdir():
            path.chmod(0o644)


def _copy_model(file: str | bytes, place: Path) -> None:
    """Copy the model, the files of its external data, and its golden input."""
    place.parent.mkdir(exist_ok=True)
    source = None if isinstance(file, bytes) else Path(file)
    content = file if isinstance(file, bytes) else Path(file).read_bytes()
    write_whole(place, content, mode=0o644)
    if source is None or source.resolve() == place.resolve():
        return
    copies = {place.parent / name: source.parent / name for name in files_beside(content)}
    if (golden := golden_file(source)).exists():
        copies[golden_file(place)] = golden
    for target, original in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, original.read_bytes(), mode=0o644)
