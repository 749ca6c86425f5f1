"""``nki.jit``, ``simulate`` and ``trace``: arguments, results, what is kept, and what a program knows of its source."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulating import TARGETS, Array, Tensor, drawn, give, load, same, spec, tile, traced

from trnrt.errors import KernelError, OptionError
from trnrt.nki import Simulated, Spec, nisa, nki, nl, simulate, trace
from trnrt.nki.sim.kernel import TARGET_VARIABLE, Kernel


@nki.jit
def scaled(a: Tensor, factor: float = 2.0, op: Any = nl.multiply) -> Tensor:
    """a op factor"""
    x = load(a)
    nisa.tensor_scalar(dst=x, data=x, op0=op, operand0=factor)
    return give(x)


@nki.jit
def generation(a: Tensor) -> Tensor:
    out = tile(1, 1)
    nisa.memset(dst=out, value=float(nisa.get_nc_version()))
    return give(out)


# Calling.
def test_a_kernel_is_called_with_arrays() -> None:
    a = drawn(4, 6)
    same(scaled(a), a * 2)
    same(scaled(a, 3.0), a * 3)
    same(scaled(factor=3.0, a=a), a * 3)
    same(nki.simulate(scaled)(a, op=nl.add), a + 2)


def test_a_plain_function_is_a_kernel() -> None:
    def double(a: Tensor) -> Tensor:
        result: Tensor = scaled(a)
        return result

    a = drawn(4, 6)
    same(simulate(double)(a), a * 2)


def test_a_kernel_keeps_its_name_and_signature() -> None:
    assert scaled.__name__ == scaled.name == "scaled"
    assert scaled.__doc__ == "a op factor"
    assert list(inspect.signature(scaled).parameters) == ["a", "factor", "op"]


def test_jit_takes_options() -> None:
    def itself(a: Tensor) -> Tensor:
        return a

    same_again = nki.jit(platform_target="trn2", debug=True)(itself)
    a = drawn(4, 6)
    assert isinstance(same_again, Kernel)
    same(same_again(a), a)


def test_a_tuple_a_list_or_one() -> None:
    def pair(a: Tensor) -> tuple[Tensor, Tensor]:
        return a, a

    a = drawn(4, 6)
    assert isinstance(simulate(lambda t: t)(a), np.ndarray)
    assert isinstance(simulate(pair)(a), tuple)
    assert isinstance(simulate(lambda t: [t])(a), tuple)
    assert len(simulate(lambda t: (t,))(a)) == 1


def test_arguments_of_variable_number() -> None:
    def total(*tensors: Tensor, **more: Tensor) -> Tensor:
        x = load(tensors[0])
        for other in (*tensors[1:], *more.values()):
            nisa.tensor_tensor(dst=x, data1=x, data2=load(other), op=nl.add)
        return give(x)

    a, b, c = (drawn(4, 6, seed=seed) for seed in range(3))
    same(simulate(total)(a, b, last=c), a + b + c)
    program = trace(total, spec(4, 6), last=spec(4, 6))
    assert [storage.name for storage in program.inputs] == ["tensors[0]", "last"]


@pytest.mark.parametrize(
    "dtype", [np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e5m2, np.int8, np.bool_]
)
def test_results_come_back_in_the_kernel_s_dtype(dtype: Any) -> None:
    a = np.array([[0, 1, 1, 0]], dtype)
    got = simulate(lambda t: give(load(t)))(a)
    assert got.dtype == a.dtype
    same(got, a)


# What is kept.
def test_a_shape_is_compiled_once() -> None:
    runs = []

    def counted(a: Tensor, factor: object = None, flags: object = ()) -> Tensor:
        runs.append(a.shape)
        return a

    call = simulate(counted)
    a, b = drawn(4, 6), drawn(5, 6)
    for arguments in ((a,), (a + 1,), (b,), (a,), (b,)):
        same(call(*arguments), arguments[0])
    assert runs == [(4, 6), (5, 6)]
    call(a.astype(np.float16))
    assert len(runs) == 3
    for factor in (1, 1.0, True, 0.0, -0.0, "1", None, (1, 2), [1, 2], {"a": 1}, {"a": 2}, nl.add, nl.float32, load):
        before = len(runs)
        call(a, factor)
        call(a, factor)
        assert len(runs) == before + (factor is not None), factor


def test_equal_kernels_are_kept_apart() -> None:
    a = drawn(4, 6)
    results = [simulate(lambda t, f=f: f(t))(a) for f in (lambda t: scaled(t, 2.0), lambda t: scaled(t, 3.0))]
    same(results[0], a * 2)
    same(results[1], a * 3)


# Targets.
@pytest.mark.parametrize(("name", "number"), [("trn1", 2), ("gen2", 2), ("inf2", 2), ("trn2", 3), ("gen4", 4), ("", 3)])
def test_the_target_of_the_environment(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TARGET_VARIABLE, name)
    a = drawn(4, 6)
    assert generation(a).item() == number
    assert simulate(generation)(a).item() == number
    assert trace(generation, spec(4, 6)).target.generation == number
    assert simulate(generation, "trn3")(a).item() == 4


def test_the_default_target_is_trn2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TARGET_VARIABLE, raising=False)
    assert generation(drawn(4, 6)).item() == 3
    assert simulate(generation).target.name == "trn2"


def test_a_target_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="unknown target 'trn9'"):
        simulate(generation, "trn9")
    monkeypatch.setenv(TARGET_VARIABLE, "h100")
    for call in (generation, lambda a: trace(generation, a), lambda a: simulate(generation)(a)):
        with pytest.raises(OptionError, match="unknown target 'h100'") as error:
            call(drawn(4, 6))
        assert error.value.hint == "targets are trn1, trn2, trn3, or a file such as ./trn4.toml"


@pytest.mark.parametrize("target", TARGETS)
def test_tile_sizes_are_the_target_s(target: str) -> None:
    seen: list[int] = []

    def body() -> None:
        size = nl.tile_size
        seen.extend((size.sbuf_fmax, size.sbuf_fmax_bytes, size.gemm_moving_fmax))
        assert (size.pmax, size.psum_bank_fmax, size.psum_num_banks, size.gemm_stationary_fmax) == (128, 512, 8, 128)

    program = traced(body, target=target)
    usable = program.target.sbuf_usable_bytes
    assert seen == [usable // 4, usable, 512]


def test_generations_are_ordered() -> None:
    assert nisa.nc_version.gen2 < nisa.nc_version.gen3 <= nisa.nc_version.gen4


# The program.
def helper(dst: Tensor, src: Tensor) -> None:
    nisa.tensor_copy(dst=dst, src=src, name="copied")


@nki.jit
def inner(src: Tensor) -> Tensor:
    made = nl.ndarray(src.shape, src.dtype)
    helper(made, src)
    return made


@nki.jit
def outer(a: Tensor) -> Tensor:
    x = load(a)
    y = inner(x)
    return give(y)


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function.function if isinstance(function, Kernel) else function)
    return next(number for number, line in enumerate(lines, first) if text in line)


def test_instructions_know_their_source_and_their_step() -> None:
    """The innermost line outside the simulator, and the line of the entry kernel; nested kernels are inlined."""
    program = trace(outer, spec(4, 6))
    copied = next(i for i in program.instructions if i.name == "copied")
    assert copied.source.file == __file__
    assert copied.source.line == line_of(helper, "tensor_copy")
    assert copied.source.function == "helper"
    assert copied.line == line_of(outer, "inner(x)")
    assert str(copied.source) == f"{__file__}:{copied.source.line} in helper"
    made = copied["dst"].storage
    assert (made.source.file, made.source.line) == (__file__, line_of(inner, "nl.ndarray"))
    assert [i.line for i in program.instructions] == [line_of(outer, t) for t in ("load(a)", "inner(x)", "give(y)")]
    assert program.kernel == "outer"
    assert program.file == __file__
    assert program.inputs[0].source.line == inspect.getsourcelines(outer.function)[1]


def test_kernels_beside_the_simulator_are_not_the_simulator() -> None:
    """A folder whose name starts like the simulator's is a user's."""
    path = str(Path(nki.__file__).parents[1].with_name("nki_kernels") / "mine.py")
    names: dict[str, Any] = {"nisa": nisa, "load": load}
    exec(compile("def kernel(a):\n    x = load(a)\n    nisa.tensor_copy(x, x)\n    return a\n", path, "exec"), names)
    program = trace(names["kernel"], spec(4, 6))
    assert program.file == path
    assert [instruction.line for instruction in program.instructions] == [2, 3]
    assert str(program.instructions[1].source) == f"{path}:3 in kernel"


def test_arguments_and_results_of_a_program() -> None:
    program = trace(scaled, np.zeros((4, 6), np.float16), factor=3.0, target="trn1")
    assert [(s.name, s.shape, s.dtype.name, s.buffer) for s in program.inputs] == [
        ("a", (4, 6), "float16", nl.shared_hbm)
    ]
    assert [view.shape for view in program.outputs] == [(4, 6)]
    assert not program.returns_tuple
    assert [i.operation.name for i in program.instructions] == ["dma_copy", "tensor_scalar", "dma_copy"]
    assert all(i.name is None for i in program.instructions)


def test_spec() -> None:
    assert spec(4, 6) == Spec([4, 6], np.float32)
    assert spec(4, 6) != spec(6, 4)
    assert spec(4, 6) != (4, 6)
    assert len({spec(4, 6), spec(4, 6), spec(4, 6, dtype="bfloat16")}) == 2
    assert repr(spec(4, 6)) == "Spec((4, 6), float32)"
    with pytest.raises(KernelError, match=r"Spec\(\(4,\)\): the NeuronCore has no dtype 'int64'"):
        Spec((4,), "int64")


def test_simulate_gives_a_simulated_kernel() -> None:
    call: Simulated = simulate(scaled)
    array: Array = call(drawn(2, 2))
    assert array.shape == (2, 2)
