"""Names that NKI 0.7 added to ``nki.language`` and that this simulator lacks: using one says so.

Source: SDK 2.33's pages nki.language.alloc_tiles, alloc_blocks, blocks and NkiGrid, and the list of dtypes in
nki/api/nki.language (v2.33.0).
"""

from __future__ import annotations

from typing import Any, NoReturn

from trnrt.nki.errors import KernelError

__all__ = [
    "NkiBlockGrid",
    "NkiGrid",
    "NkiTileGrid",
    "alloc_blocks",
    "alloc_tiles",
    "blocks",
    "int64",
    "tiles",
    "uint64",
]

GRIDS = "grids of tiles are not modelled"
WIDE = "64-bit integers are not modelled"


def _refuse(name: str) -> NoReturn:
    raise KernelError(
        f"nl.{name} (NKI 0.7) is left out of this simulator: {GRIDS}",
        hint="allocate the tiles with nl.ndarray, and slice them",
    )


def alloc_tiles(
    *,
    tile_shape: Any,
    element_shape: Any,
    buffer: Any,
    dtype: Any,
    address: Any = None,
    name: str = "",
) -> NoReturn:
    """New storage as a grid of tiles: left out."""
    _refuse("alloc_tiles")


def alloc_blocks(
    *,
    tile_shape: Any,
    block_shape: Any,
    element_shape: Any,
    buffer: Any,
    dtype: Any,
    address: Any = None,
    name: str = "",
) -> NoReturn:
    """New storage as a grid of blocks of tiles: left out."""
    _refuse("alloc_blocks")


def tiles(source: Any, *, tile_shape: Any) -> NoReturn:
    """A tensor as a grid of tiles: left out."""
    _refuse("tiles")


def blocks(source: Any, *, tile_shape: Any = None, block_shape: Any) -> NoReturn:
    """A tensor or grid as a grid of blocks: left out."""
    _refuse("blocks")


class NkiGrid:
    """A grid of tiles or blocks. The class exists for annotations and ``isinstance``; there are no objects of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(type(self).__name__)


class NkiTileGrid(NkiGrid):
    """A grid of tiles: left out."""


class NkiBlockGrid(NkiGrid):
    """A grid of blocks: left out."""


# Names of dtypes, which kernels may compare with; a tensor of one is refused as for any unknown dtype.
int64 = "int64"
uint64 = "uint64"
