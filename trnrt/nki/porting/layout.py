"""Text of generated statements: long calls are broken at their arguments."""

from __future__ import annotations

import ast

WIDTH = 110


def lay_out(text: str, column: int) -> str:
    """A statement for a block that starts at a column: a call that is too long has one argument a line.

    libcst indents what it inserts, so the lines start at the statement's own first column.
    """
    if "\n" in text or "  #" in text or column + len(text) <= WIDTH:
        return text
    node = ast.parse(text).body[0]
    call = getattr(node, "value", None)
    if not isinstance(call, ast.Call):
        return text
    prefix = f"{ast.unparse(node.targets[0])} = " if isinstance(node, ast.Assign) else ""
    prefix = "return " if isinstance(node, ast.Return) else prefix
    items = [ast.unparse(argument) for argument in call.args]
    items += [f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in call.keywords]
    inner = "".join(f"    {item},\n" for item in items)
    return f"{prefix}{ast.unparse(call.func)}(\n{inner})"
