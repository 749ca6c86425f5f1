"""The numbers of a kernel: inputs to try it with, its results, and how far two results are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.cores import CoreGroup
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.execute import Executor
from trnrt.nki.machine.program import Program, Storage

TOLERANCES = {
    "float32": (1e-4, 1e-5),
    "tfloat32": (2e-2, 1e-2),  # the mantissa of float16; on the host its arrays are float32
    "bfloat16": (2e-2, 1e-2),
    "float16": (2e-2, 1e-2),
    "float8_e4m3": (0.125, 0.125),
    "float8_e4m3fn": (0.125, 0.125),
    "float8_e5m2": (0.25, 0.25),
}
"""(rtol, atol) by the dtype of a result, those of ``trnrt validate``: two correct kernels may round, and add in another
order. ``compare_arrays`` takes atol as a multiple of the result's root mean square. Integers must be equal."""


@dataclass(frozen=True)
class Agreement:
    """One result of two kernels: ``result``, ``result[1]`` ..., or the name of an argument that they write.

    ``identical``: bit for bit; NaN equals NaN. ``largest``: the largest difference (infinite if only one is finite),
    at ``index``, where the two values are ``first`` and ``second``; ``ratio``: the largest of all differences
    over what is allowed for the element, perhaps at another index. ``problem``: why they can't be compared, or "".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    identical: bool
    within: bool
    largest: float = 0.0
    ratio: float = 0.0
    index: tuple[int, ...] = ()
    first: float = 0.0
    second: float = 0.0
    problem: str = ""


def draw_inputs(program: Program, seed: int = 0) -> list[Array]:
    """Random arrays for a program's tensor arguments: floats from a normal distribution, integers from 0 to below the
    smallest first dimension of all tensors, so that most of them can be rows to look up."""
    generator = np.random.default_rng(seed)
    rows = max(2, min((storage.shape[0] for storage in program.inputs), default=2))
    return [_draw(generator, storage, rows) for storage in program.inputs]


def fill_inputs(program: Program, tensors: Sequence[Any], seed: int = 0) -> list[Array]:
    """The arrays of a call's ``tensors``, in the program's order; random ones for those without data (``Spec``)."""
    drawn = draw_inputs(program, seed)
    return [own if isinstance(own, np.ndarray) else new for own, new in zip(tensors, drawn, strict=True)]


def _draw(generator: np.random.Generator, storage: Storage, rows: int) -> Array:
    shape, dtype = storage.shape, storage.dtype.numpy
    if storage.dtype.is_float:
        return generator.standard_normal(shape, np.float32).astype(dtype)
    most = 2 if dtype.kind == "b" else min(rows, int(np.iinfo(dtype).max))
    return generator.integers(0, most, shape).astype(dtype)


def run_programs(programs: Sequence[Program], arrays: Sequence[Array]) -> tuple[list[Array], dict[int, Array]]:
    """Run the programs of a kernel's cores; return its results, and the new values of the arguments that it writes,
    by position. ``arrays`` are not changed.

    Raises:
        KernelError: if an array doesn't fit its argument, or the run breaks a rule.
    """
    if len(arrays) != len(programs[0].inputs):
        raise KernelError(f"kernel {programs[0].kernel} takes {len(programs[0].inputs)} tensors, not {len(arrays)}")
    executor: Executor | CoreGroup = Executor(programs[0]) if len(programs) == 1 else CoreGroup(programs)
    outputs = executor.run(arrays)
    return outputs, {position: executor.argument(position) for position in executor.changes}


def named_results(programs: Sequence[Program], arrays: Sequence[Array]) -> dict[str, Array]:
    """All that a kernel computes from ``arrays``, by name: its results, then the arguments that it writes."""
    outputs, changed = run_programs(programs, arrays)
    single = len(outputs) == 1
    found = {"result" if single else f"result[{n}]": array for n, array in enumerate(outputs)}
    return found | {programs[0].inputs[position].name: array for position, array in changed.items()}


def compare_results(
    first: Mapping[str, Array], second: Mapping[str, Array], rtol: float | None = None, atol: float | None = None
) -> list[Agreement]:
    """An entry for each result of either. With ``rtol`` or ``atol``, ``|a - b| <= atol + rtol * |a|``, as numpy has it
    (one of them alone: the other is 0); without, by ``TOLERANCES``."""
    found = []
    for name in dict.fromkeys([*first, *second]):
        if name in first and name in second:
            found.append(compare_arrays(name, first[name], second[name], rtol, atol))
        else:
            array = first.get(name, second.get(name))
            assert array is not None
            which = "first" if name in first else "second"
            found.append(_problem(name, array, f"only the {which} kernel has it"))
    return found


def compare_arrays(name: str, first: Array, second: Array, rtol: float | None, atol: float | None) -> Agreement:
    """One result of two kernels. Of two dtypes, the coarser one's tolerance counts."""
    if first.shape != second.shape:
        return _problem(name, first, f"shapes {first.shape} and {second.shape}")
    one, other = (array.astype(np.float64) for array in (first, second))
    same = np.array_equal(one, other, equal_nan=True) and first.dtype == second.dtype
    with np.errstate(all="ignore"):
        gap = np.where(_equal(one, other), 0.0, np.abs(one - other))
        gap = np.where(np.isnan(gap), np.inf, gap)
        allowed = _tolerances(one, (first.dtype, second.dtype), rtol, atol)
        ratios = np.where(gap == 0, 0.0, np.where(allowed > 0, gap / np.maximum(allowed, np.finfo(float).tiny), np.inf))
    if not gap.size:
        return Agreement(name, first.dtype.name, first.shape, same, within=True)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(gap)), gap.shape))
    worst = float(ratios.max())
    return Agreement(
        name,
        first.dtype.name,
        first.shape,
        identical=bool(same and _same_bits(first, second)),
        within=worst <= 1,
        largest=float(gap[index]),
        ratio=worst,
        index=index,
        first=float(one[index]),
        second=float(other[index]),
    )


def _tolerances(one: Array, dtypes: Sequence[np.dtype[Any]], rtol: float | None, atol: float | None) -> Array:
    """The largest difference that each element may have."""
    if rtol is not None or atol is not None:
        return (atol or 0.0) + (rtol or 0.0) * np.abs(one)
    known = [TOLERANCES.get(dtype.name, (0.0, 0.0)) for dtype in dtypes]
    relative, share = max(known)
    finite = one[np.isfinite(one)]
    return relative * np.abs(one) + share * (float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0)


def _equal(one: Array, other: Array) -> Array:
    equal: Array = (one == other) | (np.isnan(one) & np.isnan(other))
    return equal


def _same_bits(first: Array, second: Array) -> bool:
    """True if two arrays of equal numbers have the same bits: 0.0 and -0.0 differ."""
    real = ~np.isnan(first.astype(np.float64))
    one, other = np.ascontiguousarray(first[real]), np.ascontiguousarray(second[real])
    return one.tobytes() == other.tobytes()


def agreement_text(found: Agreement) -> str:
    """The distance of two results, in words."""
    name = f"{found.name}, {found.dtype} {list(found.shape)}"
    if found.problem:
        return f"{name}: {found.problem}"
    if found.identical:
        return f"{name}: the same bits"
    largest = f"largest difference {found.largest:.6g} at {list(found.index)}: {found.first:.6g} and {found.second:.6g}"
    share = (
        f"at most {found.ratio:.2g} times the tolerance"
        if np.isfinite(found.ratio)
        else "an element that must be equal isn't"
    )
    return f"{name}: {largest}; {share}"


def _problem(name: str, array: Array, problem: str) -> Agreement:
    return Agreement(name, array.dtype.name, array.shape, False, False, ratio=np.inf, problem=problem)
