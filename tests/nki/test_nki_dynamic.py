"""What is known at run time only: registers, device loops, indices, and bits read as another dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl, simulate, trace

ROWS = np.arange(40, dtype=np.float32).reshape(8, 5)


def load_register(index_hbm: Any) -> Any:
    """A register that holds the one element of an int32 tensor in HBM."""
    tile = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=index_hbm)
    register = nisa.register_alloc()
    nisa.register_load(register, tile)
    return register


def number(value: int) -> Any:
    """An int32 tensor of one element."""
    return np.array([[value]], np.int32)


def counted_sum(count: Any, style: str) -> Any:
    """The sum of 0 ... count - 1, each counter value stored and added on the device."""
    out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    total = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    step = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0)
    limit = load_register(count)

    def body(i: Any) -> None:
        nisa.register_store(step, i)
        nisa.tensor_tensor(dst=total, data1=total, data2=step, op=nl.add)

    if style == "fori_loop":
        nl.fori_loop(0, limit, body)
    else:
        for i in nl.dynamic_range(limit):
            body(i)
    nisa.dma_copy(dst=out, src=total)
    return out


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize("style", ["fori_loop", "dynamic_range"])
@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_a_counted_loop_runs_as_often_as_the_data_say(style: str, count: int) -> None:
    run = simulate(counted_sum)
    assert run(number(count), style)[0, 0] == sum(range(count))


def test_a_loop_stays_a_loop_in_the_program() -> None:
    small, large = (len(trace(counted_sum, number(n), "fori_loop").instructions) for n in (1, 1000))
    assert small == large < 15


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize("style", ["while_loop", "while"])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_while_loop_runs_until_its_register_is_zero(style: str, count: int) -> None:
    def kernel(start: Any) -> Any:
        out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        left = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        rounds = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        one = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=rounds, value=0)
        nisa.memset(dst=one, value=1)
        nisa.dma_copy(dst=left, src=start)
        register = nisa.register_alloc()
        nisa.register_load(register, left)

        def body(condition: Any) -> Any:
            nisa.tensor_tensor(dst=rounds, data1=rounds, data2=one, op=nl.add)
            nisa.tensor_tensor(dst=left, data1=left, data2=one, op=nl.subtract)
            nisa.register_load(condition, left)
            return condition

        if style == "while_loop":
            nl.while_loop(register, body)
        else:
            while register:
                body(register)
        nisa.dma_copy(dst=out, src=rounds)
        return out

    assert simulate(kernel)(number(count))[0, 0] == count


@pytest.mark.usefixtures("level_0_6")
def test_nested_loops_and_offsets() -> None:
    def kernel(src: Any) -> Any:
        out = nl.ndarray((8, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
        for i in nl.dynamic_range(8):
            for j in nl.dynamic_range(0, 5, 2):
                row = nl.ndarray((1, 5), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=row, src=src.ap([[5, 1], [1, 5]], scalar_offset=i, indirect_dim=0))
                nisa.tensor_copy(dst=tile, src=row.ap([[5, 1], [1, 1]], scalar_offset=j, indirect_dim=1))
                nisa.tensor_scalar(dst=row, data=row, op0=nl.add, operand0=tile)
                nisa.dma_copy(dst=out.ap([[5, 1], [1, 5]], scalar_offset=i, indirect_dim=0), src=row)
        return out

    # The last j is 4: element 4 of the row is added to all of it.
    np.testing.assert_array_equal(simulate(kernel)(ROWS), ROWS + ROWS[:, 4:5])


@pytest.mark.parametrize("by", ["register", "tile"])
def test_select_by_a_run_time_index(by: str) -> None:
    def kernel(src: Any, index: Any) -> Any:
        out = nl.ndarray((8, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=index)
        which = load_register(index) if by == "register" else tile
        part = src.select(0, which)
        assert part.shape == (8, 5) and part.is_indirect()
        nisa.dma_copy(dst=out, src=part)
        return out

    data = np.random.default_rng(0).standard_normal((3, 8, 5)).astype(np.float32)
    run = simulate(kernel)
    for index in range(3):
        np.testing.assert_array_equal(run(data, number(index)), data[index])
    for index in (-1, 3):
        with pytest.raises(KernelError, match=f"index {index} is out of bounds"):
            run(data, number(index))


def gather(src: Any, index: Any, skip: bool) -> Any:
    """out[p] = src[index[p]], and -1 where a skipped index is out of bounds."""
    count, width = index.shape[0], src.shape[1]
    out = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.shared_hbm)
    rows = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.sbuf)
    got = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=index)
    nisa.memset(dst=got, value=-1.0)
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
    nisa.dma_copy(dst=got, src=src.vector_select(0, rows), oob_mode=mode)
    nisa.dma_copy(dst=out, src=got)
    return out


def test_gather() -> None:
    index = np.array([[7], [0], [0], [3]], np.int32)
    np.testing.assert_array_equal(simulate(gather)(ROWS, index, False), ROWS[index[:, 0]])
    index[2] = 8
    with pytest.raises(KernelError, match="index 8 is out of bounds"):
        simulate(gather)(ROWS, index, False)
    expected = ROWS[[7, 0, 0, 3]]
    expected[2] = -1
    np.testing.assert_array_equal(simulate(gather)(ROWS, index, True), expected)


@pytest.mark.parametrize("last", [1, 9])
def test_scatter(last: int) -> None:
    def kernel(src: Any, index: Any) -> Any:
        out = nl.ndarray((8, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        rows = nl.ndarray((3, 1), dtype=nl.int32, buffer=nl.sbuf)
        got = nl.ndarray((3, 5), dtype=nl.float32, buffer=nl.sbuf)
        zeros = nl.ndarray((8, 5), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=zeros, value=0.0)
        nisa.dma_copy(dst=out, src=zeros)
        nisa.dma_copy(dst=rows, src=index)
        nisa.dma_copy(dst=got, src=src[0:3, :])
        target = out.ap([[5, 3], [1, 5]], vector_offset=rows, indirect_dim=0)
        nisa.dma_copy(dst=target, src=got, oob_mode=nisa.oob_mode.skip)
        return out

    expected = np.zeros_like(ROWS)
    for row, at in enumerate((6, 2, last)):
        if at < 8:
            expected[at] = ROWS[row]
    np.testing.assert_array_equal(simulate(kernel)(ROWS, np.array([[6], [2], [last]], np.int32)), expected)


def test_bits_read_as_another_dtype() -> None:
    def kernel(src: Any) -> Any:
        tile = nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.sbuf)
        out = nl.ndarray((4, 12), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        same = nl.ndarray((4, 6), dtype=nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=src)
        halves = tile.view(nl.bfloat16)
        assert halves.shape == (4, 12) and halves.dtype == nl.bfloat16
        nisa.dma_copy(dst=out, src=halves)
        nisa.dma_copy(dst=same, src=tile.ap([[6, 4], [1, 6]], dtype=nl.int32))
        return out, same

    data = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    halves, integers = simulate(kernel)(data)
    np.testing.assert_array_equal(halves.view(np.uint16), data.view(np.uint16))
    np.testing.assert_array_equal(integers, data.view(np.int32))
    assert halves.dtype == ml_dtypes.bfloat16


def test_bits_written_as_another_dtype() -> None:
    def kernel(src: Any) -> Any:
        out = nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=src)
        upper = tile.view(nl.uint16)[:, 1::2]
        nisa.memset(dst=upper, value=0x3F80)
        nisa.dma_copy(dst=out, src=tile)
        return out

    data = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)
    bits = (data.view(np.uint32) & 0xFFFF) | 0x3F800000
    np.testing.assert_array_equal(simulate(kernel)(data), bits.view(np.float32))


def test_rearrange() -> None:
    def kernel(src: Any) -> Any:
        out = nl.ndarray((8, 6, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((8, 24), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=src)
        view = tile.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})
        assert view.shape == (8, 6, 4)
        nisa.dma_copy(dst=out, src=view)
        return out

    data = np.random.default_rng(3).standard_normal((8, 24)).astype(np.float32)
    np.testing.assert_array_equal(simulate(kernel)(data), data.reshape(8, 4, 6).swapaxes(1, 2))


BROKEN: list[tuple[str, str]] = [
    ("if_on_register", "nl.where"),
    ("break", "a device loop was begun and not ended"),
    ("int_of_register", "known on the device only"),
    ("write_counter", "rule register-writable"),
    ("two_indices", "can't have two"),
    ("float_index", "integer tile in SBUF"),
    ("register_step", "positive integer known when compiling"),
    ("two_element_load", "rule register-tile"),
    ("assign", "say which engine copies"),
]


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize(("what", "message"), BROKEN)
def test_what_only_the_device_knows_is_refused_where_python_asks(what: str, message: str) -> None:
    def kernel(src: Any) -> Any:
        register = nisa.register_alloc(3)
        floats = nl.ndarray((1, 2), dtype=nl.float32, buffer=nl.sbuf)
        index = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=index, value=0)
        if what == "if_on_register" and register:
            pass
        elif what == "break":
            for _ in nl.dynamic_range(3):
                break
        elif what == "int_of_register":
            return src[int(register)]  # type: ignore[call-overload]
        elif what == "write_counter":
            for i in nl.dynamic_range(3):
                nisa.register_move(i, 1)
        elif what == "two_indices":
            return src.select(0, index).select(0, index)
        elif what == "float_index":
            return src.select(0, floats[:, 0:1])
        elif what == "register_step":
            nl.fori_loop(0, 3, lambda i: None, register)
        elif what == "two_element_load":
            nisa.register_load(register, nl.ndarray((1, 2), dtype=nl.int32, buffer=nl.sbuf))
        elif what == "assign":
            floats[:, 0] = 1.0
        return src

    with pytest.raises(KernelError, match=message):
        trace(kernel, ROWS)
