"""Calls: to the functions of ``nl`` and ``nisa``, to the methods of tiles, to Python's and the file's own functions."""

from __future__ import annotations

import ast
from dataclasses import replace

from trnrt.nki.porting import evaluating, instructions, language
from trnrt.nki.porting.marks import NOT_PUBLIC, UntranslatedError
from trnrt.nki.porting.scope import Scope, Value
from trnrt.nki.porting.tensors import Plain, Tensor, tuple_text


def call(scope: Scope, node: ast.Call) -> Value:
    """The value of a call."""
    path = scope.file.resolve(node.func)
    if path is not None and path.startswith("nki."):
        return _call_of_aws(scope, path, node)
    if path is not None and path.startswith("numpy."):
        raise UntranslatedError(
            f"numpy.{path[6:]} in a kernel: today's kernels have no numpy",
            "compute it on the host, or with nl and nisa",
        )
    if isinstance(node.func, ast.Attribute):
        base = evaluating.evaluate(scope, node.func.value)
        if isinstance(base, Tensor):
            return _method(scope, base, node)
    rewritten = evaluating.rewrite_children(scope, node)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    if name in scope.file.kernels:
        return Tensor(ast.unparse(rewritten))  # a function of the file that computes with tiles
    return Plain(rewritten)


def _call_of_aws(scope: Scope, path: str, node: ast.Call) -> Value:
    """A call of AWS's functions."""
    module, _, name = path.rpartition(".")
    if module == "nki.language":
        return language.call(scope, name, node)
    if module == "nki.isa":
        return instructions.call(scope, name, node)
    instead = NOT_PUBLIC if "._" in path else "leave it out"
    raise UntranslatedError(f"{path} has no successor", _SUCCESSORS.get(path, instead))


_SUCCESSORS = {
    "nki.language.tile_size": "write nl.tile_size",
    "nki.benchmark": "predict the time with `trnrt nki profile`",
    "nki.profile": "write the report with `trnrt nki profile --html FILE`",
}


def _method(scope: Scope, base: Tensor, node: ast.Call) -> Value:
    """A method of a tile or a tensor in HBM."""
    assert isinstance(node.func, ast.Attribute)
    name = node.func.attr
    base = scope.bind(base, "tile")
    if name == "reshape":
        return _reshape(scope, base, node)
    if name in ("broadcast_to", "expand_dims", "astype"):
        function = {"broadcast_to": "broadcast_to", "expand_dims": "expand_dims", "astype": "copy"}[name]
        first = ast.parse(str(base.text), mode="eval").body
        arguments = node.args
        keywords = node.keywords
        if name == "astype" and arguments:
            arguments, keywords = [], [ast.keyword("dtype", arguments[0]), *keywords]
        return language.of_tensor(scope, function, base, ast.Call(first, arguments, keywords))
    if name in ("permute", "view", "broadcast"):
        return Plain(evaluating.rewrite_children(scope, node))
    raise UntranslatedError(f"tiles have no method {name} today", "see the methods of nki.language.NkiTensor")


def _reshape(scope: Scope, base: Tensor, node: ast.Call) -> Tensor:
    if base.partition:
        raise UntranslatedError(
            "a reshape of a tensor whose partition dimension moved to the front", "reshape it in its new order"
        )
    shape = node.args[0] if node.args else node.keywords[0].value
    items = shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else node.args if len(node.args) > 1 else None
    if items is None:
        text = evaluating.text_of(scope, shape)
        return replace(base, text=f"{base.text}.reshape({text})", shape=None, whole=False)
    sizes = [evaluating.text_of(scope, item) for item in items]
    known = tuple(None if size == "-1" else size for size in sizes)
    return Tensor(f"{base.text}.reshape({tuple_text(sizes)})", base.space, known, base.element)
