"""Instructions of ``nisa``: those that returned a tile write into a destination today.

A row of ``INSTRUCTIONS`` says which arguments are tiles, and what tile the result is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from trnrt.nki.porting import evaluating
from trnrt.nki.porting.arguments import Arguments, parse_shape
from trnrt.nki.porting.indexes import Index, combine
from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.masks import split_mask
from trnrt.nki.porting.operators import spread_all
from trnrt.nki.porting.reducing import arrange_axes, reduced_shape
from trnrt.nki.porting.scope import Scope, Value
from trnrt.nki.porting.tensors import Make, Plain, Tensor, narrow, tuple_text

Tiles = dict[str, Tensor]
Shape = Callable[[Tiles], Tensor]


@dataclass(frozen=True)
class Instruction:
    """The old order of the arguments, which of them may be tiles; the result is ``like`` a tile, or of a ``shape``."""

    parameters: str
    tiles: str
    like: str = ""
    shape: Shape | None = None
    dtype: str = ""
    space: str = "sbuf"
    matmul: bool = False
    broadcasts: bool = False


def _product(tiles: Tiles) -> Tensor:
    """stationary [K, M], moving [K, N...]: [M, N...]."""
    stationary, moving = tiles["stationary"], tiles["moving"]
    if moving.shape is None:
        return Tensor(None, likeness=f"({stationary.size(1)},) + {moving.text}.shape[1:]")
    return Tensor(None, shape=(stationary.size(1), *[moving.size(dim) for dim in range(1, len(moving.shape))]))


def _transposed_shape(tiles: Tiles) -> Tensor:
    data = tiles["data"]
    if data.shape is not None and len(data.shape) > 2:
        raise UntranslatedError("nc_transpose of a tile of more than two dimensions", "reshape it to two")
    return Tensor(None, shape=(data.size(1), data.size(0)))


def _transposed_source(tiles: Tiles) -> Tensor:
    return _transposed_shape({"data": tiles["src"]})


def _columns(argument: str, columns: int) -> Shape:
    return lambda tiles: Tensor(None, shape=(tiles[argument].size(0), str(columns)))


def _one_partition(tiles: Tiles) -> Tensor:
    data = tiles["data"]
    if data.shape is None:
        return Tensor(None, likeness=f"(1,) + {data.text}.shape[1:]")
    return Tensor(None, shape=("1", *data.shape[1:]))


INSTRUCTIONS = {
    "tensor_copy": Instruction("src", "src", "src"),
    "tensor_tensor": Instruction("data1 data2 op", "data1 data2", "data1", broadcasts=True),
    "tensor_scalar": Instruction(
        "data op0 operand0 reverse0 op1 operand1 reverse1", "data operand0 operand1", "data"
    ),
    "scalar_tensor_tensor": Instruction("data op0 operand0 op1 operand1", "data operand0 operand1", "data"),
    "tensor_tensor_scan": Instruction("data0 data1 initial op0 op1 reverse0 reverse1", "data0 data1 initial", "data0"),
    "activation": Instruction("op data", "data bias scale reduce_res", "data"),
    "activation_reduce": Instruction("op data", "data bias scale reduce_res", "data"),
    "reciprocal": Instruction("data", "data", "data"),
    "dropout": Instruction("data prob", "data prob", "data"),
    "range_select": Instruction("", "on_true_tile bound0 bound1 reduce_res", "on_true_tile"),
    "nc_match_replace8": Instruction("data vals imm", "data vals dst_idx", "data"),
    "tensor_scalar_reduce": Instruction("data op0 operand0", "data operand0 reduce_res", "data"),
    "nc_matmul": Instruction(
        "stationary moving is_stationary_onezero is_moving_onezero is_transpose", "stationary moving",
        shape=_product, dtype="float32", space="psum", matmul=True,
    ),
    "nc_transpose": Instruction("data", "data", shape=_transposed_shape, space="psum"),
    "bn_stats": Instruction("data", "data", shape=_columns("data", 6)),
    "bn_aggr": Instruction("data", "data", shape=_columns("data", 2)),
    "max8": Instruction("src", "src", shape=_columns("src", 8)),
    "nc_find_index8": Instruction("data vals", "data vals", shape=_columns("data", 8), dtype="uint32"),
    "dma_transpose": Instruction("src", "src", shape=_transposed_source),
    "tensor_partition_reduce": Instruction("op data", "data", shape=_one_partition),
}  # fmt: skip

# These wrote into a destination before, too.
_IN_PLACE = {
    "dma_copy": "dst src",
    "tensor_copy_predicated": "src dst predicate",
    "select_reduce": "dst predicate on_true on_false",
    "nc_stream_shuffle": "src dst shuffle_mask",
    "dma_transpose": "dst src axes",
}
_AS_IT_IS = ("get_nc_version",)
_LEFT = {
    "tensor_copy_dynamic_src": "copy from tensor.ap(pattern, scalar_offset=register) with nisa.tensor_copy",
    "tensor_copy_dynamic_dst": "copy into tensor.ap(pattern, scalar_offset=register) with nisa.tensor_copy",
    "local_gather": "write nisa.local_gather(dst=..., src_buffer=..., index=...) or nisa.nc_n_gather",
    "sequence_bounds": "write nisa.sequence_bounds(dst=..., segment_ids=...) into a tile of its shape",
}


def call(scope: Scope, name: str, node: ast.Call) -> Value:
    """A call of ``nisa.<name>``."""
    if name in _AS_IT_IS:
        return Plain(evaluating.rewrite_children(scope, node))
    if name in _IN_PLACE and (name != "dma_transpose" or any(keyword.arg == "dst" for keyword in node.keywords)):
        return _in_place(scope, name, node)
    special = {"tensor_reduce": _reduce, "iota": _iota, "affine_select": _select, "memset": _memset}.get(name)
    if special is not None:
        return special(scope, node)
    if name not in INSTRUCTIONS:
        raise UntranslatedError(f"nisa.{name} has no translation", _LEFT.get(name, "see today's nki.isa"))
    return _make_result(scope, name, INSTRUCTIONS[name], node)


def _make_result(scope: Scope, name: str, row: Instruction, node: ast.Call) -> Tensor:
    """The result of an instruction that returned a tile."""
    if any(keyword.arg == "dst" for keyword in node.keywords):
        return _in_place(scope, name, node)  # type: ignore[return-value]  # a file between the namespaces
    arguments = Arguments(scope, node, row.parameters.split(), f"nisa.{name}")
    dtype = arguments.text("dtype")
    bounds = arguments.mask.bounds
    if bounds and (row.matmul or row.space == "psum"):
        raise UntranslatedError(f"nisa.{name} with a mask", "slice the operands to what is there")
    tiles, given, parts = dict[str, Tensor](), dict[str, Tensor](), list[str]()
    for argument in list(arguments.nodes):
        if argument in row.tiles.split():
            value, part = arguments.cut(argument)
            if isinstance(value, Tensor) and isinstance(part, Tensor):
                tiles[argument], given[argument] = value, part
                continue
            parts.append(f"{argument}={ast.unparse(evaluating.as_node(scope, value))}")
        else:
            parts.append(f"{argument}={arguments.text(argument)}")
    for argument in (row.like or row.tiles).split():
        if argument not in tiles and argument not in ("bias", "scale", "reduce_res", "dst_idx"):
            tiles[argument] = given[argument] = _unknown(parts, argument, f"nisa.{name}")
    result = _result(row, tiles, scope) if row.shape is not None else like(tiles[row.like])
    element = dtype or _dtype(scope, row, tiles, parts)
    origin = element if not element.endswith(".dtype") else result.origin
    result = replace(result, dtype=element, space=_space(row, parts), origin=origin)
    if row.broadcasts:
        given = spread_all(scope, given, cut=bool(bounds))
    if not row.like:  # the mask is one of the operand: of the result it leaves partitions
        bounds = {dim: bound for dim, bound in bounds.items() if dim == 0}
    texts = [f"{argument}={tile.text}" for argument, tile in given.items()] + parts
    function = scope.nisa(name)
    make = arguments.conditional(lambda dst: f"{function}(dst={dst}, {', '.join(texts)})")
    return replace(result, make=make, bounds=tuple(bounds.items()), matmul=row.matmul)


def _unknown(parts: list[str], argument: str, what: str) -> Tensor:
    """An argument of unknown kind, taken for a tile."""
    text = next((part.partition("=")[2] for part in parts if part.startswith(f"{argument}=")), None)
    if text is None:
        raise UntranslatedError(f"{what} has no argument {argument!r}", "see the page of the old function")
    parts.remove(f"{argument}={text}")
    return Tensor(text)


def _result(row: Instruction, tiles: Tiles, scope: Scope) -> Tensor:
    assert row.shape is not None
    return row.shape(tiles)


def like(tile: Tensor) -> Tensor:
    """A result of the shape of a tile."""
    known = tile.shape is not None and all(size is not None for size in tile.shape)
    root = tile.root or (tile.text if tile.whole and not known else None)
    likeness = None if known else f"{root or tile.text}.shape"
    return Tensor(None, "sbuf", tile.shape, tile.element, root=root, likeness=likeness, origin=tile.origin)


def _dtype(scope: Scope, row: Instruction, tiles: Tiles, parts: list[str]) -> str:
    if row.dtype and not (row.matmul and "is_transpose=True" in parts):
        return scope.nl(row.dtype)
    if row.broadcasts and scope.nl("float32") in [tile.origin for tile in tiles.values()]:
        return scope.nl("float32")  # the widest of two dtypes
    return tiles[(row.like or row.tiles).split()[0]].element


def _space(row: Instruction, parts: list[str]) -> str:
    on_vector = any(part.startswith("engine=") and "vector" in part for part in parts)
    return "sbuf" if on_vector and row.space == "psum" else row.space


def _in_place(scope: Scope, name: str, node: ast.Call) -> Plain:
    """An instruction that has a destination: its views and its mask are translated."""
    parameters = _IN_PLACE.get(name, "dst").split()
    arguments = Arguments(scope, node, parameters, f"nisa.{name}")
    arguments.nodes.pop("dtype", None)
    if arguments.nodes.pop("dst_rmw_op", None) is not None:
        raise UntranslatedError("nisa.dma_copy has no dst_rmw_op today", "write nisa.dma_compute with reduce_op=nl.add")
    order: list[str] = [argument for argument in ("dst", "src") if argument in arguments.nodes]
    order += [argument for argument in arguments.nodes if argument not in order]
    texts = []
    for argument in order:
        value = arguments.value(argument)
        if isinstance(value, Tensor):
            value = narrow(arguments.as_tensor(value, argument), arguments.mask.bounds)
            if name == "dma_copy" and argument == "src" and value.space == "psum":
                value = copy_to_sbuf(scope, value)
        text = value.text if isinstance(value, Tensor) else ast.unparse(evaluating.as_node(scope, value))
        texts.append(f"{argument}={text}")
    statement = f"{scope.nisa(name)}({', '.join(texts)})"
    if arguments.mask.conditions:
        scope.before.append(f"if {' and '.join(arguments.mask.conditions)}:\n    {statement}")
        return Plain(ast.Constant(None))
    return Plain(ast.parse(statement, mode="eval").body)


def copy_to_sbuf(scope: Scope, tile: Tensor) -> Tensor:
    """A copy of a tile of PSUM, which DMA can't reach."""
    make = scope.nisa("tensor_copy")
    return scope.bind(replace(like(tile), make=lambda dst: f"{make}(dst={dst}, src={tile.text})"), "copied")


def _reduce(scope: Scope, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["op", "data", "axis"], "nisa.tensor_reduce")
    dtype, axis = arguments.text("dtype"), arguments.nodes.pop("axis", None)
    data = arguments.tensor("data")
    keepdims = arguments.text("keepdims") == "True"
    if axis is None:
        raise UntranslatedError("nisa.tensor_reduce without axis", "name the axes")
    moved, axes = arrange_axes(scope.learn_rank(data, axis), axis)
    result = reduced_shape(moved, axes, keepdims)
    cut = narrow(moved, arguments.mask.bounds)
    function, op, rest = scope.nisa("tensor_reduce"), arguments.text("op"), arguments.rest()
    kept = ", keepdims=True" if keepdims else ""
    make = arguments.conditional(
        lambda dst: f"{function}(dst={dst}, op={op}, data={cut.text}, axis={tuple_text(axes)}{rest}{kept})"
    )
    bounds = {dim: bound for dim, bound in arguments.mask.bounds.items() if dim == 0}
    return replace(result, dtype=dtype or data.element, make=make, bounds=tuple(bounds.items()))


def _iota(scope: Scope, node: ast.Call) -> Tensor:
    """``nisa.iota(i + j * 4, dtype)``: the pattern of the index."""
    arguments = Arguments(scope, node, ["expr", "dtype"], "nisa.iota")
    value, dtype = arguments.value("expr"), arguments.text("dtype")
    if not isinstance(value, Index):
        raise UntranslatedError("nisa.iota of something but an index", "write nisa.iota(dst, pattern, offset)")
    shape, pattern, channel = _pattern(value)
    function = scope.nisa("iota")
    make = arguments.conditional(
        lambda dst: f"{function}(dst={dst}, pattern={pattern}, offset={value.start}, channel_multiplier={channel})"
    )
    bounds = tuple(arguments.mask.bounds.items())
    if bounds:
        raise UntranslatedError("nisa.iota has no mask today", "leave the mask out: the rest isn't read")
    return Tensor(None, "sbuf", shape, dtype or scope.nl("int32"), make=make)


def _pattern(index: Index) -> tuple[tuple[str, ...], str, str]:
    """The shape, the pattern of the free dimensions and the step of the partitions."""
    if any(axis.place is None for axis, _ in index.axes):
        raise UntranslatedError("an nl.arange without a place", "write nl.arange(n)[:, None]")
    places = max(axis.places for axis, _ in index.axes)
    by_place = {axis.place: (axis.size, factor) for axis, factor in index.axes}
    steps = [by_place.get(place, ("1", "0")) for place in range(places)]
    pattern = ", ".join(f"[{factor}, {size}]" for size, factor in steps[1:])
    return tuple(size for size, _ in steps), f"[{pattern}]", steps[0][1]


_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.GtE: "greater_equal",
    ast.Gt: "greater",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
}


def _select(scope: Scope, node: ast.Call) -> Tensor:
    """``nisa.affine_select(pred=i >= j, ...)``: the predicate is an index that is compared with 0; of several, each in
    its turn."""
    arguments = Arguments(scope, node, ["pred", "on_true_tile", "on_false_value"], "nisa.affine_select")
    pred, dtype = arguments.nodes.pop("pred", None), arguments.text("dtype")
    tile, on_false = arguments.tensor("on_true_tile"), arguments.text("on_false_value")
    if arguments.mask.bounds:
        raise UntranslatedError("nisa.affine_select with a mask", "select all, and use the part that the mask left")
    if tile.space == "psum":
        tile = copy_to_sbuf(scope, tile)  # the GpSimd engine can't reach PSUM
    comparisons = split_mask(scope, pred)
    for comparison in comparisons[:-1]:
        tile = scope.bind(replace(like(tile), make=_selection(scope, comparison, tile, on_false)), "selected")
    make = arguments.conditional(_selection(scope, comparisons[-1], tile, on_false))
    return replace(like(tile), dtype=dtype or tile.element, make=make)


def _selection(scope: Scope, pred: ast.expr, tile: Tensor, on_false: str | None) -> Make:
    """The instruction for one comparison."""
    if not isinstance(pred, ast.Compare) or len(pred.ops) != 1 or type(pred.ops[0]) not in _COMPARISONS:
        raise UntranslatedError("nisa.affine_select by something but comparisons of indexes", "select in steps")
    sides = [evaluating.evaluate(scope, side) for side in (pred.left, pred.comparators[0])]
    left, right = (side if isinstance(side, Index) else evaluating.as_node(scope, side) for side in sides)
    difference = combine(left, ast.Sub(), right)
    _, pattern, channel = _pattern(_place_axes(difference, left, right))
    function, compare = scope.nisa("affine_select"), scope.nl(_COMPARISONS[type(pred.ops[0])])
    return lambda dst: (
        f"{function}(dst={dst}, pattern={pattern}, channel_multiplier={channel}, on_true_tile={tile.text}, "
        f"on_false_value={on_false}, cmp_op={compare}, offset={difference.start})"
    )


def _place_axes(difference: Index, left: Index | ast.expr, right: Index | ast.expr) -> Index:
    """The difference with the axes that cancelled out, as steps of 0: they are dimensions still."""
    known = {axis for axis, _ in difference.axes}
    sides = [side for side in (left, right) if isinstance(side, Index)]
    lost = {axis for side in sides for axis, _ in side.axes if axis not in known}
    return Index((*difference.axes, *[(axis, "0") for axis in lost]), difference.offset)


def _memset(scope: Scope, node: ast.Call) -> Tensor | Plain:
    """``nisa.memset(shape, value, dtype)`` is a new tile."""
    if any(keyword.arg == "dst" for keyword in node.keywords):
        return _in_place(scope, "memset", node)
    arguments = Arguments(scope, node, ["shape", "value", "dtype"], "nisa.memset")
    shape, partition = parse_shape(scope, arguments.pop("shape"))
    value, dtype = arguments.text("value"), arguments.text("dtype")
    function = scope.nisa("memset")
    make = arguments.conditional(lambda dst: f"{function}(dst={dst}, value={value})")
    return Tensor(None, "sbuf", shape, dtype, partition, make=make)
