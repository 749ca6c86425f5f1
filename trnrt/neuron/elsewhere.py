"""Run a kernel on the simulator in a process of its own, where AWS's nki is not imported.

    from trnrt.neuron.elsewhere import simulate_elsewhere

    [expected] = simulate_elsewhere(Path("my_kernel.py"), "double", [array, 4], target="trn2")

A file that says ``import nki`` gets AWS's package in a process that has it, so the simulator can't run it there: this
compares both in one command. Sessions and ``trnrt.kernels`` need it not: ``trnrt.nki.seam`` gives them both.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.backends import Array
from trnrt.errors import BackendError, KernelError
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import portable_name

LIMIT_S = 600.0
"""Seconds after which the process is ended."""
_LAST = 2000  # characters of its output that an error shows

Constant = int | float | str | bool | None


def simulate_elsewhere(
    home: Path | str, name: str, arguments: Sequence[Array | Constant], *, target: str, limit_s: float = LIMIT_S
) -> list[Array]:
    """The results of the kernel ``name`` of a file, or of a module ("trnrt.kernels.softmax"), on the simulator.

    KernelError if the kernel fails there, BackendError if the process takes longer than ``limit_s``.
    """
    where = str(home.resolve()) if isinstance(home, Path) else home
    with tempfile.TemporaryDirectory(prefix="trnrt-simulate-") as given:
        folder = Path(given)
        described = [_write(folder / f"given-{k}", value) for k, value in enumerate(arguments)]
        request = {"home": where, "name": name, "target": portable_name(target), "arguments": described}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        environment = {**os.environ, "TRNRT_NKI": "simulator"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-m", "trnrt.neuron.elsewhere", str(folder)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise BackendError(
                f"{name}: the simulator gave no result in {limit_s:g} s", hint="give it more time: limit_s"
            ) from None
        answer = folder / "answer.json"
        if not answer.exists():
            said = done.stderr.strip()[-_LAST:]
            raise KernelError(f"{name} of {where} failed on the simulator: {said or f'exit code {done.returncode}'}")
        return [_read(folder / f"result-{k}", row) for k, row in enumerate(json.loads(answer.read_bytes()))]


def main(folder: Path) -> None:
    """Run the kernel that the request names, and write its results."""
    from trnrt.nki import install, simulate

    install()
    request = json.loads((folder / "request.json").read_bytes())
    kernel = getattr(_import(request["home"]), request["name"])
    arguments = [_read(folder / f"given-{k}", row) for k, row in enumerate(request["arguments"])]
    results = simulate(kernel, request["target"])(*arguments)
    results = results if isinstance(results, tuple | list) else [results]
    rows = [_write(folder / f"result-{k}", np.asarray(result)) for k, result in enumerate(results)]
    (folder / "answer.json").write_text(json.dumps(rows), encoding="utf-8")


def _import(home: str) -> Any:
    if not home.endswith(".py"):
        return importlib.import_module(home)
    path = Path(home)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _write(file: Path, value: Any) -> dict[str, Any]:
    """Write an array's bytes; return what describes it. A constant is its own description."""
    if not isinstance(value, np.ndarray):
        return {"constant": value}
    file.write_bytes(np.ascontiguousarray(value).tobytes())
    return {"shape": value.shape, "dtype": value.dtype.name}


def _read(file: Path, row: dict[str, Any]) -> Any:
    if "constant" in row:
        return row["constant"]
    return np.frombuffer(bytearray(file.read_bytes()), as_dtype(row["dtype"]).numpy).reshape(row["shape"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
