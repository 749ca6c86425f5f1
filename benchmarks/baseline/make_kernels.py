"""``python -m benchmarks.baseline.make_kernels --tree PATH``: rebuild the archive of kept kernels.

PATH is a checkout of the commit, such as ``git worktree add --detach PATH 1e68255`` makes. Its importer and planner
plan every network for trn1 and trn2; its kernels and labs are packed unchanged. The same checkout always gives the same
archive. Takes about 3 minutes of CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if run as a script

from benchmarks import ROOT
from benchmarks.baseline.library import ARCHIVE, CASES, COMMIT, TARGETS, Library
from benchmarks.baseline.networks import NETWORKS
from trnrt.errors import OptionError, TrnrtError
from trnrt.report.console import complain, say
from trnrt.report.progress import working

ENTRIES = ("bench/labs/entries.py", "bench/shapes/entries.py", "bench/timing/kernels.py")
"""The labs' kernels outside ``kernels/``, and their imports."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan and pack; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baseline.make_kernels", description=__doc__)
    parser.add_argument("--tree", type=Path, required=True, help=f"a checkout of {COMMIT}")
    parser.add_argument("--work", type=Path, required=True, help="a folder for what is planned; it is not done twice")
    parser.add_argument("--out", type=Path, default=ARCHIVE, help="the archive; by default that in the repository")
    asked = parser.parse_args(arguments)
    try:
        make_archive(asked.tree.resolve(), asked.work.resolve(), asked.out)
    except TrnrtError as error:
        complain(str(error), error.hint)
        return 2
    say(f"wrote {asked.out}, {asked.out.stat().st_size:,} bytes")
    return 0


def make_archive(tree: Path, work: Path, out: Path) -> None:
    """Plan the networks that ``work`` doesn't have yet, and pack everything."""
    _check_commit(tree)
    work.mkdir(parents=True, exist_ok=True)
    labs = work / "labs.json"
    if not labs.exists():
        with working("timing the labs' cases"):
            _run(tree, "labs", str(labs))
    names = [(network.name, target) for network in NETWORKS for target in TARGETS]
    for name, target in names:
        if not (work / f"{name}_{target}.json").exists():
            with working(f"planning {name} for {target}"):
                _run(tree, "planning", name, target, str(work))
    _pack(tree, work, [f"{name}_{target}.json" for name, target in names]).write(out)


def _pack(tree: Path, work: Path, names: Sequence[str]) -> Library:
    cases = json.loads((work / "labs.json").read_text(encoding="utf-8"))
    cases += [json.loads((work / name).read_text(encoding="utf-8")) for name in names]
    files = {CASES: (json.dumps(cases, indent=1) + "\n").encode()}
    for case in cases:
        for part in case["parts"]:
            folder, _, stem = part["module"].rpartition(".")
            if folder == "modules":
                files[f"modules/{stem}.py"] = (work / f"{stem}.py").read_bytes()
    for path in sorted((tree / "kernels").rglob("*.py")):
        files[str(path.relative_to(tree))] = path.read_bytes()
    return Library(files | {name: (tree / "trnrt" / name).read_bytes() for name in ENTRIES})


def _check_commit(tree: Path) -> None:
    """OptionError if the tree is another commit's, or was edited."""
    if not tree.is_dir():
        raise OptionError(f"--tree: there is no folder {tree}", hint=f"git worktree add --detach {tree} {COMMIT}")
    head, changed = (_git(tree, *line) for line in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno")))
    if not head.startswith(COMMIT):
        raise OptionError(f"--tree: {tree} is at {head[:7]}, not at {COMMIT}")
    if changed:
        raise OptionError(f"--tree: {tree} has changes:\n{changed}")


def _git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OptionError(f"--tree: {done.stderr.strip()}")
    return done.stdout.strip()


def _run(tree: Path, module: str, *arguments: str) -> None:
    """Run a module of this folder with the tree's trnrt, which is imported from the working directory."""
    command = [sys.executable, "-m", f"benchmarks.baseline.{module}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=environment)
    if done.returncode:
        raise OptionError(f"{module} {' '.join(arguments)} failed with exit code {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
