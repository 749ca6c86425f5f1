"""The process that runs cases: ``python -m trnrt.neuron.selftest.worker BACKEND TARGET FOLDER``, with names on stdin.

Results are written to ``FOLDER/NAME.json`` and ``.npz``, not to stdout, where AWS's compiler and runtime print. They
stay there, whatever ends this process.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.cache import write_whole
from trnrt.neuron.selftest.cases import Array
from trnrt.neuron.selftest.running import run_case
from trnrt.neuron.selftest.table import CASES

DETAIL = 4000
"""Characters that are kept of an error's end, which has the reason."""


def main(backend: str, target: str, folder: Path) -> None:
    """Run the cases that stdin names."""
    for line in sys.stdin:
        name = line.strip()
        document, outputs = outcome(name, backend, target)
        np.savez(folder / f"{name}.npz", *[_storable(array) for array in outputs])
        write_whole(folder / f"{name}.json", json.dumps(document).encode())


def outcome(name: str, backend: str, target: str) -> tuple[dict[str, Any], list[Array]]:
    """The result of a case as JSON can hold it, and its outputs; ``state`` is "passed", "failed" or "error"."""
    try:
        result = run_case(CASES[name], backend, target)
    except Exception as error:
        detail = "".join(traceback.format_exception(error))[-DETAIL:]
        return {"state": "error", "summary": f"{type(error).__name__}: {error}"[:DETAIL], "detail": detail}, []
    document = {key: value for key, value in asdict(result).items() if key not in ("outputs", "passed")}
    return {"state": "passed" if result.passed else "failed", "summary": result.detail} | document, result.outputs


def _storable(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.kind == "V" else array


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
