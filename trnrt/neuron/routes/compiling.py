"""Compile a kernel module to a NEFF, in a process of its own: ``python -m trnrt.neuron.routes.compiling FOLDER``.

The documented way is to call the ``nki.jit`` function on arrays with NKI_ARTIFACTS_DIR set: the NEFF is then kept as
kernel.neff, also if the run that follows fails (neuron-runtime/nrtpy/nrtpy-troubleshooting.rst and
tutorial-debug-neff-nrtpy.rst of SDK 2.32). The variable must be set before nki is imported, and the compiler wants an
empty folder, so each kernel has its own process and folder. Without a device the run fails, which is expected.

Not checked, for want of the package: that the NEFF also stays where there is no device at all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trnrt.errors import BackendError
from trnrt.neuron.device import ARTIFACTS_VARIABLE
from trnrt.neuron.failures import compile_error
from trnrt.neuron.routes import Job

NEFF = "kernel.neff"
RUN_S = 120.0
"""Seconds for the run that follows the compilation, whose result nobody needs: then the process is ended."""
_POLL_S = 0.05
_REQUEST, _ERROR, _LOG = "request.json", "error.json", "log"


def compile_to_neff(job: Job, environ: Mapping[str, str]) -> Path:
    """The NEFF of a kernel module, in ``job.work``, which is emptied first.

    KernelError if AWS's compiler refuses the kernel.
    """
    plan, work = job.plan, job.work
    artifacts = work / "artifacts"
    shutil.rmtree(work, ignore_errors=True)
    artifacts.mkdir(mode=0o700, parents=True)
    arguments = [(tensor.shape, tensor.dtype) for tensor in plan.inputs]
    arguments += [(weight.shape, weight.dtype.name) for weight in plan.weights.values()]
    module = work / f"{job.path.stem}.py"  # of the checked bytes
    module.write_bytes(job.source)
    request = {"path": str(module), "entry": plan.entry, "lnc": job.lnc, "arguments": arguments}
    (work / _REQUEST).write_text(json.dumps(request), encoding="utf-8")
    _run(work, _environment(environ, artifacts), artifacts / NEFF)
    neff = artifacts / NEFF
    if neff.is_file() and neff.stat().st_size:
        return neff
    raise _failure(plan.name, plan.target, work)


def _environment(environ: Mapping[str, str], artifacts: Path) -> dict[str, str]:
    """The process's environment: AWS's nki for the kernels, and the folder for its files."""
    made = {**environ, ARTIFACTS_VARIABLE: str(artifacts)}
    made["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    made.pop("TRNRT_NKI", None)
    return made


def _run(work: Path, environment: dict[str, str], neff: Path) -> None:
    """Run the process until it ends; its run on the device gets RUN_S after the NEFF is there."""
    command = [sys.executable, "-m", "trnrt.neuron.routes.compiling", str(work)]
    with (work / _LOG).open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=work,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                if neff.exists() and time.time() - neff.stat().st_mtime > RUN_S:
                    break
                time.sleep(_POLL_S)
        finally:
            # Its whole group: AWS's compiler is a process of its own.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _failure(name: str, target: str, work: Path) -> Exception:
    """Why there is no NEFF."""
    log = (work / _LOG).read_text(encoding="utf-8", errors="replace")
    try:
        told = json.loads((work / _ERROR).read_bytes())
    except (OSError, ValueError):
        told = {"type": "", "text": log.strip()[-2000:] or "the process ended without a word"}
    if told["type"] in ("ModuleNotFoundError", "ImportError"):
        return BackendError(f"{name} can't be compiled: {told['text']}", hint="trnrt doctor looks for the cause")
    error = RuntimeError(f"{told['type']}: {told['text']}".removeprefix(": "))
    return compile_error(name, target, str(work), error)


def main(folder: Path) -> None:
    """Call the kernel that the request names on zeros. An error is written to a file, for the process that asks."""
    import importlib.util

    import numpy as np

    from trnrt.nki import USES_AWS
    from trnrt.nki.machine.dtypes import as_dtype

    request = json.loads((folder / _REQUEST).read_bytes())
    try:
        if not USES_AWS:
            raise ImportError("AWS's nki is not what the kernels get: it can't be imported")
        path = Path(request["path"])
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        kernel = getattr(module, request["entry"])
        arrays = [np.zeros(shape, as_dtype(dtype).numpy) for shape, dtype in request["arguments"]]
        (kernel if request["lnc"] == 1 else kernel[request["lnc"]])(*arrays)
    except Exception as error:
        text = json.dumps({"type": type(error).__name__, "text": str(error)})
        (folder / _ERROR).write_text(text, encoding="utf-8")
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
