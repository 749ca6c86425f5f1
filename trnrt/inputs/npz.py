"""Arrays as an .npz file, whatever they are called."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


def pack_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write what ``np.load`` reads, without pickles: ValueError for an array of objects.

    Not ``np.savez``: an array may be called as one of its parameters is ("file", and "allow_pickle", which before NumPy
    2.2 was an array).
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
