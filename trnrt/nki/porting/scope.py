"""A function that is being ported: what its names hold, the statements that an expression needs first, new names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from trnrt.nki.porting.indexes import Grid, Index
from trnrt.nki.porting.marks import IN_THE_KERNEL, UntranslatedError
from trnrt.nki.porting.tensors import Plain, Tensor, narrow, replace_text

Value = Tensor | Index | Grid | Plain

# Operators that kernels of the old namespace borrowed from numpy.
NUMPY_OPERATORS = {
    "max": "maximum",
    "min": "minimum",
    "sum": "add",
    "true_divide": "divide",
    "power": "power",
}
_SAME = "add subtract multiply maximum minimum divide exp square sqrt tanh abs negative equal not_equal less less_equal"
_SAME += (
    " greater greater_equal logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor log sin"
)
_SAME += " float32 float16 int32 int16 int8 uint32 uint16 uint8 invert left_shift right_shift reciprocal sign"
NUMPY_OPERATORS |= {name: name for name in _SAME.split()} | {"bool_": "bool_"}


@dataclass
class File:
    """A file that is ported: the meaning of its names, and the imports and helpers that it will need."""

    aliases: Mapping[str, str]
    needed: set[str] = field(default_factory=set)
    helpers: dict[str, str] = field(default_factory=dict)  # their names in the file, by ours
    names: frozenset[str] = frozenset()  # all that the file has
    indexes: frozenset[str] = frozenset()  # those that it makes outside of its functions
    kernels: set[str] = field(default_factory=set)  # its functions that compute with nl or nisa
    call: Callable[[Scope, ast.Call], Value] | None = None  # the value of a call: calling.py, which needs this file

    def resolve(self, node: ast.expr) -> str | None:
        """The dotted name that ``nl.load`` and the like mean, as in ``nki.language.load``; else None."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            return None if base is None else f"{base}.{node.attr}".removeprefix("neuronxcc.")
        return None

    def spell(self, path: str) -> str:
        """A name of today's ``nki.language`` or ``nki.isa``, by the file's own alias of the module or the usual one."""
        module, _, name = path.rpartition(".")
        self.needed.add(module)
        own = next((alias for alias, meant in self.aliases.items() if meant == module), None)
        return f"{own or USUAL[module]}.{name}"


USUAL = {"nki.language": "nl", "nki.isa": "nisa", "nki": "nki"}


@dataclass
class Held:
    """The names of a function at a statement, with the tensors, indexes and masks that they hold.

    ``stale``: why an index or a mask can't be used any more.
    """

    values: dict[str, Value] = field(default_factory=dict)
    masks: dict[str, ast.expr] = field(default_factory=dict)
    stale: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Held:
        return Held(dict(self.values), dict(self.masks), dict(self.stale))


@dataclass
class Scope:
    """The names of a function, in the order of its statements. ``own``: those that it assigns, and its arguments."""

    file: File
    taken: set[str]
    held: Held = field(default_factory=Held)
    own: frozenset[str] = frozenset()
    before: list[str] = field(default_factory=list)
    outputs: frozenset[str] = frozenset()
    accumulators: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()  # index names that an untranslated statement still uses
    dropped: set[str] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)  # names in untranslated statements
    notes: list[str] = field(default_factory=list)
    loops: list[bool] = field(default_factory=list)  # around a statement, outermost first: True if AWS traced it once

    @property
    def values(self) -> dict[str, Value]:
        return self.held.values

    def look_up(self, name: str) -> Value | None:
        """The tensor or the index that a name holds; None for anything else.

        Raises:
            UntranslatedError: if it is an index that can't be used here, or a mask.
        """
        self.check_stale(name)
        if name in self.file.indexes - self.own:
            raise UntranslatedError(f"{name} is an index that is made outside of the kernel", IN_THE_KERNEL)
        if name in self.held.masks:
            raise UntranslatedError(f"{name}, a mask, is used outside of mask=", "select with nisa.affine_select")
        return self.held.values.get(name)

    def check_stale(self, name: str) -> None:
        if name in self.held.stale:
            raise UntranslatedError(self.held.stale[name], "compute it again, right before its use")

    def nl(self, name: str) -> str:
        return self.file.spell(f"nki.language.{name}")

    def nisa(self, name: str) -> str:
        return self.file.spell(f"nki.isa.{name}")

    def new_name(self, hint: str) -> str:
        """A name that the function does not use yet."""
        name, number = hint, 2
        while name in self.taken:
            name, number = f"{hint}_{number}", number + 1
        self.taken.add(name)
        return name

    def helper(self, name: str) -> str:
        """A function that the ported file defines at its top, if it is used; by a name that the file doesn't have."""
        own = name
        while own in self.file.names:
            own += "_"
        self.file.helpers[name] = own
        return own

    def allocate(self, tensor: Tensor, name: str) -> str:
        """The statement that allocates a tensor for a result."""
        shape, space = tensor.shape_text(), tensor.space or "sbuf"
        return f"{name} = {self.nl('ndarray')}({shape}, dtype={tensor.element}, buffer={self.nl(space)})"

    def bind(self, tensor: Tensor, hint: str) -> Tensor:
        """The tensor with a name of its own, or a view of a named one: statements before this one make it."""
        if tensor.text is not None and _is_view(tensor.text):
            return tensor
        name = self.new_name(_name_of(tensor, hint))
        self.make(tensor, name)
        return self.name_tensor(tensor, name)

    def learn_rank(self, tensor: Tensor, axis: ast.expr) -> Tensor:
        """A tile of unknown rank that is reduced along axis 1 alone, the last one, has two dimensions."""
        items = axis.elts if isinstance(axis, (ast.Tuple, ast.List)) else [axis]
        if tensor.shape is not None or [ast.unparse(item) for item in items] != ["1"]:
            return tensor
        root = tensor.root or tensor.text
        shape = f"{root}.shape[0]", f"{root}.shape[1]"
        for name, value in self.values.items():
            if isinstance(value, Tensor) and value.shape is None and (value.root or name) == root:
                self.values[name] = replace(value, shape=shape)
        return replace(tensor, shape=shape)

    def refresh(self, value: Value) -> Value:
        """A named tensor, as far as it is known by now."""
        held = self.values.get(value.text) if isinstance(value, Tensor) and value.text is not None else None
        return value if held is None else held

    def forget(self, name: str) -> None:
        """The name holds something else from now on: no other tensor has its shape any more."""
        for held in (self.held.values, self.held.masks, self.held.stale):
            held.pop(name, None)
        for other, value in self.values.items():
            if isinstance(value, Tensor) and value.root == name:
                self.values[other] = replace(value, root=other if value.shape is None else None)

    def name_tensor(self, tensor: Tensor, name: str) -> Tensor:
        kept = replace_text(tensor, name)
        self.values[name] = kept
        return kept

    def make(self, tensor: Tensor, name: str) -> None:
        """Write the statements that give ``name`` the result."""
        if tensor.text is not None:
            self.before.append(f"{name} = {tensor.text}")
            return
        if tensor.make is None:
            raise UntranslatedError("this result has no tensor", "allocate it with nl.ndarray")
        self.before.append(self.allocate(tensor, name))
        if tensor.bounds:
            self.before.append(f"{self.nisa('memset')}(dst={name}, value=0)  # what the mask leaves out")
        self.before.append(tensor.make(masked_text(replace_text(tensor, name), tensor)))


def _name_of(tensor: Tensor, hint: str) -> str:
    """A name for a result: what computes it, as in exp_tile."""
    if hint.endswith(("_new", "_tile")) or hint in _RESULTS:
        return hint
    text = tensor.text if tensor.text is not None else tensor.make("d").rpartition("\n")[2] if tensor.make else hint
    node = ast.parse(text.strip(), mode="eval").body
    function = node.func if isinstance(node, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function) if function else hint
    return _MADE.get(name, f"{name}_tile")


_MADE = {"dma_copy": "loaded", "nc_matmul": "product", "nc_transpose": "transposed"}
_RESULTS = ("product", "copied", "transposed", "stationary", "selected", "stored", "result", "unused")


def masked_text(target: Tensor, result: Tensor) -> str:
    """The text of a destination, cut to what the result's mask leaves."""
    cut = narrow(target, dict(result.bounds))
    assert cut.text is not None
    return cut.text


def _is_view(text: str) -> bool:
    """True for a name, or slices and views of one: reading it again costs nothing and gives the same."""
    node = ast.parse(text, mode="eval").body
    while isinstance(node, (ast.Subscript, ast.Call, ast.Attribute)):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute) or node.func.attr not in VIEWS:
                return False
            node = node.func.value
        else:
            node = node.value
    return isinstance(node, ast.Name)


VIEWS = ("reshape", "reshape_dim", "permute", "expand_dim", "squeeze_dim", "broadcast", "flatten_dims", "view", "ap")
