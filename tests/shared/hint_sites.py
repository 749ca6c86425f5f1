"""Every place of the source that gives a hint: its message and hint as patterns, of what the program may print."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import trnrt

ROOT = Path(trnrt.__file__).parent
REFUSALS = {"Blocked", "NotStatic", "Blocker", "Refusal"}
ANYTHING = ".*"


@dataclass(frozen=True)
class Site:
    """A call that makes an error, at ``place`` (file:line)."""

    place: str
    kind: str
    message: str
    hint: str

    def gives(self, message: str, hint: str) -> bool:
        """True if this call may have printed the two."""
        flags = re.DOTALL
        return bool(re.fullmatch(self.message, message, flags) and re.fullmatch(self.hint, hint, flags))


def find_sites(folder: str, kinds: set[str]) -> Iterator[Site]:
    """The calls in the package's ``folder`` of one of ``kinds``, with each alternative of what they print."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        module = _assigned(tree.body)
        for scope in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            known = module | _assigned(scope.body)
            for call in ast.walk(scope):
                if isinstance(call, ast.Call) and _name(call.func) in kinds:
                    yield from _sites(path, call, known)


def _sites(path: Path, call: ast.Call, known: dict[str, list[ast.expr]]) -> Iterator[Site]:
    kind = _name(call.func)
    first = 2 if kind == "Blocker" else 0
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    message = call.args[first] if len(call.args) > first else None
    hint = named.get("hint", call.args[first + 1] if len(call.args) > first + 1 else None)
    place = f"{path.relative_to(ROOT)}:{call.lineno}"
    default = re.escape(trnrt.planner.lowering.blocked.FALLBACK) if kind in ("Blocked", "NotStatic") else ""
    for text, way in product(_patterns(message, known), [default] if hint is None else _patterns(hint, known)):
        yield Site(place, kind, text, way)


def _patterns(node: ast.expr | None, known: dict[str, list[ast.expr]]) -> list[str]:
    """What an expression may give, as patterns; a pattern that fits anything where only the run can tell."""
    if isinstance(node, ast.Constant):
        return [re.escape(str(node.value))]
    if isinstance(node, ast.JoinedStr):
        parts = [_patterns(one, known) if isinstance(one, ast.Constant) else [ANYTHING] for one in node.values]
        return ["".join(chosen) for chosen in product(*parts)]
    if isinstance(node, ast.IfExp):
        return [*_patterns(node.body, known), *_patterns(node.orelse, known)]
    if isinstance(node, ast.Name) and node.id in known:
        return [pattern for one in known[node.id] for pattern in _patterns(one, {})]
    return [ANYTHING]


def _assigned(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """The names that are assigned anywhere in ``body``, with each of their values."""
    found: dict[str, list[ast.expr]] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, []).append(node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = [ast.JoinedStr([ast.FormattedValue(node.value, -1, None)])]
    return found


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
