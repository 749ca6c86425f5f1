"""Searches for the constructs of the rule table: one for each row that needs more than a node's type."""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Iterator
from typing import Any

from trnrt.nki.sim.subset_source import Function, Scope, decorator_path, is_jit, names_used, wrapped_function

# A place that breaks a rule, and a detail for the message ("" if none).
Place = tuple[ast.AST, str]
Find = Callable[[Any, Scope], Iterator[Place]]

INT_MAX = 2**31 - 1
BUILTINS = frozenset(
    [
        "abs",
        "bool",
        "dict",
        "divmod",
        "float",
        "int",
        "isinstance",
        "len",
        "list",
        "max",
        "min",
        "print",
        "range",
        "slice",
        "str",
        "tuple",
        "type",
    ]
)
MATH_FUNCTIONS = frozenset(["ceil", "floor", "gcd", "log2", "log10", "pow", "sqrt"])
NUMPY_CONSTANTS = frozenset(["numpy.inf", "numpy.nan", "numpy.pi", "numpy.e", "numpy.newaxis"])
LOOP_FUNCTIONS = {"fori_loop": 2, "while_loop": 1}  # where each takes its body

_MUTATORS = frozenset(
    [
        "add",
        "append",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "reverse",
        "setdefault",
        "sort",
        "update",
    ]
)
_MODULE_VARIABLES = frozenset(["__name__", "__file__", "__doc__"])


def always(node: ast.AST, scope: Scope) -> Iterator[Place]:
    yield node, ""


def when(test: Callable[[Any, Scope], bool]) -> Find:
    """The node itself where ``test`` holds."""

    def find(node: Any, scope: Scope) -> Iterator[Place]:
        if test(node, scope):
            yield node, ""

    return find


# Expressions


def identity_not_with_none(node: ast.Compare, scope: Scope) -> bool:
    right = node.comparators[0]
    with_none = len(node.ops) == 1 and isinstance(right, ast.Constant) and right.value is None
    return not with_none and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)


def chained_membership(node: ast.Compare, scope: Scope) -> bool:
    return len(node.ops) > 1 and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)


def keys_not_strings(node: ast.Dict, scope: Scope) -> Iterator[Place]:
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            yield key or value, ""


def keyword_expansions(node: ast.Call, scope: Scope) -> Iterator[Place]:
    yield from ((keyword.value, "") for keyword in node.keywords if keyword.arg is None)


def format_spec(node: ast.FormattedValue, scope: Scope) -> bool:
    return node.format_spec is not None


def large_integer(node: ast.Constant, scope: Scope) -> Iterator[Place]:
    if type(node.value) is int and node.value > INT_MAX:
        yield node, str(node.value)


def not_a_value(node: ast.Constant, scope: Scope) -> Iterator[Place]:
    if isinstance(node.value, (bytes, complex)):
        yield node, type(node.value).__name__


def stray_ellipsis(node: ast.Constant, scope: Scope) -> bool:
    parent = scope.file.parents[node]
    if isinstance(parent, ast.Tuple):
        parent = scope.file.parents[parent]
    return node.value is Ellipsis and not isinstance(parent, (ast.Subscript, ast.Expr))


def string_operation(node: ast.Attribute | ast.BinOp, scope: Scope) -> bool:
    operand = node.value if isinstance(node, ast.Attribute) else node.left
    text = operand.value if isinstance(operand, ast.Constant) else operand
    return isinstance(text, (str, ast.JoinedStr)) and (isinstance(node, ast.Attribute) or isinstance(node.op, ast.Mod))


def matrix_product(node: ast.BinOp | ast.AugAssign, scope: Scope) -> bool:
    return isinstance(node.op, ast.MatMult)


def other_builtins(node: ast.Name, scope: Scope) -> Iterator[Place]:
    known = BUILTINS | _MODULE_VARIABLES | scope.extra_names | scope.outer
    if (
        isinstance(node.ctx, ast.Load)
        and hasattr(builtins, node.id)
        and node.id not in known
        and scope.is_foreign(node.id)
        and node.id not in scope.file.module_names()
    ):
        yield node, node.id


def min_max_arguments(node: ast.Call, scope: Scope) -> Iterator[Place]:
    if isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and scope.is_foreign(node.func.id):
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if node.keywords or (len(node.args) not in (1, 2) and not starred):
            yield node, node.func.id


def numpy_names(node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[Place]:
    path = _outside_path(node, scope)
    if path.startswith("numpy.") and path not in NUMPY_CONSTANTS:
        yield node, path


def other_math(node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[Place]:
    path = _outside_path(node, scope)
    name = path.removeprefix("math.")
    is_function = path != name and callable(getattr(math, name, None))
    if is_function and (isinstance(node, ast.Name) or name not in MATH_FUNCTIONS):
        yield node, path


def _outside_path(node: ast.Name | ast.Attribute, scope: Scope) -> str:
    """The path of a whole attribute chain that starts at an imported name; "" for the chain's inner nodes."""
    whole = not isinstance(scope.file.parents[node], ast.Attribute) and isinstance(node.ctx, ast.Load)
    name = _first_name(node) if whole else ""
    return scope.file.path_of(node) if name in scope.file.imports and _not_shadowed(name, scope) else ""


def _first_name(node: ast.AST) -> str:
    """The name that a chain of attributes and subscripts starts with; "" if it starts with something else."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _not_shadowed(name: str, scope: Scope) -> bool:
    return scope.is_foreign(name) and name not in scope.outer


# Statements


def for_target(node: ast.For, scope: Scope) -> Iterator[Place]:
    if not isinstance(node.target, ast.Name):
        yield node.target, ""


def loop_else(node: ast.For | ast.While, scope: Scope) -> Iterator[Place]:
    if node.orelse:
        yield node.orelse[0], ""


def assign_targets(node: ast.Assign | ast.AnnAssign, scope: Scope) -> Iterator[Place]:
    if isinstance(node, ast.AnnAssign):
        if node.value is None and not isinstance(node.target, ast.Name):
            yield node.target, ""
        return
    mutated = [target for target in node.targets if isinstance(target, (ast.Attribute, ast.Subscript))]
    yield from ((target, "") for target in mutated[1:])
    for target in node.targets:
        yield from ((part, "") for part in _parts(target) if isinstance(part, (ast.List, ast.Attribute, ast.Subscript)))


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    """The targets that a tuple on the left unpacks into; and a list, which is not allowed there."""
    if isinstance(target, ast.List):
        yield target
    elif isinstance(target, ast.Tuple):
        for element in target.elts:
            yield element
            yield from _parts(element) if isinstance(element, ast.Tuple) else ()


def other_with(node: ast.With, scope: Scope) -> bool:
    return not _is_no_reorder(node, scope)


def _is_no_reorder(node: ast.With, scope: Scope) -> bool:
    if len(node.items) != 1 or node.items[0].optional_vars is not None:
        return False
    call = node.items[0].context_expr
    return (
        _called_name(call, scope) == "no_reorder" and isinstance(call, ast.Call) and not call.args and not call.keywords
    )


def _called_name(node: ast.AST, scope: Scope) -> str:
    """The last name of a called path. The compiler recognises loops and blocks by it, from any module."""
    return scope.file.path_of(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _is_dynamic_loop(node: ast.AST, scope: Scope) -> bool:
    if isinstance(node, ast.For):
        return _called_name(node.iter, scope) == "dynamic_range"
    return _called_name(node, scope) in LOOP_FUNCTIONS


def exits_of_dynamic_loop(node: ast.For, scope: Scope) -> Iterator[Place]:
    work: list[tuple[ast.AST, bool]] = [(s, True) for s in node.body] if _is_dynamic_loop(node, scope) else []
    while work:
        inner, this_loop = work.pop()
        if isinstance(inner, ast.Return) or (this_loop and isinstance(inner, (ast.Break, ast.Continue))):
            yield inner, type(inner).__name__.lower()
        elif not isinstance(inner, (ast.FunctionDef, ast.Lambda)):
            within = this_loop and not isinstance(inner, (ast.For, ast.While))
            work.extend((child, within) for child in ast.iter_child_nodes(inner))


def while_register(node: ast.While, scope: Scope) -> Iterator[Place]:
    """A loop whose whole test is a name that the function gives a register, and nothing else."""
    if not isinstance(node.test, ast.Name) or scope.root is None:
        return
    name = node.test.id
    bindings = [n for n in ast.walk(scope.root) if isinstance(n, ast.Assign) and _assigns(n, name)]
    others = [n for n in ast.walk(scope.root) if isinstance(n, ast.Name) and n.id == name]
    stores = [n for n in others if not isinstance(n.ctx, ast.Load)]
    made = [_called_name(binding.value, scope) == "register_alloc" for binding in bindings]
    if made and all(made) and len(stores) == len(made):
        yield node.test, name


def _assigns(node: ast.Assign, name: str) -> bool:
    return len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name


def dynamic_loop_in_order(node: ast.With, scope: Scope) -> Iterator[Place]:
    if _is_no_reorder(node, scope):
        inside = (inner for statement in node.body for inner in ast.walk(statement))
        yield from ((inner, "") for inner in inside if _is_dynamic_loop(inner, scope))


def loop_body_returns(name: str, wants_value: bool) -> Find:
    """Calls of the loop function ``name`` whose body returns a value although it must not, or the reverse."""

    def find(node: ast.Call, scope: Scope) -> Iterator[Place]:
        body = _loop_body(node, scope) if _called_name(node, scope) == name else None
        if body is None:
            return
        returns = [n for n in _own_nodes(body) if isinstance(n, ast.Return) and n.value is not None]
        if wants_value and not returns:
            yield body, body.name
        elif not wants_value:
            yield from ((statement, body.name) for statement in returns)

    return find


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions inside it."""
    work: list[ast.AST] = list(function.body)
    while work:
        node = work.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            work.extend(ast.iter_child_nodes(node))


def _loop_body(call: ast.Call, scope: Scope) -> Function | None:
    """The function that a loop calls: of several with its name, the last one above the call."""
    given = [k.value for k in call.keywords if k.arg == "body_fun"]
    given += call.args[LOOP_FUNCTIONS[_called_name(call, scope)] :][:1]
    name = given[0].id if given and isinstance(given[0], ast.Name) else ""
    nested = [n for n in ast.walk(scope.root) if isinstance(n, ast.FunctionDef)] if scope.root else []
    above = [n for n in nested if n.name == name and n.lineno < call.lineno]
    return max(above, key=lambda n: n.lineno, default=scope.file.functions.get(name))


def nested_function(node: Function, scope: Scope) -> bool:
    """A function within the one under check, unless it is only used as the body of a device loop."""
    if node is scope.root or scope.root is None:
        return False
    uses = [n for n in ast.walk(scope.root) if isinstance(n, ast.Name) and n.id == node.name]
    return not uses or not all(_is_loop_argument(use, scope) for use in uses)


def _is_loop_argument(use: ast.Name, scope: Scope) -> bool:
    parent = scope.file.parents[use]
    call = scope.file.parents[parent] if isinstance(parent, ast.keyword) else parent
    return _called_name(call, scope) in LOOP_FUNCTIONS and use is not getattr(call, "func", None)


# Functions and their scopes


def parameters(kind: str) -> Find:
    """The ``*args`` ("vararg"), ``**kwargs`` ("kwarg") or keyword-only ("bare star") parameters of a function."""

    def find(node: Function, scope: Scope) -> Iterator[Place]:
        if kind == "bare star":
            found = node.args.kwonlyargs[0] if node.args.kwonlyargs and node.args.vararg is None else None
        else:
            found = node.args.vararg if kind == "vararg" else node.args.kwarg
        if found is not None:
            yield found, found.arg

    return find


def other_decorators(node: Function, scope: Scope) -> Iterator[Place]:
    for decorator in node.decorator_list if node is scope.root else []:
        path = decorator_path(scope.file, decorator)
        if not is_jit(path) and not (scope.is_method and path == "staticmethod"):
            yield decorator, ast.unparse(decorator)


def jit_keywords(*names: str) -> Find:
    """Arguments of a kernel's ``@nki.jit(...)`` with one of ``names``."""

    def find(node: Function, scope: Scope) -> Iterator[Place]:
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and is_jit(decorator_path(scope.file, decorator)):
                yield from ((k.value, str(k.arg)) for k in decorator.keywords if k.arg in names)

    return find


def closure(node: ast.Name, scope: Scope) -> Iterator[Place]:
    if isinstance(node.ctx, ast.Load) and node.id in scope.outer and scope.is_foreign(node.id):
        yield node, node.id


def old_namespace(node: Function, scope: Scope) -> Iterator[Place]:
    """A kernel function whose code or decorators use names of ``neuronxcc.nki``; annotations may."""
    file = scope.file
    names = [_first_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
    if node is scope.root:
        paths = {file.imports.get(name, "") for name in [*names, *names_used(file, node)]}
        old = sorted(path for path in paths if f"{path}.".startswith("neuronxcc.nki."))
        yield from ((node, ", ".join(old)) for _ in old[:1])


def module_state(node: ast.AST, scope: Scope) -> Iterator[Place]:
    """Writes to module-level names, and reads of module variables that some function rebinds."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id in scope.file.rebound and _not_shadowed(node.id, scope):
            yield node, node.id
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            yield from _module_container(node.func.value, scope)
    elif isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        name, file = _first_name(node), scope.file
        if name in {**file.values, **file.classes, **file.functions} and _not_shadowed(name, scope):
            yield node, name


def _module_container(node: ast.expr, scope: Scope) -> Iterator[Place]:
    name = node.id if isinstance(node, ast.Name) else ""
    value = scope.file.values.get(name)
    made = isinstance(value, ast.Call) and scope.file.path_of(value.func) in ("list", "dict", "set")
    container = made or isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))
    if container and _not_shadowed(name, scope):
        yield node, name


# The file


def list_arguments(node: Function | ast.Call, scope: Scope) -> Iterator[Place]:
    """Lists that a kernel takes by default, or is called with in the same file."""
    entries = scope.file.kernels
    if isinstance(node, ast.Call):
        from_host = not any(a in entries for a in scope.file.ancestors(node))
        given = [*node.args, *[k.value for k in node.keywords]] if from_host else []
        entry = _called_kernel(node.func, scope) if given else None
    else:
        entry = node if node in entries else None
        given = [*node.args.defaults, *[d for d in node.args.kw_defaults if d is not None]]
    if entry in entries and entry is not None:
        yield from ((value, entry.name) for value in given if isinstance(value, (ast.List, ast.ListComp)))


def _called_kernel(callee: ast.expr, scope: Scope) -> Function | None:
    """The kernel behind ``kernel``, ``kernel[2]``, ``nki.simulate(kernel)`` and ``nki.jit(kernel)[2]``."""
    if isinstance(callee, ast.Subscript):
        return _called_kernel(callee.value, scope)
    if isinstance(callee, ast.Call):
        return wrapped_function(scope.file, callee)
    return scope.file.functions.get(callee.id) if isinstance(callee, ast.Name) else None


# Classes


def class_bases(node: ast.ClassDef, scope: Scope) -> Iterator[Place]:
    names = [scope.file.path_of(base).rpartition(".")[2] for base in node.bases]
    if names not in (["NKIObject"], ["Enum"]):
        yield node, node.name


def class_keywords(node: ast.ClassDef, scope: Scope) -> Iterator[Place]:
    if node.keywords or getattr(node, "type_params", None):
        yield node, node.name


def class_body(node: ast.ClassDef, scope: Scope) -> Iterator[Place]:
    yield from ((statement, node.name) for statement in node.body if not _belongs_in_class(statement))


def _belongs_in_class(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    if isinstance(statement, ast.AnnAssign):
        return isinstance(statement.target, ast.Name)
    return isinstance(statement, (ast.Pass, ast.FunctionDef))


def class_decorators(node: ast.ClassDef, scope: Scope) -> Iterator[Place]:
    for decorator in node.decorator_list:
        if decorator_path(scope.file, decorator).rpartition(".")[2] != "dataclass":
            yield decorator, ast.unparse(decorator)
