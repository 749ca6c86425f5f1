"""Flags of the verbs that compare kernels, as records (see ``records.py``). ``trnrt --help`` imports this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trnrt.commands.options import check_finite, flag, read_percent
from trnrt.commands.verbs import argument

if TYPE_CHECKING:
    from trnrt.nki.machine.dtypes import Array
    from trnrt.nki.machine.program import Program, Storage
    from trnrt.nki.pairing import Inputs

SecondScript = Annotated[
    Path | None,
    argument(metavar="OTHER", help="Another file with kernels. By default SCRIPT: name two calls."),
]


@dataclass(frozen=True)
class Numbers:
    """The inputs that kernels run on, and how close their results must be."""

    inputs: Path | None = flag(
        "Model and inputs",
        "--input",
        "-i",
        metavar="FILE.npz",
        help="Arrays by the names of the kernel's tensors. By default the script's own, or random ones for --call.",
    )
    seed: int = flag("Model and inputs", "--seed", default=0, min=0, metavar="N", help="Seed of all random choices.")
    rtol: float | None = flag(
        "Numbers",
        "--rtol",
        min=0.0,
        metavar="F",
        help="Relative tolerance. Without --rtol and --atol, the dtype's: 1e-4 for float32, 2e-2 for 16 bits, each "
        "with a tenth or a half of that times the result's root mean square; integers must be equal.",
        callback=check_finite,
    )
    atol: float | None = flag(
        "Numbers",
        "--atol",
        min=0.0,
        metavar="F",
        help="Absolute tolerance; with --rtol or --atol, |a - b| may be atol + rtol * |a|.",
        callback=check_finite,
    )

    def reader(self) -> Inputs:
        """A function that gives the arrays to run a program on: the file's, else the call's own, else random ones."""
        from functools import partial

        from trnrt.nki.numbers import fill_inputs

        if self.inputs is None:
            return partial(fill_inputs, seed=self.seed)
        return partial(_take_arrays, read_arrays(self.inputs), str(self.inputs))


@dataclass(frozen=True)
class SecondCalls:
    """The second kernel's calls, and how much slower it may be."""

    calls_b: list[str] | None = flag(
        "Model and inputs",
        "--call-b",
        metavar="CALL",
        help="The second kernel's call, where it differs from --call; repeatable, one for each --call.",
    )
    max_slower: float | None = flag(
        "Comparison",
        "--max-slower",
        metavar="PERCENT",
        help="Exit 1 if the second kernel's headline is slower by more than this, as 2% or 2.",
        parser=read_percent,
    )


@dataclass(frozen=True)
class Tuning:
    """The values to try, and how long."""

    space: list[str] = flag(
        "Planning",
        "--space",
        default=...,
        metavar="NAME=V,V",
        help="Values of a keyword argument, repeatable: 'TILE=128,256,512', 'TILE=range(128, 513, 128)'; or a file "
        ".toml or .json with a list for each argument.",
    )
    call: str | None = flag(
        "Model and inputs",
        "--call",
        metavar="CALL",
        help="The call to tune: 'kernel(f32[128,512], bf16[512], 4, name=\"x\")'. By default the script's only one.",
    )
    trials: int = flag(
        "Planning",
        "--trials",
        default=200,
        min=1,
        metavar="N",
        help="The most candidates to try. A larger space is searched: random ones, then neighbours of the best.",
    )
    seconds: float | None = flag(
        "Planning", "--seconds", min=0.1, metavar="F", help="Stop after this time.", callback=check_finite
    )
    jobs: int | None = flag(
        "Planning", "--jobs", "-j", min=1, metavar="N", help="Processes. By default one for each CPU core."
    )
    results: Path | None = flag(
        "Output",
        "--results",
        writes="file",
        metavar="FILE.jsonl",
        help="Where the candidates' times are kept; a stopped run resumes from it. By default SCRIPT.tune.jsonl.",
    )
    reference: str | None = flag(
        "Comparison",
        "--reference",
        metavar="NAME",
        help="A function of the file, a kernel or numpy code, that computes the right numbers from the call's tensors. "
        "By default the kernel without changes.",
    )


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file; OptionError if it can't be read."""
    import zipfile

    import numpy as np

    from trnrt.errors import OptionError
    from trnrt.text import quote, reason_text

    try:
        with np.load(path, allow_pickle=False) as found:
            if not hasattr(found, "files"):
                raise ValueError("it holds one array without a name")
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise OptionError(f"can't read {quote(str(path))}: {reason_text(error)}", hint="give an .npz file") from None


def _take_arrays(arrays: dict[str, Any], file: str, program: Program, _tensors: Sequence[Any]) -> list[Array]:
    """The arrays of a program's tensors, by name; OptionError if the file lacks one, or has it in another form."""
    from trnrt.errors import OptionError

    missing = [storage.name for storage in program.inputs if storage.name not in arrays]
    if missing:
        names = ", ".join(storage.name for storage in program.inputs)
        raise OptionError(f"{file} has no array {missing[0]!r}", hint=f"the tensors of {program.kernel} are {names}")
    return [_fit_array(arrays[storage.name], file, program.kernel, storage) for storage in program.inputs]


def _fit_array(array: Array, file: str, kernel: str, storage: Storage) -> Array:
    """The array in the tensor's dtype. Floats are rounded to it: a file of numpy has no bfloat16, or 8-bit floats."""
    from trnrt.errors import OptionError

    wanted = storage.dtype.numpy
    if array.shape != storage.shape or not (
        array.dtype == wanted or (storage.dtype.is_float and array.dtype.kind == "f")
    ):
        raise OptionError(
            f"{file} has {storage.name!r} as {array.dtype}{list(array.shape)}",
            hint=f"{kernel} takes {storage.dtype}{list(storage.shape)}",
        )
    return array.astype(wanted, copy=False)
