"""One Python file as the language and API checks see it: its imports, its kernels, the code that they reach."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# trnrt.nki hands out AWS's modules under their usual short names.
_SEAM = {"trnrt.nki.nki": "nki", "trnrt.nki.nl": "nki.language", "trnrt.nki.nisa": "nki.isa"}


@dataclass(frozen=True)
class Finding:
    """One place of a file that the NKI compiler refuses. ``line`` and ``column`` count from 1.

    ``rule`` names the kind of finding; ``findings.code_of`` gives its stable code.
    """

    file: str
    line: int
    column: int
    rule: str
    message: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message} [{self.rule}]. {self.instead}"


@dataclass(frozen=True)
class SourceFile:
    """A parsed file. ``imports`` maps a local name to its dotted path; ``functions``, ``classes`` and ``values`` are
    the module's bindings; ``rebound`` are the names that some function declares ``global``. ``entries`` are the first
    lines of functions that are kernels without a mark in the file.
    """

    filename: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]
    imports: dict[str, str]
    functions: dict[str, Function]
    classes: dict[str, ast.ClassDef]
    values: dict[str, ast.expr]
    rebound: frozenset[str]
    entries: frozenset[int] = frozenset()

    def path_of(self, node: ast.AST) -> str:
        """The dotted path of a name or attribute chain: ``nl.exp`` is ``nki.language.exp``. Otherwise ""."""
        if isinstance(node, ast.Attribute):
            base = self.path_of(node.value)
            return _canonical(f"{base}.{node.attr}") if base else ""
        return self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    @cached_property
    def kernels(self) -> list[Function]:
        """Functions decorated with ``@nki.jit``, those handed to ``nki.jit(...)`` or ``nki.simulate(...)``, entries."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTIONS):
                if _first_line(node) in self.entries or any(
                    is_jit(decorator_path(self, d)) for d in node.decorator_list
                ):
                    found.append(node)
            elif isinstance(node, ast.Call) and (wrapped := wrapped_function(self, node)) is not None:
                found.append(wrapped)
        return list(dict.fromkeys(found))

    @property
    def lambdas(self) -> list[ast.Lambda]:
        """Entries that are lambda expressions."""
        return [n for n in ast.walk(self.tree) if isinstance(n, ast.Lambda) and n.lineno in self._unnamed_lines]

    @property
    def _unnamed_lines(self) -> frozenset[int]:
        return self.entries - {_first_line(kernel) for kernel in self.kernels}

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def module_names(self) -> set[str]:
        return {*self.imports, *self.functions, *self.classes, *self.values}


@dataclass(frozen=True)
class Scope:
    """One function or method under check; ``root`` is None for rules about the file itself.

    ``local`` are the names that it binds, ``outer`` those bound by enclosing functions.
    """

    file: SourceFile
    root: Function | None = None
    local: frozenset[str] = frozenset()
    outer: frozenset[str] = frozenset()
    extra_names: frozenset[str] = frozenset()

    @property
    def is_method(self) -> bool:
        return self.root is not None and isinstance(self.file.parents[self.root], ast.ClassDef)

    def is_foreign(self, name: str) -> bool:
        """True if ``name`` comes from outside the function."""
        return name not in self.local


def _first_line(function: Function) -> int:
    """A function's first line by Python's count: that of its first decorator."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def read(source: str, filename: str, entries: Collection[int] = ()) -> SourceFile:
    """Parse ``source``. Raises SyntaxError, ValueError or RecursionError if it isn't Python.

    ``entries`` that the file itself marks as kernels add nothing: most calls share one parsed file.
    """
    file = _parse(source, filename)
    added = frozenset(entries).difference(map(_first_line, file.kernels)) if entries else frozenset[int]()
    return replace(file, entries=added) if added else file


@lru_cache(maxsize=16)
def _parse(source: str, filename: str) -> SourceFile:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes: the file's own affair
        tree = ast.parse(source, filename)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    functions: dict[str, Function] = {}
    classes: dict[str, ast.ClassDef] = {}
    values: dict[str, ast.expr] = {}
    for statement in _module_level(tree):
        if isinstance(statement, _FUNCTIONS):
            functions[statement.name] = statement
        elif isinstance(statement, ast.ClassDef):
            classes[statement.name] = statement
        else:
            values.update(_assignments(statement))
    rebound = frozenset(name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names)
    return SourceFile(filename, tree, parents, _imports(tree), functions, classes, values, rebound)


def is_jit(path: str) -> bool:
    """True if a decorator's path is ``nki.jit``, old namespaces included."""
    *modules, name = path.split(".")
    return name == "jit" and "nki" in modules


def decorator_path(file: SourceFile, decorator: ast.expr) -> str:
    """The dotted path of a decorator, with the module's aliases resolved."""
    path = file.path_of(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return file.path_of(file.values[path]) or path if path in file.values else path


def wrapped_function(file: SourceFile, call: ast.Call) -> Function | None:
    """The function of this file that ``nki.jit(f)`` or ``nki.simulate(f)`` makes a kernel of."""
    path = file.path_of(call.func)
    if call.args and isinstance(call.args[0], ast.Name) and (is_jit(path) or path.endswith("nki.simulate")):
        return file.functions.get(call.args[0].id)
    return None


def scope_of(file: SourceFile, root: Function, extra_names: frozenset[str]) -> Scope:
    around = [a for a in file.ancestors(root) if isinstance(a, _FUNCTIONS)]
    outer = frozenset(name for function in around for name in bound_names(function))
    return Scope(file, root, bound_names(root), outer, extra_names)


def bound_names(root: ast.AST) -> frozenset[str]:
    """Every name that is bound inside ``root``, in functions nested in it too."""
    names: set[str] = set()
    elsewhere: set[str] = set()
    for node in ast.walk(root):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node is not root:
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Global):
            elsewhere.update(node.names)
    return frozenset(names - elsewhere)


def code_children(node: ast.AST) -> list[ast.AST]:
    """The children that the compiler evaluates: without annotations and decorators."""
    if isinstance(node, _FUNCTIONS):
        return [*node.args.defaults, *[d for d in node.args.kw_defaults if d is not None], *node.body]
    if isinstance(node, ast.AnnAssign):
        return [node.target] if node.value is None else [node.target, node.value]
    return list(ast.iter_child_nodes(node))


def reachable_definitions(
    file: SourceFile, roots: list[Function], classes: list[ast.ClassDef]
) -> list[Definition | ast.expr]:
    """``roots`` and ``classes``, and every function, class and module-level value of the file that they name."""
    known: dict[str, Definition | ast.expr] = {**file.values, **file.classes, **file.functions}
    found: dict[Definition | ast.expr, None] = dict.fromkeys([*roots, *classes])
    work: list[Definition | ast.expr] = list(found)
    while work:
        root = work.pop()
        for name in names_used(file, root):
            target = known.get(name)
            if target is not None and target not in found:
                found[target] = None
                work.append(target)
    return list(found)


def methods(definition: ast.ClassDef) -> list[Function]:
    return [s for s in definition.body if isinstance(s, ast.FunctionDef)]


def value_nodes(value: ast.expr) -> Iterator[ast.expr]:
    """The parts of a module-level value that the compiler sees: Python has evaluated calls and loops before."""
    yield value
    if isinstance(value, (ast.Tuple, ast.List, ast.Dict, ast.UnaryOp)):
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from value_nodes(child)


def names_used(file: SourceFile, root: Definition | ast.expr) -> Iterator[str]:
    """The names from outside that the code of a function, class or module-level value loads."""
    if isinstance(root, ast.expr):
        for part in value_nodes(root):
            name = part.func if isinstance(part, ast.Call) else part
            if isinstance(name, ast.Name) and (name is part or name.id in file.classes):
                yield name.id
        return
    for function in methods(root) if isinstance(root, ast.ClassDef) else [root]:
        local = bound_names(function)
        work: list[ast.AST] = [function]
        while work:
            node = work.pop()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
                yield node.id
            work.extend(code_children(node))


def _canonical(path: str) -> str:
    for ours, theirs in _SEAM.items():
        if path == ours or path.startswith(ours + "."):
            return theirs + path[len(ours) :]
    return path


def _imports(tree: ast.Module) -> dict[str, str]:
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name] = _canonical(f"{module}.{alias.name}")
    return found


def _module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, those inside ``if`` and ``try`` included."""
    work: list[ast.AST] = list(reversed(tree.body))
    while work:
        node = work.pop()
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.ExceptHandler)):
            work.extend(reversed([c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.expr)]))


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    yield name.id, statement.value
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id, statement.value or statement.annotation
    elif isinstance(statement, ast.For):
        yield from ((n.id, statement.iter) for n in ast.walk(statement.target) if isinstance(n, ast.Name))


def check_parsed(
    source: str, filename: str, check: Callable[[SourceFile], Iterable[Finding]], entries: Collection[int] = ()
) -> list[Finding]:
    """The findings of ``check`` in the order of the file; one of rule "syntax" if Python can't parse ``source``."""
    try:
        file = read(source, filename, entries)
    except (SyntaxError, ValueError, RecursionError) as error:
        line, column = (error.lineno, error.offset) if isinstance(error, SyntaxError) else (1, 1)
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return [Finding(filename, line or 1, column or 1, "syntax", f"not Python: {message}", "Correct the syntax")]
    return sorted(dict.fromkeys(check(file)), key=lambda f: (f.line, f.column, f.rule))


def finding_at(file: SourceFile, node: ast.AST, rule: str, message: str, instead: str) -> Finding:
    """A finding at the place of ``node``."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    return Finding(file.filename, line, column, rule, message, instead)
