"""Notebooks, run without Jupyter: their code cells in order, in this process, with the outputs that Jupyter stores."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any


def executed(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of a fresh run: what cells print, and the value of their last expression."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for count, cell in enumerate((each for each in notebook["cells"] if each["cell_type"] == "code"), 1):
        cell["execution_count"] = count
        cell["outputs"] = _run("".join(cell["source"]), f"{path.name}, cell {count}", names, count)
    return notebook


def _run(source: str, place: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, place, "exec"), names)
        value = eval(compile(ast.Expression(last.value), place, "eval"), names) if isinstance(last, ast.Expr) else None
    outputs: list[dict[str, Any]] = []
    if out.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": out.getvalue().splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": [type(value).__name__ if hasattr(value, "_repr_svg_") else repr(value)]}
        if hasattr(value, "_repr_svg_"):
            data["image/svg+xml"] = value._repr_svg_().splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def write(path: Path, notebook: dict[str, Any]) -> None:
    """Store the notebook as Jupyter does."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
