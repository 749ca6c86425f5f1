"""Which tensor of a NEFF is which of ours.

nrtpy names a model's tensors, with shapes and sizes in bytes and no dtypes (neuron-runtime/nrtpy/model.rst). An input
is named like the kernel's parameter, and outputs are ``output_0``, ``output_1``, ... (tutorial-debug-neff-nrtpy.rst).
AWS's code may give an output its tensor's own name, and adds ``.must_alias_input`` to an input that is also an output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from trnrt.errors import BackendError
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.plan import DeviceTensor

ALIAS = ".must_alias_input"


@dataclass(frozen=True)
class Described:
    """A tensor of a NEFF: ``size`` in bytes."""

    name: str
    shape: tuple[int, ...]
    size: int

    @classmethod
    def parse(cls, entries: Sequence[Mapping[str, Any]]) -> list[Self]:
        """Of the worker's answer."""
        return [cls(entry["name"], tuple(entry["shape"]), entry["size"]) for entry in entries]


def match_tensors(neff: str, role: str, ours: Sequence[DeviceTensor], theirs: Sequence[Described]) -> list[str]:
    """The NEFF's name for each of ours, an "input" or "output"; by name, and if no name is known, by order.

    BackendError if tensors are missing or left over, if shapes or sizes differ, or if the order can't be trusted: for
    inputs of equal shape.
    """
    by_name = {tensor.name: tensor for tensor in theirs}
    if len(ours) != len(theirs):
        raise _mismatch(neff, role, ours, theirs, f"it has {len(theirs)} {role}s, and {len(ours)} are expected")
    names = [_known_name(role, k, tensor.name, by_name) for k, tensor in enumerate(ours)]
    if not any(name is not None for name in names):
        shapes = [tensor.shape for tensor in ours]
        if role == "input" and len(set(shapes)) < len(shapes):
            raise _mismatch(neff, role, ours, theirs, "none of the names is known, and several have one shape")
        names = [tensor.name for tensor in theirs]
    found: list[str] = []
    for tensor, name in zip(ours, names, strict=True):
        if name is None or name in found:
            raise _mismatch(neff, role, ours, theirs, f"it has no {role} for {tensor.name!r}")
        size = math.prod(tensor.shape) * as_dtype(tensor.dtype).numpy.itemsize
        if (by_name[name].shape, by_name[name].size) != (tensor.shape, size):
            reason = f"{role} {name!r} is {by_name[name].shape} of {by_name[name].size} bytes"
            raise _mismatch(neff, role, ours, theirs, f"{reason}, not {tensor.shape} of {size} bytes")
        found.append(name)
    return found


def _known_name(role: str, number: int, name: str, theirs: Mapping[str, Described]) -> str | None:
    """The NEFF's name for our tensor ``name``, the ``number``-th of its role, by the documented rules."""
    candidates = [name, name + ALIAS] if role == "input" else [name, f"output_{number}"]
    return next((candidate for candidate in candidates if candidate in theirs), None)


def _mismatch(
    neff: str, role: str, ours: Sequence[DeviceTensor], theirs: Sequence[Described], reason: str
) -> BackendError:
    has = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in theirs) or "none"
    wants = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in ours) or "none"
    return BackendError(
        f"{neff} does not fit its plan: {reason}. {role.capitalize()}s of the NEFF: {has}. Of the plan: {wants}",
        hint="compile the model again: trnrt cache clear",
    )
