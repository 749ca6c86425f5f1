"""Our ``nki.compiler``, from NKI 0.7 on: what ``nki.jit`` takes as ``compile_config`` and ``specialization_config``.

Fields and defaults are those of SDK 2.33's pages (v2.33.1 nki/api/nki.compiler.html); a field whose default the pages
leave open is None here, the compiler's own choice. The simulator checks the records, and compiles the same program for
each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from trnrt.nki.errors import KernelError

__all__ = ["AddressRotation", "CompileConfig", "SpecializationConfig"]


class AddressRotation(Enum):
    """Whether the compiler rotates the addresses of tiles. ``AUTO``: those with an address of their own stay."""

    AUTO = "auto"
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True)
class CompileConfig:
    """Options of the compiler's passes.

    Raises:
        KernelError: if a field has a value of another type.
    """

    address_rotation: AddressRotation = AddressRotation.AUTO
    non_ssa_legalization: bool | None = None
    dead_code_elim: bool | None = None
    barrier_check: bool | None = None
    prefetch_auto: bool = False
    nki_alloc_fallback: bool = True

    def __post_init__(self) -> None:
        """Check the fields' types."""
        rotation: object = self.address_rotation
        if not isinstance(rotation, AddressRotation):
            members = ", ".join(f"AddressRotation.{member.name}" for member in AddressRotation)
            raise KernelError(f"CompileConfig: address_rotation is {rotation!r}; it must be {members}")
        _check_flags(self, [name for name in _names(self) if name != "address_rotation"])


@dataclass(frozen=True)
class SpecializationConfig:
    """Options of specialising a kernel.

    ``allow_nested_config_override``: warn of a nested kernel whose ``compile_config`` differs, instead of refusing it.

    Raises:
        KernelError: if a field has a value of another type.
    """

    allow_nested_config_override: bool = False

    def __post_init__(self) -> None:
        """Check the fields' types."""
        _check_flags(self, _names(self))


def _names(record: CompileConfig | SpecializationConfig) -> list[str]:
    return [field.name for field in fields(record)]


def _check_flags(record: CompileConfig | SpecializationConfig, names: list[str]) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and not isinstance(value, bool):
            raise KernelError(f"{type(record).__name__}: {name} is {value!r}; it must be True or False")
