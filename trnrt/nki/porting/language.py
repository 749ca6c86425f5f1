"""Functions of ``nl``: most exist today and return tiles still; loads, stores and accumulations have destinations."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from trnrt.nki.porting import evaluating, operators
from trnrt.nki.porting.arguments import Arguments, parse_shape
from trnrt.nki.porting.indexes import arange
from trnrt.nki.porting.instructions import INSTRUCTIONS, copy_to_sbuf, like
from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.reducing import arrange_axes, reduced_shape
from trnrt.nki.porting.scope import Scope, Value
from trnrt.nki.porting.tensors import Bounds, Plain, Tensor, narrow, tuple_text


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


_BINARY = _set(
    "add subtract multiply divide maximum minimum power mod fmod equal not_equal less less_equal greater greater_equal "
    "bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor left_shift right_shift"
)
_ACTIVATIONS = _set(
    "exp log sqrt rsqrt square tanh sigmoid relu gelu gelu_apprx_sigmoid gelu_apprx_tanh gelu_dx silu silu_dx softplus "
    "mish erf erf_dx sin arctan sign abs"
)
_UNARY = _ACTIVATIONS | _set("reciprocal negative logical_not invert copy ceil floor trunc cos tan")
_REDUCTIONS = _set("sum max min prod mean var all")
_SAME = _set("ds program_id num_programs program_ndim shared_identity_matrix device_print random_seed")
_LEFT = {
    "loop_reduce": "accumulate in a tile with nisa.tensor_tensor, or in PSUM with nisa.nc_matmul",
    "all_reduce": "use the collectives of nki.collectives",
    "atomic_rmw": "write nisa.dma_compute with reduce_op=nl.add",
    "shared_constant": "pass the array as an argument, or use nl.shared_identity_matrix",
    "spmd_dim": "launch kernel[cores], with 1 or 2 cores, and loop over the tiles",
    "nc": "launch kernel[cores], with 1 or 2 cores",
    "printf": "write nl.device_print(prefix, tensor)",
}


def call(scope: Scope, name: str, node: ast.Call) -> Value:
    """A call of ``nl.<name>``."""
    if name in ("affine_range", "sequential_range", "static_range"):
        return Plain(ast.Call(ast.Name("range"), [_plain(scope, a) for a in node.args], []))
    if name == "arange":
        arguments = [_plain(scope, argument) for argument in node.args]
        return arange(arguments[0] if len(arguments) > 1 else None, arguments[min(1, len(arguments) - 1)])
    if name == "par_dim":
        return Plain(_plain(scope, node.args[0]))
    if name in _SAME:
        return Plain(evaluating.rewrite_children(scope, node))
    function = _FUNCTIONS.get(name)
    if name in _BINARY:
        return _binary(scope, name, node)
    if name in _UNARY:
        return _unary(scope, name, node)
    if name in _REDUCTIONS:
        return _reduction(scope, name, node)
    if function is None:
        raise UntranslatedError(f"nl.{name} has no translation", _LEFT.get(name, "see today's nki.language"))
    return function(scope, name, node)


def _plain(scope: Scope, node: ast.expr) -> ast.expr:
    return evaluating.as_node(scope, evaluating.evaluate(scope, node))


def of_tensor(scope: Scope, name: str, base: Tensor, node: ast.Call) -> Value:
    """``base.name(...)`` of the old namespace, as the function of that name."""
    given = ast.Call(node.func, [ast.parse(str(base.text), mode="eval").body, *node.args], node.keywords)
    return call(scope, name, given)


def _binary(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["x", "y", "dtype"], f"nl.{name}")
    (x, part_x), (y, part_y), dtype = arguments.cut("x"), arguments.cut("y"), arguments.text("dtype")
    arguments.finish()
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        x = arguments.as_tensor(x, "x")
        part_x = narrow(x, arguments.mask.bounds)
    result = operators.apply(scope, name, x, y, dtype, arguments.mask.bounds, (part_x, part_y))
    return _apply_mask(scope, result, arguments)


def _apply_mask(scope: Scope, result: Tensor, arguments: Arguments, whole: Tensor | None = None) -> Tensor:
    """A result of which a mask leaves a part only: it is computed for that part, into a destination."""
    if not arguments.mask.bounds and not arguments.mask.conditions:
        return result
    shape = (whole or result).shape
    if shape is None or any(size is None for size in shape):
        likeness = None if whole is None or whole.text is None else f"{whole.text}.shape"
    else:
        likeness = None
    copy, text = scope.nisa("tensor_copy"), result.text
    make = result.make or (lambda dst: f"{copy}(dst={dst}, src={text})")
    make = arguments.conditional(make)
    bounds = tuple(arguments.mask.bounds.items())
    return replace(result, text=None, shape=shape, likeness=likeness, make=make, bounds=bounds)


def _unary(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["x", "dtype"], f"nl.{name}")
    whole, part = arguments.cut("x" if "x" in arguments.nodes else "src")
    x, cut = arguments.as_tensor(whole, name), arguments.as_tensor(part, name)
    dtype = arguments.text("dtype")
    arguments.finish()
    option = f", dtype={dtype}" if dtype else ""
    make = None
    if name in _ACTIVATIONS:
        activation, op = scope.nisa("activation"), scope.nl(name)
        make = lambda dst: f"{activation}(dst={dst}, op={op}, data={cut.text})"  # noqa: E731
    elif name in ("copy", "reciprocal"):
        function, operand = (scope.nisa("tensor_copy"), "src") if name == "copy" else (scope.nisa(name), "data")
        make = lambda dst: f"{function}(dst={dst}, {operand}={cut.text})"  # noqa: E731
    text = f"{scope.nl(name)}({cut.text}{option})"
    root = x.root or (x.text if x.whole and x.shape is None else None)
    result = Tensor(text, "sbuf", x.shape, dtype or x.element, x.partition, make=make, root=root)
    result = replace(result, origin=dtype or x.origin)
    return _apply_mask(scope, result, arguments, x)


def _reduction(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["x", "axis", "dtype", "keepdims"], f"nl.{name}")
    x, axis = arguments.tensor("x"), arguments.nodes.pop("axis", None)
    if axis is None:
        raise UntranslatedError(f"nl.{name} without axis", "name the axes")
    dtype, keepdims = arguments.text("dtype"), arguments.text("keepdims")
    moved, axes = arrange_axes(scope.learn_rank(x, axis), axis)
    result = reduced_shape(moved, axes, keepdims == "True" or name == "var") if axes[0] != "-1" else Tensor(None)
    cut = narrow(moved, arguments.mask.bounds)
    options = "".join(f", {key}={value}" for key, value in (("dtype", dtype), ("keepdims", keepdims)) if value)
    axis_text = axes[0] if len(axes) == 1 else tuple_text(axes)
    text = f"{scope.nl(name)}({cut.text}, axis={axis_text}{options})"
    bounds = {dim: bound for dim, bound in arguments.mask.bounds.items() if dim == 0}
    arguments.mask.bounds.clear()
    arguments.mask.bounds.update(bounds)
    return _apply_mask(scope, Tensor(text, "sbuf", result.shape, dtype or x.element), arguments)


def _load(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["src", "dtype"], "nl.load")
    bounds = arguments.mask.bounds
    whole = arguments.tensor("src")
    dtype = arguments.text("dtype")
    part = narrow_view(scope, node, whole, bounds)
    arguments.finish()
    if whole.shape is not None and len(whole.shape) == 1:
        column = tuple_text([whole.size(0), "1"])
        whole = replace(whole, text=f"{whole.text}.reshape({column})", shape=(whole.shape[0], "1"))
        part = whole
    elif (whole.shape is None and not whole.whole) or (whole.shape is not None and None in whole.shape):
        whole = scope.name_tensor(whole, _bound_view(scope, whole))
        part = whole if not bounds else part
    dma, text = scope.nisa("dma_copy"), part.text
    make = arguments.conditional(lambda dst: f"{dma}(dst={dst}, src={text})")
    element = dtype or whole.element
    origin = dtype or whole.origin
    return replace(like(whole), dtype=element, make=make, bounds=tuple(bounds.items()), origin=origin)


def _bound_view(scope: Scope, view: Tensor) -> str:
    name = scope.new_name("source")
    scope.before.append(f"{name} = {view.text}")
    return name


def narrow_view(scope: Scope, node: ast.Call, whole: Tensor, bounds: Bounds) -> Tensor:
    """The part of a load's or store's tensor in HBM that the mask leaves: by its own slices if it has any."""
    if not bounds:
        return whole
    source = node.args[0] if node.args else next(k.value for k in node.keywords if k.arg in ("src", "dst"))
    if isinstance(source, ast.Subscript):
        value = evaluating.evaluate(scope, source, bounds)
        if isinstance(value, Tensor):
            return value
    return narrow(whole, bounds)


def _load_transpose(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["src", "dtype"], "nl.load_transpose2d")
    src, dtype = arguments.tensor("src"), arguments.text("dtype")
    if arguments.mask.bounds or arguments.mask.conditions:
        raise UntranslatedError("nl.load_transpose2d with a mask", "slice the tensor to what is there")
    option = f", dtype={dtype}" if dtype else ""
    text = f"{scope.nl('load_transpose2d')}({src.text}{option})"
    shape = None if src.shape is None or len(src.shape) != 2 else (src.shape[1], src.shape[0])
    return Tensor(text, "sbuf", shape, dtype or src.element)


def _store(scope: Scope, name: str, node: ast.Call) -> Plain:
    """``nl.store(dst, value)``: a DMA from SBUF."""
    arguments = Arguments(scope, node, ["dst", "value"], "nl.store")
    bounds = arguments.mask.bounds
    given = arguments.value("value")
    if isinstance(given, Tensor) and given.text is not None:
        given = scope.bind(given, "stored")
    value = arguments.as_tensor(given, "stored")
    if value.space == "psum":
        value = copy_to_sbuf(scope, value)
    whole = arguments.tensor("dst")
    target = narrow_view(scope, node, whole, bounds)
    arguments.finish()
    if target.shape is not None and len(target.shape) == 1 and value.shape is not None and len(value.shape) == 2:
        target = replace(target, text=f"{target.text}.reshape({tuple_text([target.size(0), '1'])})")
    if not whole.whole or value.shape is not None:
        value = narrow(value, bounds)
    statement = f"{scope.nisa('dma_copy')}(dst={target.text}, src={value.text})"
    if arguments.mask.conditions:
        scope.before.append(f"if {' and '.join(arguments.mask.conditions)}:\n    {statement}")
        return Plain(ast.Constant(None))
    return Plain(ast.parse(statement, mode="eval").body)


def _matmul(scope: Scope, name: str, node: ast.Call) -> Tensor:
    """``nl.matmul(x, y, transpose_x)``: x goes through the tensor engine first unless it is transposed already."""
    arguments = Arguments(scope, node, ["x", "y", "transpose_x"], "nl.matmul")
    x, y = (_out_of_psum(scope, arguments.tensor(name)) for name in ("x", "y"))
    transposed = arguments.text("transpose_x") == "True"
    if arguments.mask.bounds:
        raise UntranslatedError("nl.matmul with a mask", "slice the operands to what is there")
    arguments.finish()
    if not transposed:
        turn, copy = scope.nisa("nc_transpose"), scope.nisa("tensor_copy")
        shape = (x.size(1), x.size(0))
        flat = Tensor(None, "psum", shape, x.element, make=lambda dst: f"{turn}(dst={dst}, data={x.text})")
        turned = scope.bind(flat, "transposed")
        make = lambda dst: f"{copy}(dst={dst}, src={turned.text})"  # noqa: E731
        x = scope.bind(Tensor(None, "sbuf", shape, x.element, make=make), "stationary")
    row = INSTRUCTIONS["nc_matmul"]
    assert row.shape is not None
    result = row.shape({"stationary": x, "moving": y})
    function, stationary = scope.nisa("nc_matmul"), x.text
    product = arguments.conditional(lambda dst: f"{function}(dst={dst}, stationary={stationary}, moving={y.text})")
    element = scope.nl("float32")
    return replace(result, space="psum", dtype=element, origin=element, make=product, matmul=True)


def _out_of_psum(scope: Scope, tile: Tensor) -> Tensor:
    """An operand of the tensor engine, which reads SBUF alone."""
    return copy_to_sbuf(scope, tile) if tile.space == "psum" else tile


def _transpose(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["x", "dtype"], "nl.transpose")
    x = arguments.tensor("x")
    text = f"{scope.nl('transpose')}({x.text}{arguments.rest()})"
    shape = None if x.shape is None or len(x.shape) != 2 else (x.shape[1], x.shape[0])
    return Tensor(text, "psum", shape, x.element)


def _creation(scope: Scope, name: str, node: ast.Call) -> Tensor:
    """``nl.ndarray`` and the like: the partition dimension first, the allocator of the file left out."""
    parameters = {"full": ["shape", "fill_value", "dtype"]}.get(name, ["shape", "dtype"])
    arguments = Arguments(scope, node, parameters, f"nl.{name}")
    given = arguments.pop("shape")
    shape, partition = parse_shape(scope, given)
    text = tuple_text(shape) if shape is not None else evaluating.text_of(scope, given or ast.Constant(None))
    fill, dtype = arguments.text("fill_value"), arguments.text("dtype") or scope.nl("float32")
    space = _buffer(scope, arguments.pop("buffer"))
    parts = [text, *([fill] if fill is not None else []), f"dtype={dtype}", f"buffer={scope.nl(space)}"]
    where = "hbm" if space.endswith("hbm") else space
    name_option = arguments.text("name")
    parts += [f"name={name_option}"] if name_option else []
    arguments.nodes.pop("lazy_initialization", None)
    arguments.finish()
    if shape is None and isinstance(given, ast.Attribute) and given.attr == "shape":
        source = evaluating.evaluate(scope, given.value)
        shape = source.shape if isinstance(source, Tensor) else None  # type: ignore[assignment]
    text = f"{scope.nl(name)}({', '.join(parts)})"
    if shape is not None and len(shape) > _MAX_DIMENSIONS and where != "hbm" and name != "ndarray":
        flat = tuple_text([shape[0], " * ".join(_factor(size) for size in shape[1:])])
        text = f"{scope.nl(name)}({', '.join([flat, *parts[1:]])}).reshape({tuple_text(shape)})"
    return Tensor(text, where, shape, dtype, partition, whole=True, origin=dtype)


_MAX_DIMENSIONS = 5  # of an access pattern: a memset of more is one of a flat tile


def _factor(text: str) -> str:
    return f"({text})" if isinstance(ast.parse(text, mode="eval").body, ast.BinOp) else text


def _buffer(scope: Scope, node: ast.expr | None) -> str:
    """The memory of a ``buffer=``: an allocator's is SBUF or PSUM, where the compiler finds a place."""
    if node is None:
        return "sbuf"
    if isinstance(node, ast.Call):
        path = scope.file.resolve(node.func) or ""
        for space in ("sbuf", "psum"):
            if path.startswith(f"nki.compiler.{space}."):
                scope.notes.append(
                    f"the address of {path.rpartition('.')[2]} is left out: the compiler finds a place; "
                    "to choose it, write address=(partition, byte)"
                )
                return space
    path = scope.file.resolve(node) or ""
    name = path.rpartition(".")[2]
    if name in ("sbuf", "psum", "shared_hbm", "private_hbm", "hbm"):
        return "private_hbm" if name == "hbm" else name
    raise UntranslatedError(
        f"{ast.unparse(node)} is not a buffer of today's NKI", "write nl.sbuf, nl.psum, nl.shared_hbm or nl.private_hbm"
    )


def _like_creation(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["x", "dtype"], f"nl.{name}")
    x, dtype = arguments.tensor("x"), arguments.text("dtype")
    space = _buffer(scope, arguments.pop("buffer"))
    option = f", dtype={dtype}" if dtype else ""
    text = f"{scope.nl(name)}({x.text}{option}, buffer={scope.nl(space)})"
    return Tensor(text, "hbm" if space.endswith("hbm") else space, x.shape, dtype or x.element, x.partition, whole=True)


def _broadcast(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["src", "shape"], "nl.broadcast_to")
    x = arguments.tensor("src" if "src" in arguments.nodes else "x")
    given = arguments.pop("shape")
    shape, _ = parse_shape(scope, given)
    text = tuple_text(shape) if shape is not None else evaluating.text_of(scope, given or ast.Constant(None))
    return Tensor(f"{scope.nl('broadcast_to')}({x.text}, {text}{arguments.rest()})", "sbuf", shape, x.element)


def _expand(scope: Scope, name: str, node: ast.Call) -> Tensor:
    arguments = Arguments(scope, node, ["data", "axis"], "nl.expand_dims")
    x = arguments.tensor("data" if "data" in arguments.nodes else "x")
    return Tensor(f"{scope.nl('expand_dims')}({x.text}, {arguments.text('axis')})", x.space, None, x.element)


def _constant(scope: Scope, name: str, node: ast.Call) -> Tensor:
    """``nl.shared_constant(np.identity(n))``: an identity matrix has a function of its own today."""
    arguments = Arguments(scope, node, ["constant", "dtype"], "nl.shared_constant")
    made, dtype = arguments.pop("constant"), arguments.text("dtype")
    path = scope.file.resolve(made.func) if isinstance(made, ast.Call) else None
    if path not in ("numpy.identity", "numpy.eye") or not isinstance(made, ast.Call):
        raise UntranslatedError("nl.shared_constant has no translation", _LEFT["shared_constant"])
    given = {"n": made.args[0]} if made.args else {}
    given |= {str(keyword.arg): keyword.value for keyword in made.keywords}
    size = evaluating.text_of(scope, given["n" if "n" in given else "N"])
    element = dtype or (evaluating.text_of(scope, given["dtype"]) if "dtype" in given else scope.nl("float32"))
    text = f"{scope.nl('shared_identity_matrix')}({size}, dtype={element})"
    return Tensor(text, "hbm", (size, size), element, whole=True)


def _value(scope: Scope, name: str, node: ast.Call) -> Tensor:
    """A function that takes the same arguments today, and returns a tile of the shape of its first."""
    parameters = {"where": ["condition", "x", "y"], "softmax": ["x", "axis"]}.get(name, ["x"])
    arguments = Arguments(scope, node, parameters, f"nl.{name}")
    if arguments.mask.bounds or arguments.mask.conditions:
        raise UntranslatedError(f"nl.{name} with a mask", "slice the operands to what is there")
    first = evaluating.evaluate(scope, next(iter(arguments.nodes.values())))
    shape = first.shape if isinstance(first, Tensor) else None
    rest = arguments.rest().removeprefix(", ")
    return Tensor(f"{scope.nl(name)}({rest})", "sbuf", shape)


_FUNCTIONS: dict[str, Callable[[Scope, str, ast.Call], Tensor | Plain]] = {
    "load": _load,
    "load_transpose2d": _load_transpose,
    "store": _store,
    "matmul": _matmul,
    "transpose": _transpose,
    **dict.fromkeys(("ndarray", "zeros", "ones", "full", "rand"), _creation),
    **dict.fromkeys(("zeros_like", "empty_like"), _like_creation),
    "broadcast_to": _broadcast,
    "expand_dims": _expand,
    "shared_constant": _constant,
    **dict.fromkeys(("where", "softmax", "rms_norm", "dropout", "gather_flattened"), _value),
}
