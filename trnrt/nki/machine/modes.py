"""The modes that instructions take as arguments, under NKI's names and values (NKI API reference 2.32)."""

from __future__ import annotations

from enum import Enum, IntEnum


class _Mode(Enum):
    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class reduce_cmd(_Mode):  # noqa: N801 - NKI's name
    """How an instruction uses its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(_Mode):  # noqa: N801 - NKI's name
    """The maker of a DMA's descriptors: the compiler's choice, the GpSimd engine, a hardware block, the host."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(_Mode):  # noqa: N801 - NKI's name
    """The effect of an index out of bounds at run time."""

    error = 0
    skip = 1


class matmul_perf_mode(_Mode):  # noqa: N801 - NKI's name
    """How the tensor engine packs its operands."""

    none = "none"
    double_row = "double_row"


class dma_engine(_Mode):  # noqa: N801 - NKI's name
    """Which DMA engines exchange tiles between cores."""

    dma = 1
    gpsimd_dma = 2


class nc_version(IntEnum):  # noqa: N801 - NKI's name
    """NeuronCore generations; ordered, because kernels compare them with ``>=``."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


def add_generation(number: int) -> None:
    """Make ``nc_version(number)`` and its name valid, for a target of a generation that NKI's own list lacks.

    Iteration still gives NKI's own list.
    """
    known, name = nc_version._value2member_map_, f"gen{number}"
    if number not in known:
        member = int.__new__(nc_version, number)
        member._name_, member._value_ = name, number
        known[number] = member
        setattr(nc_version, name, member)


def as_dge_mode(mode: object) -> object:
    """The mode of a number, anything else unchanged: nki-library 0.6 still passes 3 for ``none``."""
    if type(mode) is not int:
        return mode
    return next((member for member in dge_mode if member.value == mode), mode)
