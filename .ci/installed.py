"""Tries a wheel as a user would: in a new environment, in an empty directory, with nothing of the checkout in reach.

Usage: ``python3 .ci/installed.py dist/trnrt-0.2.0-py3-none-any.whl [PYTHON ...]``. Each PYTHON is a command, such as
``python3.13``; by default the one that runs this file. Ends with 1 at the first command that fails.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

SESSION = """
import numpy as np
import trnrt
session = trnrt.InferenceSession("compiled")
given = session.get_inputs()[0]
(scores,) = session.run(None, {given.name: np.zeros([1, *given.shape[1:]], np.float32)})
assert "site-packages" in trnrt.__file__, trnrt.__file__
assert scores.shape == (1, 10), scores.shape
"""
REQUEST = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}]}
JSON = {"content-type": "application/json"}
START_S = 120.0


def main(wheel: str, *pythons: str) -> None:
    """Try the wheel with each Python."""
    for python in pythons or (sys.executable,):
        with tempfile.TemporaryDirectory(prefix="trnrt-installed-") as folder:
            place = Path(folder)
            try_wheel(Path(wheel).resolve(), python, place)


def try_wheel(wheel: Path, python: str, place: Path) -> None:
    """The base install, then the extra ``serve``."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean["TRNRT_CACHE"] = str(place / "cache")

    def run(*command: str) -> str:
        print("$", *(part for part in command if "\n" not in part), flush=True)
        done = subprocess.run(command, cwd=place, env=clean, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}\n{' '.join(command)}: exit code {done.returncode}")
        return done.stdout

    print(run(python, "--version"), end="")
    run(python, "-m", "venv", "venv")
    python, trnrt = str(place / "venv/bin/python"), str(place / "venv/bin/trnrt")
    run(python, "-m", "pip", "install", "-q", str(wheel))
    print(run(trnrt, "--version"), end="")
    accuracy = [
        line for line in run(trnrt, "validate", "--sample", "digits", "--data").splitlines() if "accuracy" in line
    ]
    print("\n".join(accuracy))
    if not accuracy:
        sys.exit("validate printed no accuracy")
    run(trnrt, "run", "--sample", "digits")
    run(trnrt, "profile", "--sample", "digits", "--html", "report.html")
    run(trnrt, "compile", "--sample", "digits", "-o", "compiled")
    run(python, "-c", SESSION)
    run(python, "-m", "pip", "install", "-q", f"{wheel}[serve]")
    print(ask_server([trnrt, "serve", "compiled", "--port", "0"], place, clean))


def ask_server(command: list[str], place: Path, env: dict[str, str]) -> str:
    """Start the server, send a request, and stop it; returns the answer's first bytes."""
    log = place / "serve.txt"
    with log.open("w") as out, subprocess.Popen(command, cwd=place, env=env, stdout=out, stderr=out) as server:
        try:
            url = wait_until_ready(server, log)
            request = Request(f"{url}/v2/models/digits_cnn/infer", json.dumps(REQUEST).encode(), JSON)
            with urlopen(request, timeout=60) as answer:
                found: str = answer.read().decode()
        finally:
            server.send_signal(signal.SIGTERM)
    if server.returncode:
        sys.exit(f"{log.read_text()}\nthe server ended with {server.returncode}")
    return found[:200]


def wait_until_ready(server: subprocess.Popen[bytes], log: Path) -> str:
    """The address that the server prints, when its model is ready."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            try:
                with urlopen(f"{found[0]}/v2/health/ready", timeout=60):
                    return found[0]
            except HTTPError:  # not yet
                pass
        time.sleep(0.2)
    sys.exit(f"{log.read_text()}\nthe server was not ready within {START_S:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
