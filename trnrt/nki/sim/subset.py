"""Check that a kernel file uses only the language and the API of an NKI release, without running it.

``check_source`` finds the Python that the NKI compiler refuses, by the table in ``subset_rules``; ``check_api`` the
names and arguments that ``nki``, ``nki.language`` and ``nki.isa`` do not have, by the data in ``nki_api_*.json``.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.level import Level, choose_level
from trnrt.nki.sim.subset_api import ApiTable, check_api, load_api
from trnrt.nki.sim.subset_rules import RULES, Rule
from trnrt.nki.sim.subset_source import (
    Finding,
    Function,
    Scope,
    SourceFile,
    check_parsed,
    code_children,
    finding_at,
    methods,
    reachable_definitions,
    read,
    scope_of,
    value_nodes,
)

__all__ = ["RULES", "ApiTable", "Finding", "Rule", "check_api", "check_file", "check_source", "load_api"]


def check_source(
    source: str,
    filename: str,
    *,
    extra_names: Collection[str] = (),
    all_functions: bool = False,
    entries: Collection[int] = (),
    level: Level | str | None = None,
) -> list[Finding]:
    """Find what the NKI compiler refuses in ``source`` at a language level, in the order of the file.

    Kernels (``@nki.jit``) are checked with every function and class of the file that they name; with ``all_functions``
    every function and class at module level, for a file that only other kernels use. ``entries`` are the first lines of
    functions that are kernels without a mark in the file. ``extra_names`` are built-in functions that the caller knows
    to exist when the file is compiled. A file that isn't Python has one finding, of rule "syntax".
    """
    try:
        added = read(source, filename, entries).entries
    except (SyntaxError, ValueError, RecursionError):
        added = frozenset()
    return list(_check_source(source, filename, frozenset(extra_names), all_functions, added, choose_level(level)))


@lru_cache(maxsize=16)
def _check_source(
    source: str, filename: str, extra_names: frozenset[str], all_functions: bool, entries: frozenset[int], rules: Level
) -> tuple[Finding, ...]:
    def check(file: SourceFile) -> Iterator[Finding]:
        roots = [*file.kernels, *(file.functions.values() if all_functions else ())]
        classes = [*file.classes.values()] if all_functions else []
        yield from _check_nodes(file.lambdas, "code", Scope(file), rules)
        for node in reachable_definitions(file, roots, classes):
            if isinstance(node, ast.expr):
                yield from _check_nodes(value_nodes(node), "values", Scope(file), rules)
            elif isinstance(node, ast.ClassDef):
                yield from _check_nodes([node], "class", Scope(file), rules)
                for method in methods(node):
                    yield from _check_code(file, method, extra_names, rules)
            else:
                yield from _check_code(file, node, extra_names, rules)
        if roots:
            yield from _check_nodes(ast.walk(file.tree), "file", Scope(file), rules)

    return tuple(check_parsed(source, filename, check, entries))


def check_file(function: Callable[..., Any], level: Level) -> None:
    """Raise KernelError with everything that the NKI compiler refuses in a kernel's file, one finding per line.

    ``function`` counts as a kernel with or without a mark in its file. Without a file (a kernel typed in interactively)
    there is no check.
    """
    filename = inspect.getsourcefile(function)
    source = "".join(linecache.getlines(filename)) if filename else ""
    if filename is None or not source:
        return
    findings = check_source(source, filename, entries=[function.__code__.co_firstlineno], level=level)
    if findings:
        lines = "\n".join(f"  {finding}" for finding in findings)
        raise KernelError(f"kernel {function.__name__}: the NKI compiler refuses its file:\n{lines}")


def _by_node_type(where: str, level: Level) -> dict[str, list[Rule]]:
    table: dict[str, list[Rule]] = defaultdict(list)
    for rule in RULES:
        if where in rule.where.split() and level in rule.levels:
            for name in rule.nodes.split():
                table[name].append(rule)
    return dict(table)


_TABLES = {
    (where, level): _by_node_type(where, level) for where in ("code", "class", "values", "file") for level in Level
}


def _check_nodes(nodes: Iterable[ast.AST], where: str, scope: Scope, level: Level) -> Iterator[Finding]:
    for node in nodes:
        for rule in _TABLES[where, level].get(type(node).__name__, ()):
            yield from _findings(rule, node, scope)


def _check_code(file: SourceFile, root: Function, extra_names: Collection[str], level: Level) -> Iterator[Finding]:
    scope, table = scope_of(file, root, frozenset(extra_names)), _TABLES["code", level]
    work: list[ast.AST] = [root]
    while work:
        node = work.pop()
        hits = [(rule, list(_findings(rule, node, scope))) for rule in table.get(type(node).__name__, ())]
        for _, findings in hits:
            yield from findings
        if not any(rule.opaque and findings for rule, findings in hits):
            work.extend(code_children(node))


def _findings(rule: Rule, node: ast.AST, scope: Scope) -> Iterator[Finding]:
    for place, detail in rule.find(node, scope):
        yield finding_at(scope.file, place, rule.id, rule.message.format(detail), rule.instead)
