"""Run trnrt on every file that the scripts of this folder made, and write what came out into results.json.

`python models/exports/try_exports.py DIR [FILE...]`, with trnrt's own Python. Each file runs in a process of its own,
for one row in float32, on the simulator, and is compared with onnxruntime as `trnrt validate` does. A file that needs
longer than `--seconds` is only planned. Results of files that aren't named stay as they are. `UPDATE_DOCS=1 pytest
tests/project/test_exports.py` then writes docs/exports.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
RUNS, DIFFERS, PLANNED, REFUSED = "runs", "differs", "planned", "refused"


def main() -> None:
    """Try the files of a folder, or the named ones among them, one at a time."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--seconds", type=int, default=500)
    parser.add_argument("--one", choices=("run", "plan"), help="try one file here, and print the result")
    options = parser.parse_intermixed_args()
    if options.one:
        print(json.dumps(try_here(options.folder / options.files[0], run=options.one == "run")))
        return
    for export in json.loads((options.folder / "exports.json").read_text()):
        if options.files and export["file"] not in options.files:
            continue
        row = export | try_apart(options.folder, export["file"], options.seconds)
        keep_result(row)
        print(row["file"], row["result"], row.get("error", ""), row.get("largest", ""), *row.get("why", []), flush=True)


def keep_result(row: dict[str, Any]) -> None:
    """Write a row into the results, in place of an older one of the same file."""
    known = {row["file"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    known[row["file"]] = row
    RESULTS.write_text(json.dumps([known[file] for file in sorted(known)], indent=1) + "\n")


def try_apart(folder: Path, file: str, seconds: int) -> dict[str, Any]:
    """The result of a file, from a process of its own: run, or planned if that takes too long."""
    for way in ("run", "plan"):
        command = [sys.executable, __file__, str(folder), file, "--one", way]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
        except subprocess.TimeoutExpired:
            continue
        except subprocess.CalledProcessError as failure:
            raise SystemExit(f"{file}: {failure.stderr}") from None
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    raise SystemExit(f"{file}: not even planned in {seconds} seconds")


def try_here(path: Path, *, run: bool) -> dict[str, Any]:
    """Plan a model, and run and compare it; refusals are results, too."""
    from trnrt.errors import TrnrtError, UnsupportedModelError

    try:
        session, is_open = open_session(path)
        partition = session.partition(1)
    except UnsupportedModelError as refused:
        return {"result": REFUSED, "why": list(dict.fromkeys(f"{b.op}: {b.reason}" for b in refused.blockers))}
    except TrnrtError as refused:
        return {"result": REFUSED, "why": [str(refused).removeprefix(f"{path}: ")]}
    hosted = sorted({node.op for part in partition.cpu_parts for node in part.nodes})
    found: dict[str, Any] = {"predicted_us": round(session.latency(1).us, 1), "host": hosted, "needs_shape": is_open}
    return found | (compare(session) if run else {"result": PLANNED})


def open_session(path: Path) -> tuple[Any, bool]:
    """A session, and whether it needed the sizes of open dimensions that are no batch: they are 1 here."""
    import trnrt

    session = trnrt.InferenceSession(path, backend="simulator", cache=False)
    if isinstance(session.model.batch, (int, str)):
        return session, False
    shapes = {info.name: [dim if isinstance(dim, int) else 1 for dim in info.shape] for info in session.model.inputs}
    is_open = any(not isinstance(dim, int) for info in session.model.inputs for dim in info.shape)
    given = {name: tuple(shape) for name, shape in shapes.items()} if is_open else None
    return trnrt.InferenceSession(path, backend="simulator", cache=False, shapes=given), is_open


def compare(session: Any) -> dict[str, Any]:
    """How far trnrt's outputs are from onnxruntime's, and how large these are."""
    import numpy as np

    from trnrt.validate import validate
    from trnrt.validate.running import run_onnxruntime

    feeds = session.random_inputs(1, seed=0)
    report = validate(session, feeds)
    first, second = (run_onnxruntime(session, session.random_inputs(1, seed=seed)) for seed in (0, 1))
    numbers = [
        np.asarray(array, np.float64) for array in first if np.asarray(array).dtype.kind in "fiub" and array.size
    ]
    alike = all(a.shape == b.shape and np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    failed = [output for output in report.outputs if not output.passed]
    why = {"why": [f"{one.name}: off by {one.error:.2g}, {one.tolerance:.2g} allowed" for one in failed]}
    return (why if failed else {}) | {
        "result": RUNS if report.passed else DIFFERS,
        "error": max(output.max_abs for output in report.outputs),
        "largest": max((float(np.abs(array).max()) for array in numbers), default=0.0),
        "lively": not alike,
    }


if __name__ == "__main__":
    main()
