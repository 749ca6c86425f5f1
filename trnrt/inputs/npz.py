"""Arrays of any names as an .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


def pack_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz file for ``np.load``, without pickles: ValueError for an array of objects.

    Not ``np.savez``: its parameters ("file", and "allow_pickle" since NumPy 2.2) can't be names of arrays.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
