"""The arguments of a call of ``nl`` or ``nisa``: by name, with the mask, and shapes with their partition dimension."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trnrt.nki.porting import evaluating
from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.masks import Mask, parse_mask
from trnrt.nki.porting.scope import Scope, Value
from trnrt.nki.porting.tensors import Make, Plain, Tensor, narrow


class Arguments:
    """The arguments of a call by name, with its mask."""

    def __init__(self, scope: Scope, node: ast.Call, names: Sequence[str], what: str) -> None:
        self.scope, self.what = scope, what
        if any(isinstance(argument, ast.Starred) for argument in node.args) or any(
            k.arg is None for k in node.keywords
        ):
            raise UntranslatedError(f"{what} is called with * or **", "write its arguments")
        if len(node.args) > len(names):
            raise UntranslatedError(f"{what} has {len(node.args)} arguments by place", "name them")
        self.nodes: dict[str, ast.expr] = dict(zip(names, node.args, strict=False))
        self.nodes |= {str(keyword.arg): keyword.value for keyword in node.keywords}
        self.mask: Mask = parse_mask(scope, self.nodes.pop("mask", None))

    def pop(self, name: str) -> ast.expr | None:
        node = self.nodes.pop(name, None)
        return None if isinstance(node, ast.Constant) and node.value is None else node

    def text(self, name: str) -> str | None:
        """The text of an argument, None if it isn't given."""
        node = self.pop(name)
        return None if node is None else evaluating.text_of(self.scope, node)

    def value(self, name: str) -> Value:
        """The value of an argument that must be given."""
        return evaluating.evaluate(self.scope, self._take(name))

    def _take(self, name: str) -> ast.expr:
        node = self.nodes.pop(name, None)
        if node is None:
            raise UntranslatedError(f"{self.what} has no argument {name!r}", "see the page of the old function")
        return node

    def tensor(self, name: str) -> Tensor:
        """An argument that is a tile, with a name if it is a result; what is not known is taken for one."""
        return self.as_tensor(self.value(name), name)

    def as_tensor(self, value: Value, name: str) -> Tensor:
        if isinstance(value, Plain) and isinstance(value.node, ast.Constant):
            instead = "fill a tile with nl.full, and pass that"
            raise UntranslatedError(f"{name} of {self.what} is {value.node.value!r}, not a tile", instead)
        if isinstance(value, Plain):
            return Tensor(ast.unparse(value.node))
        if not isinstance(value, Tensor):
            raise UntranslatedError(f"{name} of {self.what} is an index", "make a tile of it with nisa.iota")
        return self.scope.bind(value, name)

    def cut(self, name: str) -> tuple[Value, Value]:
        """An argument, and the part of it that the mask leaves: by its own slices if it has some."""
        node, bounds = self._take(name), self.mask.bounds
        whole = evaluating.evaluate(self.scope, node)
        if not isinstance(whole, Tensor):
            return whole, whole
        whole = self.scope.bind(whole, name)
        if bounds and isinstance(node, ast.Subscript):
            part = evaluating.evaluate(self.scope, node, bounds)
            return whole, part
        return whole, narrow(whole, bounds)

    def rest(self) -> str:
        """The remaining arguments as they are, by name, each after a comma."""
        names = list(self.nodes)
        texts = {name: self.text(name) for name in names}
        return "".join(f", {name}={'None' if text is None else text}" for name, text in texts.items())

    def finish(self) -> None:
        if self.nodes:
            raise UntranslatedError(f"{self.what} has no {', '.join(sorted(self.nodes))} today", "leave it out")

    def conditional(self, make: Make) -> Make:
        """``make`` under the mask's conditions."""
        if not self.mask.conditions:
            return make
        return lambda dst: f"if {' and '.join(self.mask.conditions)}:\n    {make(dst)}"


def parse_shape(scope: Scope, node: ast.expr | None) -> tuple[tuple[str, ...] | None, int]:
    """The sizes of a shape, the partition dimension's first, and where that was."""
    if not isinstance(node, (ast.Tuple, ast.List)):
        return None, 0
    marked = [
        at
        for at, item in enumerate(node.elts)
        if isinstance(item, ast.Call) and scope.file.resolve(item.func) == "nki.language.par_dim"
    ]
    partition = marked[0] if marked else 0
    sizes = [evaluating.text_of(scope, item) for item in node.elts]
    sizes.insert(0, sizes.pop(partition))
    return tuple(sizes), partition
