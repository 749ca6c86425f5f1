"""Code of the host: decorators, and calls of ``nki.baremetal``, ``nki.simulate_kernel`` and ``nki.benchmark``."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.scope import File

_LEFT_OUT = "skip_middle_end_transformations", "enable_stack_allocator", "force_auto_alloc"
_KERNELS = ("nki.jit", "nki.baremetal", "nki.benchmark", "nki.profile", "nki.trace", "nki.simulate")
_PREDICT = {
    "nki.benchmark": "nki.benchmark measured on a device; predict the time with `trnrt nki profile`",
    "nki.profile": "nki.profile captured on a device; write a report with `trnrt nki profile --html FILE`",
}


def port_decorators(file: File, decorators: Sequence[cst.Decorator]) -> tuple[list[cst.Decorator], list[cst.EmptyLine]]:
    """The decorators of today: ``@nki.jit`` for all that made kernels. Comments of those that go away are returned."""
    kept, lines, kernel = [], list[cst.EmptyLine](), False
    for decorator in decorators:
        node = ast.parse(cst.Module([]).code_for_node(decorator.decorator), mode="eval").body
        path = file.resolve(node.func if isinstance(node, ast.Call) else node) or ""
        if path.startswith("nki.compiler.") and path.rpartition(".")[2] in _LEFT_OUT:
            lines += _comments_of(decorator)
        elif path in _KERNELS:
            if kernel:
                lines += _comments_of(decorator)
                continue
            kernel = True
            text = file.spell("nki.jit")
            kept.append(decorator.with_changes(decorator=cst.parse_expression(text)))
            if path in _PREDICT:
                comment = cst.EmptyLine(comment=cst.Comment(f"# {_PREDICT[path]}"))
                kept[-1] = kept[-1].with_changes(leading_lines=[*decorator.leading_lines, comment])
        else:
            kept.append(decorator)
    return kept, lines


def _comments_of(decorator: cst.Decorator) -> list[cst.EmptyLine]:
    comment = decorator.trailing_whitespace.comment
    return [*decorator.leading_lines, *([] if comment is None else [cst.EmptyLine(comment=comment)])]


def port_lines(file: File, statements: Sequence[ast.stmt]) -> list[str] | None:
    """The statements of the host as they are today; None if nothing changes.

    Raises:
        UntranslatedError: for what has no successor.
    """
    rewriter = _Rewriter(file)
    texts = [ast.unparse(rewriter.visit(statement)) for statement in statements]
    return texts if rewriter.changed else None


class _Rewriter(ast.NodeTransformer):
    def __init__(self, file: File) -> None:
        self.file = file
        self.changed = False

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        path = self.file.resolve(node.func)
        if path == "nki.simulate_kernel" and node.args:
            self.changed = True
            kernel = ast.Call(ast.parse(self.file.spell("nki.simulate"), mode="eval").body, [node.args[0]], [])
            return ast.Call(kernel, node.args[1:], node.keywords)
        if isinstance(node.func, ast.Call) and self.file.resolve(node.func.func) == "nki.baremetal" and node.args:
            self.changed = True  # nki.baremetal(options)(kernel)
            return node.args[0]
        if path == "nki.baremetal" and not node.args:
            return node
        if path == "nki.baremetal" and len(node.args) == 1:
            self.changed = True
            return node.args[0]
        if path in _PREDICT:
            raise UntranslatedError(f"{path} is gone", _PREDICT[path].partition("; ")[2])
        if path == "nki.baremetal":
            raise UntranslatedError("nki.baremetal is gone", "call the kernel")
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        launched = isinstance(node.value, ast.Name) and node.value.id in self.file.kernels
        cores = isinstance(node.slice, ast.Constant) and node.slice.value in (1, 2)
        if launched and not cores:
            raise UntranslatedError(
                f"{ast.unparse(node)} launches a grid of programs",
                "loop over the tiles in the kernel; kernel[2] launches it on two physical cores",
            )
        return node
