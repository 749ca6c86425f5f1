"""``python benchmarks/baseline/run.py``: the same as ``python -m benchmarks.baseline``."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    runpy.run_module("benchmarks.baseline", run_name="__main__")
