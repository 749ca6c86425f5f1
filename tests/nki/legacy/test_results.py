"""Results that wait for their destination, and assignment: which instructions are issued, in which order."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from old_kernels import BFLOAT16, assert_close, nl, numbers

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy import isa as nisa
from trnrt.nki.legacy.launching import jit
from trnrt.nki.machine.program import Instruction
from trnrt.nki.machine.targets import get_target
from trnrt.nki.sim.kernel import Simulated, default_target

X = numbers(0, 8, 6)


def issued(kernel: Callable[..., Any], *arrays: Any) -> list[Instruction]:
    """The instructions of a kernel's body, which takes tiles and needs no output."""

    def whole(*tensors: Any) -> Any:
        tiles = [nl.load(tensor) for tensor in tensors]
        out = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        kernel(*tiles)
        nl.store(out, 0.0)
        return out

    programs = Simulated(jit(whole), get_target(default_target())).trace(*(arrays or (X,)))
    return programs[0].instructions[len(arrays or (X,)) : -2]


def names(instructions: list[Instruction]) -> list[str]:
    return [one.operation.name for one in instructions]


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of a function's source that has ``text``."""
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if text in line)


def test_an_assignment_names_the_destination() -> None:
    tiles: dict[str, Any] = {}

    def kernel(x: Any) -> None:
        tiles["y"] = y = nl.ndarray((8, 6), nl.float32)
        y[...] = nl.exp(x)
        y[:, 2:4] = nl.add(x[:, 0:2], 1.0)
        rows, columns = nl.mgrid[0:8, 0:3]
        y[rows, 2 * columns] = x[rows, columns] * x[rows, columns]
        y[0:8] = nisa.tensor_copy(x)

    found = issued(kernel)
    assert names(found) == ["activation", "tensor_scalar", "tensor_tensor", "tensor_copy"]
    assert all(one["dst"].storage is tiles["y"].target.storage for one in found)
    assert [(one["dst"].offset, one["dst"].shape, one["dst"].strides[1]) for one in found] == [
        (0, (8, 6), 1),
        (2, (8, 2), 1),
        (0, (8, 3), 2),
        (0, (8, 6), 1),
    ]


def test_loads_go_to_their_destination() -> None:
    @jit
    def kernel(t: Any) -> Any:
        y = nl.ndarray((8, 12), t.dtype)
        y[:, 0:6] = nl.load(t)
        y[:, 6:12] = nl.load(t[0:8, 0:6])
        out = nl.ndarray((8, 12), t.dtype, buffer=nl.shared_hbm)
        nl.store(out, y)
        return out

    programs = Simulated(kernel, get_target(default_target())).trace(X)
    assert names(programs[0].instructions) == ["dma_copy"] * 3
    np.testing.assert_array_equal(kernel(X), np.concatenate([X, X], 1))


def test_a_result_with_a_name_has_a_tile_of_its_own() -> None:
    def kernel(x: Any) -> None:
        y = nl.ndarray((8, 6), nl.float32)
        first = nl.exp(x)
        second = nl.square(x)
        y[...] = first  # copied: it has a tile already
        y[...] = second

    found = issued(kernel)
    assert names(found) == ["activation", "activation", "tensor_copy", "tensor_copy"]
    assert len({one["dst"].storage.index for one in found}) == 3


def test_float32_results_are_rounded_to_the_destination_at_once() -> None:
    def kernel(x: Any) -> None:
        y = nl.ndarray((8, 6), nl.bfloat16)
        y[...] = nl.copy(x, dtype=nl.bfloat16) * 2.0
        y[...] = nl.exp(x)
        y[...] = nl.copy(x, dtype=nl.float16)  # rounded to float16 first, as the kernel says

    assert names(issued(kernel)) == ["tensor_copy", "tensor_scalar", "activation", "tensor_copy", "tensor_copy"]


@pytest.mark.parametrize("zeros", [nl.zeros, lambda *args, **options: nl.full(args[0], 0.0, args[1], **options)])
def test_matrix_products_accumulate_in_new_psum_without_a_memset(zeros: Callable[..., Any]) -> None:
    def kernel(x: Any) -> None:
        total = zeros((6, 6), nl.float32, buffer=nl.psum)
        for _ in nl.affine_range(3):
            total += nl.matmul(x, x, transpose_x=True)
        part = zeros((6, 6), nl.float32, buffer=nl.psum)
        part[...] += nisa.nc_matmul(x, x)
        part[:, :] += nisa.nc_matmul(x, x)

    found = issued(kernel)
    assert names(found) == ["nc_matmul"] * 5
    assert len({one["dst"].storage.index for one in found}) == 2


def test_zeros_of_psum_are_written_where_something_reads_them() -> None:
    def kernel(x: Any) -> None:
        total = nl.zeros((6, 6), nl.float32, buffer=nl.psum)
        nl.copy(total)
        total += nl.matmul(x, x, transpose_x=True)

    found = issued(kernel)
    assert names(found) == ["memset", "tensor_copy", "nc_matmul"]
    assert found[0].source.line == line_of(kernel, "total = nl.zeros")

    def partly(x: Any) -> None:
        total = nl.zeros((6, 6), nl.float32, buffer=nl.psum)
        total[:, 0:3] += nl.matmul(x, x[:, 0:3], transpose_x=True)

    assert names(issued(partly)) == ["memset", "nc_matmul"]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda total, x: total.__iadd__(x), X),
        (lambda total, x: total.__setitem__(..., nl.exp(total)), np.ones_like(X)),
        (lambda total, x: total[:, 0:3].__iadd__(x[:, 0:3]), np.where(np.arange(6) < 3, X, 0)),
    ],
)
def test_zeros_of_psum_are_read_by_the_instruction_that_overwrites_them(
    change: Callable[[Any, Any], Any], wanted: Any
) -> None:
    @jit
    def kernel(t: Any) -> Any:
        out = nl.ndarray((8, 6), nl.float32, buffer=nl.shared_hbm)
        total = nl.zeros((8, 6), nl.float32, buffer=nl.psum)
        change(total, nl.load(t))
        nl.store(out, total)
        return out

    assert_close(kernel(X), wanted)


def test_masked_parts_read_what_the_tile_held_before() -> None:
    @jit
    def kernel(t: Any) -> Any:
        x, out = nl.load(t), nl.ndarray((8, 6), nl.float32, buffer=nl.shared_hbm)
        columns = nl.arange(6)[None, :]
        x[...] = nl.subtract(x, x[:, 0:1], mask=(columns < 2) | (columns > 3))
        nl.store(out, x)
        return out

    assert_close(kernel(X), np.where(np.isin(np.arange(6), (2, 3)), X, X - X[:, 0:1]))


def test_a_masked_index_may_leave_its_tile_while_zeros_wait() -> None:
    @jit
    def kernel(t: Any) -> Any:
        out, x = nl.ndarray((8, 4), nl.float32, buffer=nl.shared_hbm), nl.load(t)
        nl.zeros((8, 6), nl.float32, buffer=nl.psum)
        rows, columns = nl.mgrid[0:8, 0:6]
        made = nl.ndarray((8, 4), nl.float32)
        made[rows, columns] = nl.exp(x, mask=columns < 4)
        nl.store(out, made)
        return out

    assert_close(kernel(X), np.exp(X[:, :4]))


def test_a_mask_takes_the_same_elements_of_operands_in_two_shapes() -> None:
    @jit
    def kernel(t: Any) -> Any:
        x, out = nl.load(t), nl.ndarray((8, 3, 2), nl.float32, buffer=nl.shared_hbm)
        made = nl.full((8, 3, 2), -9.0, nl.float32)
        _, group, _ = nl.mgrid[0:8, 0:3, 0:2]
        made[...] = nl.add(x.reshape((8, 3, 2)), x.reshape((8, 2, 3)), mask=group < 2)
        nl.store(out, made)
        return out

    wanted = 2 * X.reshape(8, 3, 2)
    wanted[:, 2] = -9
    assert_close(kernel(X), wanted)


def _assign(x: Any) -> Any:
    made = nl.exp(x)
    x[...] = made
    x[...] = 0.0
    return made


def _assign_and_change(x: Any) -> Any:
    kept = nl.ndarray((8, 6), nl.float32)
    made = nl.exp(x)
    kept[...] = made
    made += 1.0
    return nl.subtract(made, kept)


def _assign_in_another_format(x: Any) -> Any:
    small = nl.ndarray((8, 6), nl.bfloat16)
    made = nl.exp(x)
    small[...] = made
    return nl.copy(made)


def _assign_where_a_mask_holds(x: Any) -> Any:
    kept = nl.ndarray((8, 4), nl.float32)
    rows, columns = nl.mgrid[0:8, 0:6]
    made = nl.exp(x, mask=columns < 4)
    kept[rows, columns] = made
    return nl.copy(made[:, 0:4])


def _repeat_what_reads_zeros(x: Any) -> Any:
    kept = nl.ndarray((8, 6), nl.bfloat16)
    zeros = nl.zeros((8, 6), nl.float32, buffer=nl.psum)
    made = nl.add(zeros, x)
    kept[...] = made
    return nl.copy(made)


def _add_to_a_sum(x: Any) -> Any:
    total = nl.zeros((6, 6), nl.float32, buffer=nl.psum)
    product = nisa.nc_matmul(x, x)
    total += product
    total += nisa.nc_matmul(x, x)
    return nl.subtract(total, product)


def _assign_a_sum(x: Any) -> Any:
    nl.zeros((6, 6), nl.float32, buffer=nl.psum)
    total = nl.ndarray((6, 6), nl.float32, buffer=nl.psum)
    product: Any = nisa.nc_matmul(x, x)
    total[...] = product
    product += nisa.nc_matmul(x, x)
    return nl.add(product, total)


@pytest.mark.parametrize(
    ("use", "wanted"),
    [
        (_assign, np.exp(X)),
        (_assign_and_change, np.ones_like(X)),
        (_assign_in_another_format, np.exp(X)),
        (_assign_where_a_mask_holds, np.exp(X[:, :4])),
        (_repeat_what_reads_zeros, X),
        (_add_to_a_sum, X.T @ X),
        (_assign_a_sum, 3 * X.T @ X),
    ],
)
def test_a_result_that_was_assigned_keeps_its_numbers(use: Callable[[Any], Any], wanted: Any) -> None:
    @jit
    def kernel(t: Any) -> Any:
        made = use(nl.load(t))
        out = nl.ndarray(made.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(out, made)
        return out

    np.testing.assert_allclose(kernel(X), wanted, rtol=1e-5, atol=1e-5)


def test_accumulated_products_are_right() -> None:
    @jit
    def kernel(t: Any) -> Any:
        x, out = nl.load(t), nl.ndarray((6, 6), nl.float32, buffer=nl.shared_hbm)
        total = nl.zeros((6, 6), nl.float32, buffer=nl.psum)
        for _ in nl.affine_range(3):
            total += nl.matmul(x, x, transpose_x=True)
        nl.store(out, total)
        return out

    assert_close(kernel(X), 3 * (X.T @ X))


def test_instructions_keep_the_order_and_the_lines_of_the_program() -> None:
    def kernel(x: Any) -> None:
        first = nl.exp(x)
        second = nl.ndarray((8, 6), nl.float32)
        third = nl.square(x)
        second[...] = nl.add(
            first,
            third,
        )
        nl.softmax(second, axis=1)

    found = issued(kernel)
    assert names(found)[:3] == ["activation", "activation", "tensor_tensor"]
    assert [one.source.line for one in found[:3]] == [
        line_of(kernel, "nl.exp"),
        line_of(kernel, "nl.square"),
        line_of(kernel, "nl.add"),
    ]
    assert {one.source.line for one in found[3:]} == {line_of(kernel, "nl.softmax")}
    assert {one["dst"].storage.source.line for one in found[3:]} == {line_of(kernel, "nl.softmax")}


def test_a_result_is_computed_from_what_was_there_when_it_was_written() -> None:
    @jit
    def kernel(t: Any) -> Any:
        x, out = nl.load(t), nl.ndarray((8, 6), nl.float32, buffer=nl.shared_hbm)
        doubled = x * 2.0
        x[...] = 5.0
        x[:, 0:3] = doubled[:, 0:3] + x[:, 0:3]
        nl.store(out, x)
        return out

    wanted = np.full_like(X, 5)
    wanted[:, :3] += 2 * X[:, :3]
    assert_close(kernel(X), wanted)


def test_assignments_repeat_columns_and_numbers() -> None:
    @jit
    def kernel(t: Any) -> Any:
        x, out = nl.load(t), nl.ndarray((8, 6), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((8, 6), nl.float32)
        y[...] = nl.exp(x[:, 0:1])
        y[:, 4:6] = x[:, 1:2]
        y[5, 2] = 7
        y[...] = y
        nl.store(out, y)
        return out

    wanted = np.repeat(np.exp(X[:, :1]), 6, 1)
    wanted[:, 4:] = X[:, 1:2]
    wanted[5, 2] = 7
    assert_close(kernel(X), wanted)


def test_results_of_another_shape_are_written_at_once() -> None:
    x = numbers(1, 8, 2, 3)

    @jit
    def kernel(t: Any) -> Any:
        out, y = nl.ndarray((8, 6), BFLOAT16, buffer=nl.shared_hbm), nl.ndarray((8, 6), nl.float32)
        y[...] = nl.exp(nl.load(t))
        nl.store(out, nl.copy(y, dtype=nl.bfloat16))
        return out

    programs = Simulated(kernel, get_target(default_target())).trace(x)
    assert names(programs[0].instructions) == ["dma_copy", "activation", "tensor_copy", "dma_copy"]
    assert_close(kernel(x), np.exp(x).reshape(8, 6).astype(BFLOAT16))


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (
            lambda x: x.__setitem__(..., nl.exp(x[:, 0:3])),
            r"a tile of shape \(8, 3\) is assigned to one of \D*\(8, 6\)",
        ),
        (lambda x: x[:, 0:1].__setitem__(..., nl.copy(x)), r"shape \(8, 6\) is assigned to one of shape \(8, 1\)"),
        (lambda x: x.__setitem__(..., "x"), "a str is assigned to a tile"),
        (lambda x: nl.shared_identity_matrix(4).__setitem__(..., 1.0), "is in HBM: assigning to it is no instruction"),
        (lambda x: x.__setitem__(..., nl.shared_identity_matrix(6)[0:6]), "sizes must agree|is in HBM"),
    ],
)
def test_mistakes_of_assignments_are_refused(use: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(KernelError, match=says):
        issued(use)


def test_functions_outside_a_kernel_are_refused() -> None:
    calls: list[Callable[[], Any]] = [
        lambda: nl.zeros((4, 4), nl.float32),
        lambda: nl.program_id(0),
        lambda: nl.rand((4, 4)),
    ]
    for call in calls:
        with pytest.raises(KernelError, match="outside a kernel; decorate the function"):
            call()


def test_print_shows_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        print("before", t[0:1, 0:2], f"after {nl.multiply(t, 2.0)[0:1, 0:2]}")
        nl.store(out, t)
        return out

    kernel(np.full((8, 6), 1.5, np.float32))
    assert capsys.readouterr().out == "before [[1.5 1.5]] after [[3. 3.]]\n"
