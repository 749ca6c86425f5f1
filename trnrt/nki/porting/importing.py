"""Imports: ``neuronxcc.nki`` is ``nki`` today; what the ported file uses no more goes away."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import libcst as cst

from trnrt.nki.porting.imports import OLD, find_import_lines, find_imports, find_lines, is_old
from trnrt.nki.porting.marks import NOT_PUBLIC, Mark
from trnrt.nki.porting.scope import USUAL, File

_PUBLIC = ("nki", "nki.language", "nki.isa", "nki.typing", "nki.compiler")


def port_imports(code: str, file: File, marks: list[Mark], old: ast.Module) -> str:
    """The file with today's imports, those that it needs added after the last of them; ``old``: the file as it was."""
    module = cst.parse_module(code)
    used = _used_names(code)
    visitor = _Imports(file, used, marks, find_lines(old))
    changed = module.visit(visitor)
    missing = [name for name in sorted(file.needed) if _is_used(name, file, used) and name not in visitor.modules]
    lines = [f"import {name}" + ("" if USUAL[name] == name else f" as {USUAL[name]}") for name in missing]
    return _insert(changed.code, lines) if lines else changed.code


def _used_names(code: str) -> set[str]:
    """The names that the file reads, other than in its imports."""
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def _is_used(module: str, file: File, used: set[str]) -> bool:
    return USUAL[module].split(".")[0] in used


def _insert(code: str, lines: list[str]) -> str:
    """The code with imports after its last import of ``nki``, else before its first import."""
    text = code.split("\n")
    places = find_import_lines(code)
    of_nki = [last for first, last in places if re.match(r"(import|from) nki\b", text[first - 1])]
    at = of_nki[-1] if of_nki else places[0][0] - 1 if places else 0
    return "\n".join([*text[:at], *lines, *text[at:]])


class _Imports(cst.CSTTransformer):
    """Rewrites the imports of the old namespace."""

    def __init__(self, file: File, used: set[str], marks: list[Mark], lines: dict[str, int]) -> None:
        self.file, self.used, self.marks, self.lines = file, used, marks, lines
        self.modules: set[str] = set()

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        body, left = self._port_body(updated_node.body)
        return updated_node.with_changes(body=body, footer=[*left, *updated_node.footer])

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body, left = self._port_body(updated_node.body)
        body = body or [cst.SimpleStatementLine([cst.Pass()])]
        return updated_node.with_changes(body=body, footer=[*left, *updated_node.footer])

    def _port_body(self, body: Sequence[cst.CSTNode]) -> tuple[list[cst.CSTNode], list[cst.EmptyLine]]:
        """The statements of a block, and the comments of imports at its end that went away."""
        made, waiting = list[cst.CSTNode](), list[cst.EmptyLine]()
        for node in body:
            lines = self._port_line(node) if isinstance(node, cst.SimpleStatementLine) else None
            if lines is None:
                made.append(_prepend_lines(node, waiting))
                waiting = []
                continue
            assert isinstance(node, cst.SimpleStatementLine)
            waiting += node.leading_lines
            for line in lines:
                if line.startswith("#"):
                    waiting.append(cst.EmptyLine(comment=cst.Comment(line)))
                    continue
                made.append(_prepend_lines(cst.parse_statement(line + "\n"), waiting))
                waiting = []
            trailing = node.trailing_whitespace
            if trailing.comment is None:
                continue
            if waiting or not lines:
                waiting.append(cst.EmptyLine(comment=trailing.comment))
            else:
                made[-1] = made[-1].with_changes(trailing_whitespace=trailing)
        return made, waiting

    def _port_line(self, node: cst.SimpleStatementLine) -> list[str] | None:
        """Today's imports in the place of a statement; None if it is no import of the old namespace."""
        text = cst.Module([]).code_for_node(node.with_changes(leading_lines=[]))
        if not re.match(r"\s*(import|from)\s", text):
            return None
        tree = ast.parse(text.strip())
        self.modules |= {module for module, name, _ in find_imports(tree) if name is None and module in USUAL}
        if not is_old(tree, text.strip()):
            return None
        return list(dict.fromkeys(line for found in find_imports(tree) for line in self._line(*found)))

    def _line(self, module: str, name: str | None, alias: str) -> list[str]:
        """Today's import in the place of one."""
        if module.split(".")[0] != OLD:
            return [_write(module, name, alias)]
        path = (module if name is None else f"{module}.{name}").removeprefix(f"{OLD}.")
        outer = module.removeprefix(f"{OLD}.")
        if name is None and alias == OLD:
            self.modules.add("nki")
            return ["import nki"]
        if not path.startswith("nki") or (path not in _PUBLIC and outer not in _PUBLIC):
            return self._mark(f"{module} is not part of today's NKI", NOT_PUBLIC, module, name, alias)
        if name == "*":
            reason = f"import * hides which names are {outer}'s"
            return self._mark(reason, "import the module by its name, and port that file", module, name, alias)
        if alias not in self.used or path in ("nki.compiler", "nki.baremetal", "nki.benchmark", "nki.profile"):
            return []
        if path in _PUBLIC:
            self.modules.add(path)
            return [f"import {path}" if alias == path else f"import {path} as {alias}"]
        return [f"from {outer} import {name}" + ("" if alias == name else f" as {alias}")]

    def _mark(self, reason: str, instead: str, module: str, name: str | None, alias: str) -> list[str]:
        """The old import under a comment."""
        mark = Mark(self.lines.get(module, 1), reason, instead)
        self.marks.append(mark)
        return [mark.comment, _write(module, name, alias)]


def _write(module: str, name: str | None, alias: str) -> str:
    if name is None:
        return f"import {module}" + ("" if alias == module.split(".")[0] else f" as {alias}")
    return f"from {module} import {name}" + ("" if alias == name else f" as {alias}")


def _prepend_lines(node: cst.CSTNode, lines: Sequence[cst.EmptyLine]) -> cst.CSTNode:
    """A statement with lines before its own."""
    return node.with_changes(leading_lines=[*lines, *getattr(node, "leading_lines", [])]) if lines else node
