"""What is wrong with a kernel or its call: one error class, the message, and the kernel's source line."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulating import Kernel, Tensor, give, load, spec, tile, traced, zeros

from trnrt.errors import KernelError, OptionError
from trnrt.nki import nisa, nl, simulate, trace


def error_of(body: Kernel, *arguments: Any, target: str = "trn2") -> KernelError:
    with pytest.raises(KernelError) as error:
        trace(body, *arguments, target=target)
    return error.value


def place(body: Kernel) -> str:
    """Where a body goes wrong: its line that ends in ``# here``."""
    lines, first = inspect.getsourcelines(body)
    at = next(number for number, line in enumerate(lines, first) if line.rstrip().endswith("# here"))
    return f"\n  at {__file__}:{at} in {body.__name__}"


# What a kernel raises.
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("assert a.shape[0] <= 3, f'{a.shape[0]} rows; the limit is 3'", "4 rows; the limit is 3"),
        ("assert a.shape[0] <= 3", "assert a.shape[0] <= 3"),
    ],
)
def test_an_assertion_keeps_its_message_or_shows_itself(statement: str, says: str, tmp_path: Path) -> None:
    """In a file of its own: pytest rewrites the assertions of this one."""
    path = tmp_path / "kernels.py"
    path.write_text(f"def kernel(a):\n    {statement}\n    return a\n", encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    error = error_of(names["kernel"], spec(4, 6))
    assert str(error) == f"kernel kernel: assertion failed: {says}\n  at {path}:2 in kernel"
    assert isinstance(error.__cause__, AssertionError)


def test_a_wrong_call_names_the_kernel_s_line() -> None:
    def kernel(a: Tensor) -> Tensor:
        nisa.dma_copy(dst=tile(4, 6), source=a)  # type: ignore[call-arg]  # here
        return a

    error = error_of(kernel, spec(4, 6))
    assert "kernel kernel: TypeError: dma_copy() got an unexpected keyword argument 'source'" in str(error)
    assert str(error).endswith(place(kernel))
    assert isinstance(error.__cause__, TypeError)


def test_any_exception_names_the_kernel_s_line() -> None:
    def kernel(a: Tensor) -> Tensor:
        return give(load(a)[:, 1 // 0 :])  # here

    error = error_of(kernel, spec(4, 6))
    assert str(error) == "kernel kernel: ZeroDivisionError: integer division or modulo by zero" + place(kernel)


def test_an_error_in_a_helper_names_the_helper_s_line() -> None:
    def helper() -> None:
        raise ValueError("no")  # here

    def kernel(a: Tensor) -> Tensor:
        helper()
        return a

    assert str(error_of(kernel, spec(4, 6))) == "kernel kernel: ValueError: no" + place(helper)


def test_errors_of_views_and_allocations_name_the_line() -> None:
    def index(a: Tensor) -> Tensor:
        return a[4]  # here

    def allocate(a: Tensor) -> Tensor:
        nl.ndarray((4, -1), nl.float32)  # here
        return a

    assert str(error_of(index, spec(4, 6))).endswith("which has 4 elements" + place(index))
    assert str(error_of(allocate, spec(4, 6))) == "nl.ndarray: shape (4, -1) must hold positive integers" + place(
        allocate
    )


def test_the_line_is_named_once() -> None:
    def kernel(a: Tensor) -> Tensor:
        nisa.tensor_copy(dst=tile(4, 6), src=a)  # here
        return a

    message = str(error_of(kernel, spec(4, 6)))
    assert message.count("\n  at ") == 1
    assert message.endswith(place(kernel))


def test_other_errors_of_trnrt_pass() -> None:
    def kernel(a: Tensor) -> Tensor:
        raise OptionError("no", hint="never")

    with pytest.raises(OptionError, match=r"^no\nhint: never$"):
        trace(kernel, spec(4, 6))


def test_a_kernel_that_stops_python_stops_it() -> None:
    def kernel(a: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace(kernel, spec(4, 6))
    assert traced(lambda: None).instructions == []  # and is not left active
    with pytest.raises(KernelError, match="called outside a kernel"):
        tile(1, 1)


# What a kernel returns.
def test_results_are_tensors_of_hbm() -> None:
    assert "kernel on_chip returned tile [4x6] float32 (" in str(error_of(on_chip, spec(4, 6)))
    assert "a tensor in sbuf; return one in nl.shared_hbm" in str(error_of(on_chip, spec(4, 6)))
    assert str(error_of(lambda a: None, spec(4, 6))) == "kernel <lambda> returned NoneType; it must return tensors"
    assert "returned int" in str(error_of(lambda a: (a, 3), spec(4, 6)))
    message = str(error_of(lambda a: tile(4, 6, buffer=nl.private_hbm), spec(4, 6)))
    assert "a tensor in private_hbm; return one in nl.shared_hbm" in message


def on_chip(a: Tensor) -> Tensor:
    return load(a)


# Where the API is called.
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: nl.ndarray((4, 4), nl.float32), "nl.ndarray"),
        (lambda: nisa.get_nc_version(), "nisa.get_nc_version"),
        (lambda: nl.tile_size.sbuf_fmax, "nl.tile_size.sbuf_fmax"),
        (lambda: nisa.dma_copy(None, None), "nisa.dma_copy"),  # type: ignore[arg-type]
        (lambda: nisa.nc_matmul(None, None, None), "nisa.nc_matmul"),  # type: ignore[arg-type]
    ],
)
def test_nothing_works_outside_a_kernel(call: Kernel, name: str) -> None:
    with pytest.raises(KernelError, match=f"{name}.* was called outside a kernel; decorate"):
        call()


# What a kernel is called with.
def test_dtypes_that_the_device_has_not() -> None:
    error = error_of(lambda a: a, np.zeros((4, 6)))
    assert "kernel <lambda>: argument 'a': the NeuronCore has no dtype dtype('float64'); it has float32" in str(error)
    assert error.hint == "convert it on the host"
    with pytest.raises(KernelError, match="no dtype dtype\\('int64'\\)"):
        simulate(lambda a: a)(np.zeros((4, 6), np.int64))


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0)])
def test_tensors_without_elements_or_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(KernelError, match=r"has shape \(.*\); a tensor has at least one dimension, and none of 0"):
        simulate(lambda a: a)(np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("arguments", "words"), [((), "missing a required argument: 'a'"), ((1, 2), "too many positional")]
)
def test_calls_that_do_not_fit_the_signature(arguments: tuple[int, ...], words: str) -> None:
    for call in (lambda *args: trace(on_chip, *args), simulate(on_chip)):
        with pytest.raises(KernelError, match=f"kernel on_chip: {words}"):
            call(*arguments)


@pytest.mark.parametrize("kernel", [3, "kernel", print, np.add, object()])
def test_what_is_not_a_function_is_no_kernel(kernel: Any) -> None:
    with pytest.raises(KernelError, match=r"is not a Python function; a kernel is one, decorated with @nki\.jit"):
        simulate(kernel)


# Operands.
NOT_TENSORS = (3.0, None, np.zeros((4, 6), np.float32), "x", [1, 2])


@pytest.mark.parametrize("wrong", NOT_TENSORS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    ("call", "operand"),
    [
        (lambda x, w: nisa.dma_copy(w, x), "dst"),
        (lambda x, w: nisa.dma_copy(x, w), "src"),
        (lambda x, w: nisa.tensor_copy(w, x), "dst"),
        (lambda x, w: nisa.memset(w, 0.0), "dst"),
        (lambda x, w: nisa.tensor_copy_predicated(x, x, w), "predicate"),
        (lambda x, w: nisa.nc_matmul(w, x, x), "dst"),
        (lambda x, w: nisa.nc_matmul(x, w, x), "stationary"),
        (lambda x, w: nisa.nc_matmul(x, x, w), "moving"),
        (lambda x, w: nisa.nc_transpose(x, w), "data"),
        (lambda x, w: nisa.nc_transpose(w, x), "dst"),
        (lambda x, w: nisa.tensor_tensor(x, x, w, nl.add), "data2"),
        (lambda x, w: nisa.tensor_scalar(x, w, nl.add, 1.0), "data"),
        (lambda x, w: nisa.scalar_tensor_tensor(x, x, nl.add, 1.0, nl.add, w), "operand1"),
        (lambda x, w: nisa.tensor_reduce(x, nl.add, w, 1), "data"),
        (lambda x, w: nisa.tensor_reduce(w, nl.add, x, -1), "dst"),
        (lambda x, w: nisa.activation(x, nl.exp, w), "data"),
        (lambda x, w: nisa.activation_reduce(x, nl.exp, w, nl.add, x), "data"),
        (lambda x, w: nisa.reciprocal(x, w), "data"),
        (lambda x, w: nisa.max8(x, w), "src"),
        (lambda x, w: nisa.nc_find_index8(x, x, w), "vals"),
    ],
)
def test_operands_that_are_not_tensors(call: Kernel, operand: str, wrong: Any) -> None:
    kind = "None" if wrong is None else f"a {type(wrong).__name__}"
    with pytest.raises(KernelError, match=f": {operand} is {kind}; it must be a tensor\n  at "):
        traced(lambda: call(zeros(4, 6), wrong))


@pytest.mark.parametrize("wrong", ["x", [1], np.zeros((4, 1), np.float32), nl.add], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(
    ("call", "operand"),
    [
        (lambda x, w: nisa.memset(x, w), "value"),
        (lambda x, w: nisa.tensor_scalar(x, x, nl.add, w), "operand0"),
        (lambda x, w: nisa.tensor_scalar(x, x, nl.add, 1.0, False, nl.add, w), "operand1"),
        (lambda x, w: nisa.scalar_tensor_tensor(x, x, nl.add, w, nl.add, x), "operand0"),
        (lambda x, w: nisa.activation(x, nl.exp, x, bias=w), "bias"),
        (lambda x, w: nisa.activation(x, nl.exp, x, scale=w), "scale"),
        (lambda x, w: nisa.tensor_copy_predicated(x, w, x), "src"),
    ],
)
def test_operands_that_are_not_numbers(call: Kernel, operand: str, wrong: Any) -> None:
    with pytest.raises(KernelError, match=f": {operand} is a {type(wrong).__name__}; it must be a number"):
        traced(lambda: call(zeros(4, 6), wrong))


@pytest.mark.parametrize(
    ("call", "operand"),
    [
        (lambda x, w: nisa.memset(x, w), "value"),
        (lambda x, w: nisa.affine_select(x, [[1, 6]], 0, x, w), "on_false_value"),
        (lambda x, w: nisa.nc_match_replace8(x, x, x, w), "imm"),
    ],
)
def test_tensors_where_only_numbers_are(call: Kernel, operand: str) -> None:
    with pytest.raises(KernelError, match=f": {operand} is a NkiTensor; it must be a number\n  at "):
        traced(lambda: call(zeros(4, 6), zeros(4, 1)))


@pytest.mark.parametrize("axis", [None, 1.0, "x"])
def test_axes_that_are_not_integers(axis: Any) -> None:
    with pytest.raises(KernelError, match=r"tensor_reduce: axis=.*; it must be an integer or a sequence of integers"):
        traced(lambda: nisa.tensor_reduce(tile(4, 1), nl.add, zeros(4, 6), axis))


def test_numbers_of_numpy_are_numbers() -> None:
    numbers: list[Any] = [np.float32(1), np.int8(1), np.float64(1), np.True_, True]
    for number in numbers:
        traced(partial(lambda one: nisa.tensor_scalar(zeros(4, 6), zeros(4, 6), nl.add, one), number))


def test_a_number_where_only_tensors_are() -> None:
    def kernel(a: Tensor) -> Tensor:
        nisa.activation(tile(4, 6), nl.exp, zeros(4, 6), scale=None)  # type: ignore[arg-type]
        return a

    assert "activation: scale is None; it must be a number" in str(error_of(kernel, spec(4, 6)))


def test_a_tensor_of_another_call() -> None:
    kept = []

    def first(a: Tensor) -> Tensor:
        kept.append(zeros(4, 6))
        return a

    trace(first, spec(4, 6))
    for arguments in ((), (spec(4, 6),), (spec(4, 6), spec(4, 6))):
        with pytest.raises(KernelError, match=r"src belongs to another kernel call: tile \[4x6\] float32"):
            traced(lambda *_: nisa.tensor_copy(tile(4, 6), kept[0]), *arguments)


def test_an_empty_operand() -> None:
    with pytest.raises(KernelError, match=r"memset: dst is empty, shape \(4, 0\)"):
        traced(lambda: nisa.memset(tile(4, 6)[:, 2:2], 0.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((4, 6), "float64"), "the NeuronCore has no dtype 'float64'"),
        (((), nl.float32), r"shape \(\) must hold positive integers"),
        (((4, 0), nl.float32), "must hold positive integers"),
        (((4, 1.5), nl.float32), "'float' object cannot be interpreted as an integer"),
        ((4, nl.float32), "'int' object is not iterable"),
        (((4, 6), nl.float32, "dram"), "'dram' is not a valid MemoryRegion"),
        (((4, 6), nl.float32, "registers"), "registers hold no tensors"),
        (((4, 6), nl.float32, nl.sbuf, "", (0,)), "tuple index out of range"),
    ],
)
def test_tensors_that_can_t_be_made(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(KernelError, match=f"nl.ndarray: .*{words}"):
        traced(lambda: nl.ndarray(*arguments))


def test_memories_and_sizes_by_other_names() -> None:
    def body() -> None:
        made = nl.ndarray((np.int64(4), 6), "bfloat16", "psum", "name")  # type: ignore[arg-type]
        assert (made.shape, made.dtype, made.buffer, made.name) == ((4, 6), nl.bfloat16, nl.psum, "name")
        assert nl.hbm is nl.private_hbm

    traced(body)


def test_running_needs_the_arrays() -> None:
    with pytest.raises(KernelError, match="kernel on_chip: a Spec has no data to run on"):
        simulate(on_chip)(spec(4, 6))
