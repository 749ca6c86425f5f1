"""The rows: a network in float32, bfloat16, int8 and 8-bit floats at a batch, each with its prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.networks.table import NETWORKS
from trnrt.importer import ImportedModel, import_model
from trnrt.nki.breakdown import Holder, holders_of
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Range, add_ranges
from trnrt.planner.options import EIGHT_BITS
from trnrt.quantise.calibrating import find_ranges
from trnrt.quantise.data import Batch, Data
from trnrt.quantise.making import quantise
from trnrt.quantise.preparing import prepare
from trnrt.running.profiler import profile_plan
from trnrt.session import InferenceSession, MoreOptions

BATCHES = (1, 4, 8)
NETS = ("resnet18", "resnet50")
FORMS = ("float32", "bfloat16", "int8", "float8_e4m3")
"""``int8`` is the quantised model in a float32 session: whole numbers are stored and multiplied in bfloat16 there."""


def forms_of(target: str) -> tuple[str, ...]:
    """The forms that a target has: trn1 multiplies 8-bit floats no faster than 16 bits."""
    has = get_target(target).has_double_rows
    return tuple(form for form in FORMS if has or form not in EIGHT_BITS)


@dataclass(frozen=True)
class Row:
    """A network in one of ``FORMS`` at a batch. ``held``: the parts of its critical path, the longest first."""

    network: str
    form: str
    batch: int
    predicted: Range
    held: tuple[Holder, ...]

    @property
    def images_per_second(self) -> float:
        """Of one core, by the headline."""
        return self.batch / self.predicted.us * 1e6


def draw_images(model: ImportedModel) -> dict[str, NDArray[np.float32]]:
    """Random images, to calibrate on."""
    (info,) = model.inputs
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in info.shape)
    return {info.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


def quantise_network(model: onnx.ModelProto) -> bytes:
    """The model in int8 (QDQ), calibrated on random images."""
    imported = import_model(model.SerializeToString())
    prepared = prepare(imported, "qdq")
    images = draw_images(imported)
    rows = len(next(iter(images.values())))
    data = Data((Batch(images, rows),), rows)
    return quantise(prepared, "qdq", find_ranges(prepared, data, "minmax", lambda rows: None))


def measure(
    target: str,
    names: Sequence[str],
    batches: Sequence[int],
    forms: Sequence[str],
    effort: int,
    done: Callable[[int], None],
) -> Iterator[Row]:
    """The rows of the networks called ``names``; ``done`` is called with 1 after each."""
    for name in names:
        model = NETWORKS[name]()
        for form in forms:
            content = quantise_network(model) if form == "int8" else model.SerializeToString()
            more: MoreOptions = {"cache": False, "effort": effort}
            if form in EIGHT_BITS:
                more["calibration"] = draw_images(import_model(content))
            dtype = "float32" if form == "int8" else form
            session = InferenceSession(content, target=target, dtype=dtype, backend="simulator", **more)
            for batch in batches:
                yield _row(name, form, session, batch)
                done(1)


def _row(name: str, form: str, session: InferenceSession, batch: int) -> Row:
    partition = session.partition(batch)
    profiles = [profile_plan(plan) for plan in partition.plans]
    predicted = add_ranges((one.benchmark for one in profiles), partition.crossings_us)
    return Row(name, form, batch, predicted, holders_of(profile.timeline for profile in profiles))
