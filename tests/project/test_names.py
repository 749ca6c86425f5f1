"""Names say what functions do or return, and no function is written twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from naming import bare_names, is_bare

ROOT = Path(__file__).resolve().parents[2]
LEFT = 44
"""Bare participles and prepositions that are still there: rename some and lower it."""


def test_what_is_a_bare_name() -> None:
    assert all(map(is_bare, ["told", "_held", "of", "_into", "padded_with", "made_from"]))
    assert not any(
        map(is_bare, ["read", "speed", "padded_batch", "place_tiles", "is_held", "to_json", "_x", "__init__"])
    )


def test_no_new_function_has_a_bare_name() -> None:
    """``python tests/shared/naming.py`` lists them."""
    assert len(list(bare_names())) <= LEFT


def test_no_function_is_written_twice() -> None:
    """Not the same body of three statements or more, docstrings aside."""
    bodies: defaultdict[str, list[str]] = defaultdict(list)
    for room in ("trnrt", "kernels", "serve"):
        for path in (path for path in (ROOT / room).rglob("*.py") if path.resolve() == path):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                    if sum(isinstance(part, ast.stmt) for one in body for part in ast.walk(one)) >= 3:
                        bodies[ast.dump(ast.Module(body, []))].append(f"{path.relative_to(ROOT)}: {node.name}")
    assert len(bodies) > 2000
    assert [names for names in bodies.values() if len(names) > 1] == []
