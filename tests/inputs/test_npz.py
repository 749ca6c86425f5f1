"""Arrays as an .npz file: whatever they are called, equal ones as equal bytes, and nothing that unpickling runs."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trnrt.inputs.npz import pack_npz


def test_arrays_may_be_called_anything() -> None:
    arrays: dict[str, NDArray[Any]] = {
        "file": np.arange(3),
        "allow_pickle": np.zeros((), np.float32),
        "a/b": np.array(["x"]),
    }
    written = []
    for _ in range(2):
        file = io.BytesIO()
        pack_npz(file, arrays)
        written.append(file.getvalue())
    assert written[0] == written[1]
    with np.load(io.BytesIO(written[0]), allow_pickle=False) as held:
        assert held.files == list(arrays)
        for name, array in arrays.items():
            assert held[name].dtype == array.dtype
            np.testing.assert_array_equal(held[name], array)


def test_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        pack_npz(io.BytesIO(), {"a": np.array([object()])})
