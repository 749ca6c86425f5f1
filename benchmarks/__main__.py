"""``python -m benchmarks``: list the benchmarks."""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def lines() -> list[str]:
    """A line for each runnable folder: its command, and the first line of its docstring."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*/__main__.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        what = text.partition("\n")[0].partition(": ")[2].rstrip(".")
        found.append(f"python -m benchmarks.{path.parent.name:<12} {what}")
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join([*lines(), "", "Each has --help.", ""]))
    sys.exit(0 if set(sys.argv[1:]) <= {"-h", "--help"} else 2)
