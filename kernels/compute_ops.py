"""The operators of ``elementwise.compute``, each as instructions of the engines.

A value is a number (a Python float), or a tile (P, G, W) in SBUF; G or W may be 1 where the result has more, and then
it repeats. A tile (P, 1, 1) is a column, one float32 number per partition. Destinations have the shape of the result.
No function changes its arguments; ``dst`` must not be one of them. Intermediate results are float32.

The exact forms rely on the engines' rounding to float32 after every operator: rounding by adding and subtracting 2**23,
and quotients whose error is computed from products of half as many bits.

Largest errors of float32 results against float64, measured on the simulator over numbers of every size:

    exact                   copy relu abs neg sign floor ceil round not is_nan is_inf clip maximum minimum where fmod,
                            quantise, comparisons and logic; leaky_relu by powers of two
    relative, 6e-8          add subtract multiply divide (y and the quotient normal numbers) square sqrt reciprocal
                            leaky_relu prelu (the slope finite) mod
    relative, 1e-7          rsqrt power tanh erf
    relative, 3e-7          exp sigmoid log softplus softsign elu celu selu
    relative, 8e-7          log1p tan (up to 2**15 quarter turns) atan
    relative, 4e-7          silu mish, but below -88, where the result is nearly 0
    absolute                sin 3e-7, cos 5e-7 up to 2**15 turns; hard_sigmoid 6e-8, hard_swish 4e-7
    absolute or relative    gelu gelu_tanh gelu_sigmoid 6e-7: the tail below -4 has no digits of its own
    whole quotients         mod and fmod want quotients below 2**24
"""

from typing import Any

from trnrt.kernels.common import LOWEST
from trnrt.kernels.compute_angles import arctangent, log_of_one_plus, tangent
from trnrt.kernels.compute_math import cosine, divide, logarithm, quantise, remainder, round_whole, sine
from trnrt.kernels.values import apply, apply_two, as_float32, column, fresh, is_number, settle, wide
from trnrt.nki import nisa, nl

# Operators of the vector engine, which take two values.
VECTOR = {
    "add": nl.add,
    "subtract": nl.subtract,
    "multiply": nl.multiply,
    "maximum": nl.maximum,
    "minimum": nl.minimum,
    "power": nl.power,
    "greater": nl.greater,
    "greater_equal": nl.greater_equal,
    "less": nl.less,
    "less_equal": nl.less_equal,
    "equal": nl.equal,
    "not_equal": nl.not_equal,
    "and": nl.logical_and,
    "or": nl.logical_or,
    "xor": nl.logical_xor,
}

# Functions of the scalar engine that are right for every float32.
SCALAR = {
    "relu": nl.relu,
    "sigmoid": nl.sigmoid,
    "tanh": nl.tanh,
    "exp": nl.exp,
    "square": nl.square,
    "abs": nl.abs,
    "sign": nl.sign,
    "erf": nl.erf,
    "gelu": nl.gelu,
    "gelu_tanh": nl.gelu_apprx_tanh,
    "gelu_sigmoid": nl.gelu_apprx_sigmoid,
    "silu": nl.silu,
    "softplus": nl.softplus,
    "mish": nl.mish,
}

# Functions of one value that the vector engine computes together with an operand of one number.
WITH_NUMBER = {"neg": (nl.multiply, -1.0), "not": (nl.equal, 0.0), "rsqrt": (nl.rsqrt, 0.0)}

# Float32 tiles of the result's size that an operator needs besides its arguments and its result.
ROOM = {
    **{"divide": 8, "mod": 13, "fmod": 13, "round": 4, "floor": 5, "ceil": 5, "where": 3},
    **{"log": 5, "log1p": 9, "sin": 3, "cos": 3, "tan": 6, "atan": 4},
}
OTHER_ROOM = 3


def evaluate(dst: nl.NkiTensor, name: str, args: list[Any]) -> None:
    """dst = the operator ``name`` of ``args``; see ``elementwise.compute``."""
    if name == "power" and is_number(args[1]) and args[1] == 2.0:
        nisa.activation(dst=dst, op=nl.square, data=args[0])
    elif name in VECTOR:
        apply(dst, args[0], args[1], VECTOR[name])
    elif name in SCALAR:
        nisa.activation(dst=dst, op=SCALAR[name], data=args[0])
    elif len(args) == 1:
        _unary(dst, name, args[0])
    elif name == "divide":
        divide(dst, args[0], args[1])
    elif name == "mod" or name == "fmod":
        remainder(dst, args[0], args[1], name == "mod")
    elif name == "prelu":
        _prelu(dst, args[0], args[1])
    elif name == "where":
        _where(dst, args[0], args[1], args[2])
    else:
        _with_numbers(dst, name, args)


def _unary(dst: nl.NkiTensor, name: str, x: nl.NkiTensor) -> None:
    """The functions of one value that the scalar engine lacks, or computes for some numbers only."""
    if name == "copy":
        nisa.tensor_copy(dst=dst, src=x)
    elif name in WITH_NUMBER:
        op, number = WITH_NUMBER[name]
        nisa.tensor_scalar(dst=dst, data=x, op0=op, operand0=number)
    elif name == "is_nan":
        nisa.tensor_tensor(dst=dst, data1=x, data2=x, op=nl.not_equal)
    elif name == "is_inf":
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.abs, operand0=0.0, op1=nl.equal, operand1=float("inf"))
    elif name == "sqrt":
        # A power of -inf is inf; of a finite negative number it is NaN, as the root must be.
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.maximum, operand0=LOWEST, op1=nl.power, operand1=0.5)
    elif name == "reciprocal":
        nisa.reciprocal(dst=dst, data=x)
    elif name == "log":
        logarithm(dst, x)
    elif name == "sin":
        sine(dst, x)
    elif name == "cos":
        cosine(dst, x)
    elif name == "tan":
        tangent(dst, x)
    elif name == "atan":
        arctangent(dst, x)
    elif name == "log1p":
        log_of_one_plus(dst, x)
    elif name == "softsign":
        size_sb = fresh(dst.shape)
        nisa.tensor_scalar(dst=size_sb, data=x, op0=nl.abs, operand0=0.0, op1=nl.add, operand1=1.0)
        nisa.reciprocal(dst=size_sb, data=size_sb)
        nisa.tensor_tensor(dst=dst, data1=x, data2=size_sb, op=nl.multiply)
    elif name == "hard_swish":
        gate_sb = fresh(dst.shape)
        _hard_sigmoid(gate_sb, x, 1.0 / 6.0, 0.5)
        nisa.tensor_tensor(dst=dst, data1=x, data2=gate_sb, op=nl.multiply)
    else:
        assert name in ("floor", "ceil", "round"), f"compute: unknown operator {name} of one value"
        round_whole(dst, x, name)


def _with_numbers(dst: nl.NkiTensor, name: str, args: list[Any]) -> None:
    """The functions of one value and of numbers that the model gives."""
    x = args[0]
    for i in range(1, len(args)):
        assert is_number(args[i]), f"compute: operand {i} of {name} is a tensor; it must be a number"
    if name == "leaky_relu":
        _leaky_relu(dst, x, args[1])
    elif name == "elu":
        _elu(dst, x, args[1], 1.0, 1.0)
    elif name == "celu":
        _elu(dst, x, args[1], 1.0 / args[1], 1.0)
    elif name == "selu":
        _elu(dst, x, args[1], 1.0, args[2])
    elif name == "hard_sigmoid":
        _hard_sigmoid(dst, x, args[1], args[2])
    elif name == "quantise":
        quantise(dst, x, args[1:])
    else:
        assert name == "clip", f"compute: unknown operator {name} of {len(args)} operands"
        low, high = args[1], args[2]
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.maximum, operand0=low, op1=nl.minimum, operand1=high)


def _leaky_relu(dst: nl.NkiTensor, x: nl.NkiTensor, alpha: float) -> None:
    """x if positive, else alpha * x."""
    if alpha == 0.0:
        nisa.activation(dst=dst, op=nl.relu, data=x)
    else:
        below_sb = fresh(dst.shape)
        nisa.tensor_scalar(dst=below_sb, data=x, op0=nl.minimum, operand0=0.0, op1=nl.multiply, operand1=alpha)
        apply_two(dst, x, nl.maximum, 0.0, nl.add, below_sb)


def _prelu(dst: nl.NkiTensor, x: nl.NkiTensor, slope: Any) -> None:
    """x if positive, else slope * x. An infinite slope gives NaN where x is not negative."""
    x = as_float32(wide(x, dst.shape))
    below_sb = fresh(dst.shape)
    apply_two(below_sb, x, nl.minimum, 0.0, nl.multiply, slope)
    apply_two(dst, x, nl.maximum, 0.0, nl.add, below_sb)


def _elu(dst: nl.NkiTensor, x: nl.NkiTensor, alpha: float, scale: float, gamma: float) -> None:
    """gamma * (x if positive, else alpha * (exp(scale * x) - 1)).

    exp(t) - 1 is 2 * tanh(t / 2) / (1 - tanh(t / 2)), which loses no precision for small t.
    """
    half_sb, under_sb = fresh(dst.shape), fresh(dst.shape)
    nisa.tensor_scalar(dst=half_sb, data=x, op0=nl.minimum, operand0=0.0, op1=nl.multiply, operand1=0.5 * scale)
    nisa.activation(dst=half_sb, op=nl.tanh, data=half_sb)
    nisa.tensor_scalar(dst=under_sb, data=half_sb, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    nisa.reciprocal(dst=under_sb, data=under_sb)
    apply_two(half_sb, half_sb, nl.multiply, 2.0 * alpha, nl.multiply, under_sb)
    if gamma == 1.0:
        apply_two(dst, x, nl.maximum, 0.0, nl.add, half_sb)
    else:
        apply_two(under_sb, x, nl.maximum, 0.0, nl.add, half_sb)
        nisa.tensor_scalar(dst=dst, data=under_sb, op0=nl.multiply, operand0=gamma)


def _hard_sigmoid(dst: nl.NkiTensor, x: nl.NkiTensor, alpha: float, beta: float) -> None:
    """alpha * x + beta between 0 and 1."""
    line_sb = fresh(dst.shape)
    nisa.tensor_scalar(dst=line_sb, data=x, op0=nl.multiply, operand0=alpha, op1=nl.add, operand1=beta)
    nisa.tensor_scalar(dst=dst, data=line_sb, op0=nl.maximum, operand0=0.0, op1=nl.minimum, operand1=1.0)


def _where(dst: nl.NkiTensor, condition: Any, x: Any, y: Any) -> None:
    """x where the condition is not 0, else y; selected bit by bit, so the other value has no effect, not even NaN."""
    condition = column(condition, dst) if is_number(condition) else condition
    chosen_sb = nl.ndarray(condition.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=chosen_sb, data=condition, op0=nl.not_equal, operand0=0.0)
    result_sb = dst if dst.dtype == nl.float32 else fresh(dst.shape)
    if is_number(y):
        nisa.memset(dst=result_sb, value=y)
    else:
        nisa.tensor_copy(dst=result_sb, src=wide(y, dst.shape))
    source = x if is_number(x) else wide(as_float32(x), dst.shape)
    nisa.tensor_copy_predicated(dst=result_sb, src=source, predicate=wide(chosen_sb, dst.shape))
    settle(dst, result_sb)
