"""A file: its imports, its functions, the host's calls. libcst keeps the layout and the comments of what stays."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from trnrt.nki.porting import host, importing, imports
from trnrt.nki.porting.calling import call
from trnrt.nki.porting.changes import enter_loop, merge_branches, stored_names
from trnrt.nki.porting.evaluating import as_node, evaluate
from trnrt.nki.porting.helpers import define_helpers
from trnrt.nki.porting.layout import lay_out
from trnrt.nki.porting.marks import IN_THE_KERNEL, PREFIX, Mark, UntranslatedError
from trnrt.nki.porting.scanning import find_indexes, makes_index, scan, uses_nki
from trnrt.nki.porting.scope import File, Held, Scope
from trnrt.nki.porting.statements import port_statement
from trnrt.nki.porting.tensors import Tensor

_EMPTY = cst.Module([])


class Porter:
    """Ports one file. ``marks`` and ``notes`` (by line) fill as it goes."""

    def __init__(self, source: str) -> None:
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
        self.module = wrapper.module
        self.lines = {node: place.start.line for node, place in wrapper.resolve(PositionProvider).items()}
        self.tree = tree = ast.parse(source)
        self.file = File(imports.aliases(tree), call=call, names=frozenset(_names(source)))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.file.indexes = find_indexes(self.file, tree)
        self.file.kernels = {node.name for node in functions if uses_nki(self.file, node)}
        self.marks: list[Mark] = []
        self.notes: dict[int, str] = {}

    def port(self) -> str:
        """The text of the ported file."""
        body = self._host_block(self.module.body, "")
        code = self.module.with_changes(body=body).code
        text = importing.port_imports(code, self.file, self.marks, self.tree)
        return define_helpers(text, self.file)

    # What the host runs.

    def _host_block(self, body: Sequence[cst.CSTNode], indent: str) -> list[cst.BaseStatement]:
        return [made for statement in body for made in self._host_statement(statement, indent)]

    def _host_statement(self, node: cst.CSTNode, indent: str) -> list[cst.BaseStatement]:
        if isinstance(node, cst.SimpleStatementLine):
            return self._host_line(node, indent)
        if isinstance(node, cst.FunctionDef) and node.name.value in self.file.kernels:
            return [self._kernel(node, indent)]
        assert isinstance(node, cst.BaseStatement)
        return [_with_blocks(node, lambda block: self._host_suite(block, indent))]

    def _host_suite(self, suite: cst.BaseSuite, indent: str) -> cst.BaseSuite:
        block = self._open(suite)
        body = self._host_block(block.body, indent + self._step(block))
        return suite if body == list(block.body) else block.with_changes(body=body)

    def _open(self, suite: cst.BaseSuite) -> cst.IndentedBlock:
        """A block; the statements after a colon as one on lines of its own."""
        if isinstance(suite, cst.IndentedBlock):
            return suite
        assert isinstance(suite, cst.SimpleStatementSuite)
        line = cst.SimpleStatementLine(suite.body, trailing_whitespace=suite.trailing_whitespace)
        self.lines[line] = self._line_of(suite)
        return cst.IndentedBlock([line])

    def _host_line(self, line: cst.SimpleStatementLine, indent: str) -> list[cst.BaseStatement]:
        if any(isinstance(small, (cst.Import, cst.ImportFrom)) for small in line.body):
            return [line]
        if all(imports.names_allocator(statement, self.file.aliases) for statement in _statements(line)):
            return []
        try:
            if any(makes_index(self.file, statement) for statement in _statements(line)):
                raise UntranslatedError("an index is made outside of a kernel", IN_THE_KERNEL)
            texts = host.port_lines(self.file, _statements(line))
        except UntranslatedError as error:
            return [self._mark_statement(line, error)]
        return [line] if texts is None else self._replace_line(line, texts, indent)[0]

    # Kernels, and functions that they call.

    def _kernel(self, node: cst.FunctionDef, indent: str, outer: Scope | None = None) -> cst.FunctionDef:
        """A function; once more, as long as untranslated statements need indexes that were left out."""
        marks, notes = list(self.marks), dict(self.notes)
        scope = self._scan(node, outer)
        made = self._function(node, scope, indent)
        while needed := (scope.dropped & scope.missed) - scope.kept:
            self.marks, self.notes = list(marks), dict(notes)
            scope = replace(self._scan(node, outer), kept=scope.kept | needed)
            made = self._function(node, scope, indent)
        if outer is not None:
            outer.missed |= scope.missed
        return made

    def _scan(self, node: cst.FunctionDef, outer: Scope | None) -> Scope:
        tree = ast.parse(_EMPTY.code_for_node(node.with_changes(leading_lines=[]))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        return scan(self.file, tree, outer)

    def _function(self, node: cst.FunctionDef, scope: Scope, indent: str) -> cst.FunctionDef:
        decorators, lines = host.port_decorators(self.file, node.decorators)
        node = node.with_changes(decorators=decorators, leading_lines=[*node.leading_lines, *lines])
        return node.with_changes(body=self._block(node.body, scope, indent))

    def _step(self, block: cst.BaseSuite) -> str:
        own = block.indent if isinstance(block, cst.IndentedBlock) else None
        return own if own is not None else self.module.default_indent

    def _block(self, suite: cst.BaseSuite, scope: Scope, indent: str) -> cst.BaseSuite:
        """A block of statements; comments of statements that went away stay, before the next one."""
        block = self._open(suite)
        inner, made, waiting = indent + self._step(block), list[cst.BaseStatement](), list[cst.EmptyLine]()
        for statement in block.body:
            found, left = self._statement(statement, scope, inner)
            if found:
                found[0] = _prepend_lines(found[0], waiting)
                waiting = []
            waiting += left
            made += found
        if made == list(block.body):
            return suite
        if not made:
            made = [cst.SimpleStatementLine([cst.Pass()])]
        footer = [*[line for line in waiting if line.comment is not None], *block.footer]
        return block.with_changes(body=made, footer=footer)

    def _statement(
        self, node: cst.BaseStatement, scope: Scope, indent: str
    ) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
        if isinstance(node, cst.SimpleStatementLine):
            return self._line(node, scope, indent)
        if isinstance(node, cst.FunctionDef):
            return [self._kernel(node, indent, scope)], []
        if isinstance(node, (cst.For, cst.While)):
            enter_loop(scope, stored_names(_tree(node)))
            scope.loops.append(isinstance(node, cst.For) and _is_traced_once(node))
        try:
            before, node = self._header_and_elif(node, scope)
        except UntranslatedError as error:
            scope.missed |= _names(_EMPTY.code_for_node(_header_of(node)))
            node, before = self._mark_statement(node, error), []
        lead = [self._parse(lay_out(text, len(indent))) for text in before]
        if lead:
            lead[0] = _prepend_lines(lead[0], list(getattr(node, "leading_lines", [])))
            node = node.with_changes(leading_lines=[])
        made = self._blocks(node, scope, indent)
        if isinstance(node, (cst.For, cst.While)):
            scope.loops.pop()
        return [*lead, made], []

    def _blocks(self, node: cst.BaseStatement, scope: Scope, indent: str) -> cst.BaseStatement:
        """A compound statement with its blocks ported: each branch of an ``if`` starts with what held before it."""
        made: cst.BaseStatement
        if not isinstance(node, cst.If):
            made = _with_blocks(node, lambda block: self._block(block, scope, indent))
            return made
        start, ends = scope.held.copy(), list[Held]()

        def branch(suite: cst.BaseSuite) -> cst.BaseSuite:
            scope.held = start.copy()
            ported = self._block(suite, scope, indent)
            if not _leaves(suite):
                ends.append(scope.held)
            return ported

        made = _with_blocks(node, branch)
        if not _has_else(node):
            ends.insert(0, start)
        merge_branches(scope, ends)
        return made

    def _header(self, node: cst.BaseStatement, scope: Scope) -> tuple[list[str], cst.BaseStatement]:
        """The iteration of a ``for``, the test of an ``if`` or a ``while``."""
        field = "iter" if isinstance(node, cst.For) else "test" if isinstance(node, (cst.If, cst.While)) else None
        if field is None:
            return [], node
        if isinstance(node, cst.For):
            for name in _names(_EMPTY.code_for_node(node.target)):
                scope.forget(name)
        old = ast.parse(_EMPTY.code_for_node(getattr(node, field)).strip(), mode="eval").body
        scope.before = []
        new = as_node(scope, evaluate(scope, old))
        if ast.dump(new) == ast.dump(old):
            return list(scope.before), node
        changes: dict[str, Any] = {field: cst.parse_expression(ast.unparse(new))}
        comments = [cst.EmptyLine(comment=comment) for comment in _comments_in([getattr(node, field)])]
        changes["leading_lines"] = [*getattr(node, "leading_lines", []), *comments]
        return list(scope.before), node.with_changes(**changes)

    def _header_and_elif(self, node: cst.BaseStatement, scope: Scope) -> tuple[list[str], cst.BaseStatement]:
        """The header of a statement, and those of the ``elif`` after it."""
        before, node = self._header(node, scope)
        if isinstance(node, cst.If) and isinstance(node.orelse, cst.If):
            more, other = self._header_and_elif(node.orelse, scope)
            if more:
                raise UntranslatedError("an elif computes with tiles", "write else, and an if in it")
            node = node.with_changes(orelse=other)
        return before, node

    def _line(
        self, line: cst.SimpleStatementLine, scope: Scope, indent: str
    ) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
        texts, old, notes = [], _statements(line), len(scope.notes)
        try:
            for statement in old:
                if imports.names_allocator(statement, self.file.aliases):
                    continue
                texts += port_statement(scope, statement)
        except UntranslatedError as error:
            scope.missed |= _names(_EMPTY.code_for_node(line))
            _forget(scope, old)
            return [self._mark_statement(line, error)], []
        for note in scope.notes[notes:]:
            self.notes.setdefault(self._line_of(line), note)
        if _same(texts, _statements(line)):
            return [line], []
        return self._replace_line(line, texts, indent)

    def _replace_line(
        self, line: cst.SimpleStatementLine, texts: list[str], indent: str
    ) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
        """New statements with the comments of the old one, and the comments that are left if there are none."""
        comments = [cst.EmptyLine(comment=comment) for comment in _comments_in(line.body)]
        leading = [*line.leading_lines, *comments]
        made = [self._parse(lay_out(text, len(indent))) for text in texts]
        trailing = line.trailing_whitespace
        if not made:
            own = [cst.EmptyLine(comment=trailing.comment)] if trailing.comment is not None else []
            return [], [*leading, *own]
        last = made[-1]
        if trailing.comment is None:
            pass
        elif isinstance(last, cst.SimpleStatementLine) and "\n" not in texts[-1]:
            made[-1] = last.with_changes(trailing_whitespace=trailing)
        else:
            leading.append(cst.EmptyLine(comment=trailing.comment))
        made[0] = _prepend_lines(made[0], leading)
        return made, []

    def _mark_statement(self, node: cst.BaseStatement, error: UntranslatedError) -> cst.BaseStatement:
        """The statement with a comment that says why it is as it was."""
        mark = Mark(self._line_of(node), error.reason, error.instead)
        self.marks.append(mark)
        lines = list(getattr(node, "leading_lines", []))
        if not any(line.comment is not None and line.comment.value == mark.comment for line in lines):
            lines.append(cst.EmptyLine(comment=cst.Comment(mark.comment)))
        return node.with_changes(leading_lines=lines)

    def _parse(self, text: str) -> cst.BaseStatement:
        made = cst.parse_statement(text + "\n", self.module.config_for_parsing)
        assert isinstance(made, cst.BaseStatement)
        return made

    def _line_of(self, node: cst.CSTNode) -> int:
        return self.lines.get(node, 1)


def _with_blocks(node: Any, make: Callable[[cst.BaseSuite], Any]) -> Any:
    """A compound statement with its blocks made anew, those of else, except and finally, too."""
    changes = dict[str, Any]()
    body = getattr(node, "body", None)
    if isinstance(body, cst.BaseSuite):
        changes["body"] = make(body)
    for field in ("orelse", "finalbody"):
        other = getattr(node, field, None)
        if other is not None:
            changes[field] = _with_blocks(other, make)
    if isinstance(node, cst.Try):
        changes["handlers"] = [_with_blocks(handler, make) for handler in node.handlers]
    return node.with_changes(**changes) if changes else node


def _tree(node: cst.BaseStatement) -> ast.AST:
    return ast.parse(_EMPTY.code_for_node(node.with_changes(leading_lines=[])))


def _leaves(suite: cst.BaseSuite) -> bool:
    """True if a block ends by leaving the function or the loop's turn."""
    last = suite.body[-1] if suite.body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(small, (cst.Return, cst.Raise, cst.Continue, cst.Break))


def _has_else(node: cst.If) -> bool:
    return _has_else(node.orelse) if isinstance(node.orelse, cst.If) else node.orelse is not None


def _statements(line: cst.SimpleStatementLine) -> list[ast.stmt]:
    return ast.parse(_EMPTY.code_for_node(line.with_changes(leading_lines=[]))).body


def _same(texts: list[str], old: list[ast.stmt]) -> bool:
    new = [statement for text in texts for statement in ast.parse(text).body]
    return [ast.dump(statement) for statement in new] == [ast.dump(statement) for statement in old]


def _prepend_lines(node: cst.BaseStatement, lines: list[cst.EmptyLine]) -> cst.BaseStatement:
    return node.with_changes(leading_lines=[*lines, *getattr(node, "leading_lines", [])]) if lines else node


def _names(code: str) -> set[str]:
    """The names in a piece of code."""
    return set(re.findall(r"[A-Za-z_]\w*", code))


def _is_traced_once(loop: cst.For) -> bool:
    """True for a loop whose body's Python the old compiler ran once."""
    text = _EMPTY.code_for_node(loop.iter)
    return re.search(r"\b(affine|sequential)_range\s*\(", text) is not None


def _header_of(node: cst.BaseStatement) -> cst.CSTNode:
    found = getattr(node, "iter", None) or getattr(node, "test", None)
    return found if found is not None else node


def _forget(scope: Scope, statements: list[ast.stmt]) -> None:
    """Make the tensors that an untranslated statement assigns ones of unknown shape."""
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name) and target.id not in scope.held.stale:
                scope.values[target.id] = Tensor(target.id)


class _Comments(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[cst.Comment] = []

    def visit_Comment(self, node: cst.Comment) -> None:  # noqa: N802 - libcst's name
        self.found.append(node)


def _comments_in(nodes: Sequence[cst.CSTNode]) -> list[cst.Comment]:
    """The comments between the brackets of a statement."""
    comments = _Comments()
    for node in nodes:
        node.visit(comments)
    return [comment for comment in comments.found if not comment.value.startswith(PREFIX)]
