"""What the host gives a kernel, what comes back, and what a kernel writes into its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch_tensors
from click.testing import CliRunner
from simulating import NUMPY, Array, Tensor, drawn, give, load, same, spec, tile
from torch_tensors import Tensor as FakeTensor

from trnrt.cli import app
from trnrt.errors import KernelError
from trnrt.nki import nisa, nki, nl, simulate, trace


@pytest.fixture
def torch() -> Iterator[Any]:
    with torch_tensors.installed() as module:
        yield module


@nki.jit
def add(a: Any, b: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    nl.store(out, nl.add(nl.load(a), nl.load(b)))
    return out


@nki.jit
def increase(a: Any) -> None:
    """Writes to its argument, and returns nothing."""
    loaded = load(a)
    nisa.tensor_scalar(dst=loaded, data=loaded, op0=nl.add, operand0=1)
    nisa.dma_copy(dst=a, src=loaded)


# PyTorch tensors


@pytest.mark.parametrize(
    "dtype",
    ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int32", "int16", "int8", "uint8", "uint16"],
)
def test_tensors_in_and_tensors_out(dtype: str, torch: Any) -> None:
    a, b = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype), torch.tensor([[1, 1, 0], [0, 0, 1]], dtype)
    target = "trn3" if dtype == "float8_e4m3fn" else "trn2"
    made = simulate(add, target)(a, b)
    assert isinstance(made, FakeTensor)
    same(made.held, NUMPY[dtype].type(a.held) + b.held)
    assert repr(made.dtype) == f"torch.{dtype}"


def test_a_decorated_kernel_takes_them_too(torch: Any) -> None:
    same(add(torch.tensor([[1, 2]]), b=torch.tensor([[3, 4]])).held, np.array([[4, 6]], np.float32))


def test_several_results_are_tensors(torch: Any) -> None:
    def both(a: Tensor) -> tuple[Tensor, Tensor]:
        return give(load(a)), give(load(a))

    one, other = simulate(both)(torch.tensor([[1, 2]], "bfloat16"))
    assert repr(one.dtype) == repr(other.dtype) == "torch.bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_that_need_a_gradient_or_lie_in_steps(dtype: str, torch: Any) -> None:
    values = torch.tensor(np.arange(24).reshape(4, 6), dtype)
    needs = FakeTensor(values.held, requires_grad=True)
    same(simulate(add)(needs, values.clone()).held, values.held + values.held)
    same(simulate(add)(values.T, values.clone().T).held, (values.held + values.held).T)
    part = values[:, ::2]
    same(simulate(add)(part, part.clone()).held, part.held + part.held)


def test_one_tensor_makes_tensors_of_the_results(torch: Any) -> None:
    ones = np.ones((4, 6), np.float32)
    assert isinstance(simulate(add)(ones, torch.tensor(ones)), FakeTensor)
    assert isinstance(simulate(add)(ones, ones), np.ndarray)


def test_a_device_s_tensor_goes_to_the_host_and_back(torch: Any) -> None:
    there = FakeTensor(np.ones((4, 6), np.float32), device="cuda:0")
    made = simulate(add)(there, torch.tensor(np.ones((4, 6))))
    assert made.device == "cuda:0"
    simulate(increase)(there)
    same(there.held, np.full((4, 6), 2, np.float32))


def test_without_the_library_the_results_are_arrays() -> None:
    """A class with PyTorch's interface whose module makes no tensors."""
    made = simulate(add)(torch_tensors.Tensor(np.ones((4, 6), np.float32)), np.ones((4, 6), np.float32))
    same(made if isinstance(made, np.ndarray) else made.held, np.full((4, 6), 2, np.float32))


def test_a_result_that_pytorch_has_no_dtype_for(torch: Any) -> None:
    def cast(a: Tensor) -> Tensor:
        out = nl.ndarray(a.shape, nl.float8_e4m3, nl.shared_hbm)
        narrow = tile(*a.shape, dtype=nl.float8_e4m3)
        nisa.tensor_copy(dst=narrow, src=load(a))
        nisa.dma_copy(dst=out, src=narrow)
        return out

    assert simulate(cast)(np.ones((4, 6), np.float32)).dtype == ml_dtypes.float8_e4m3
    with pytest.raises(KernelError, match="kernel cast returned float8_e4m3") as error:
        simulate(cast)(torch.tensor(np.ones((4, 6))))
    assert "numpy" in str(error.value.hint)


def test_trace_takes_tensors(torch: Any) -> None:
    program = trace(add, torch.tensor([[1, 2]], "bfloat16"), torch.tensor([[1, 2]], "bfloat16"))
    assert [(s.shape, s.dtype) for s in program.inputs] == [((1, 2), nl.bfloat16)] * 2


# Other arguments


class Jax:
    """An array as JAX has them: it turns into a read-only numpy array."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        self._array.flags.writeable = False
        return self._array


class Exchanged:
    """An array that only DLPack can read."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("kind", [Jax, Exchanged])
def test_what_turns_into_an_array_is_one(kind: Any) -> None:
    same(simulate(add)(kind(drawn(4, 6)), kind(drawn(4, 6))), drawn(4, 6) * 2)
    assert trace(add, kind(drawn(4, 6)), spec(4, 6)).inputs[0].shape == (4, 6)


def test_bfloat16_arrays_of_other_libraries() -> None:
    values = drawn(4, 6, dtype="bfloat16")
    same(simulate(add)(Jax(values), Jax(values)), values + values)


@pytest.mark.parametrize("number", [2.0, 2, np.float32(2), np.int32(2)])
def test_numbers_stay_numbers(number: Any) -> None:
    def times(a: Tensor, factor: float) -> Tensor:
        assert factor is number
        scaled = load(a)
        nisa.tensor_scalar(dst=scaled, data=scaled, op0=nl.multiply, operand0=factor)
        return give(scaled)

    same(simulate(times)(drawn(4, 6), number), drawn(4, 6) * np.float32(2))


def test_lists_of_numbers_stay_lists() -> None:
    def part(a: Tensor, sizes: list[int]) -> Tensor:
        return give(load(a)[0 : sizes[0], 0 : sizes[1]])

    same(simulate(part)(drawn(4, 6), [2, 3]), drawn(4, 6)[:2, :3])


@pytest.mark.parametrize("value", [[[1.0, 2.0]], [1.0, 2.0], ((1.0, 2.0), (3.0, 4.0)), [np.float32(1)]])
@pytest.mark.parametrize(
    "use", [lambda a: nl.load(a), lambda a: a.shape, lambda a: nisa.dma_copy(dst=tile(1, 2), src=a)]
)
def test_a_list_in_the_place_of_a_tensor_is_refused_in_words(use: Callable[[Any], Any], value: Any) -> None:
    def kernel(weights: Any) -> Any:
        use(weights)
        return nl.ndarray((1,), nl.float32, nl.shared_hbm)

    with pytest.raises(KernelError) as error:
        simulate(kernel)(value)
    assert error.value.hint is not None
    assert "argument 'weights' is a " in error.value.hint
    assert "np.asarray(weights, np.float32)" in error.value.hint


def test_tensors_in_containers_are_tensors(torch: Any) -> None:
    def total(parts: Any, named: dict[str, Any]) -> Tensor:
        return give(nl.add(nl.add(nl.load(parts[0]), nl.load(parts[1][0])), nl.load(named["last"])))

    a, b, c = (drawn(4, 6, seed=seed) for seed in range(3))
    expected = a + b + c
    for parts in ([a, (b,)], (a, [b])):
        same(simulate(total)(parts, {"last": c}), expected)
    same(simulate(total)([torch.tensor(a), [torch.tensor(b)]], {"last": torch.tensor(c)}).held, expected)
    assert [s.name for s in trace(total, [a, [b]], {"last": c}).inputs] == ["parts[0]", "parts[1][0]", "named['last']"]


@pytest.mark.parametrize(
    ("dtype", "instead"),
    [("float64", "float32"), ("int64", "int32"), ("uint64", "uint32"), ("complex64", ""), ("object", ""), ("<U1", "")],
)
def test_a_dtype_that_the_device_lacks_names_the_argument(dtype: str, instead: str) -> None:
    with pytest.raises(KernelError) as error:
        simulate(add)(np.zeros((4, 6), np.float32), b=np.zeros((4, 6), dtype))
    message = str(error.value)
    assert message.startswith("kernel add: argument 'b': the NeuronCore has no dtype ")
    assert repr(np.dtype(dtype)) in message
    assert all(name in message for name in ("float32", "bfloat16", "int32", "uint8", "bool_"))
    assert (f"convert it to {instead}, for example" in message) == bool(instead)
    assert error.value.hint == "convert it on the host"


def test_a_tensor_s_dtype_is_named_too(torch: Any) -> None:
    with pytest.raises(KernelError, match=r"argument 'a': .*float64.*convert it to float32"):
        simulate(add)(torch.tensor([[1.0]], "float64"), torch.tensor([[1.0]], "float64"))


def test_a_tensor_that_can_t_be_read(torch: Any) -> None:
    class Broken(FakeTensor):
        def detach(self) -> FakeTensor:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")

    with pytest.raises(KernelError, match=r"kernel add: argument 'b', a .*Broken of dtype torch\.float32, .*no data!"):
        simulate(add)(torch.tensor([[1.0]]), Broken(np.ones((1, 1), np.float32)))


# What a kernel writes to its arguments


def test_the_caller_s_array_is_updated() -> None:
    a = drawn(4, 6)
    before = a.copy()
    assert simulate(increase)(a) is None
    same(a, before + 1)
    assert increase(a) is None
    same(a, before + 1 + 1)


@pytest.mark.parametrize("dtype", NUMPY)
def test_arrays_of_every_dtype_are_updated(dtype: str) -> None:
    a = np.ones((4, 6), NUMPY[dtype])
    simulate(increase, "trn3" if dtype == "float8_e4m3fn" else "trn2")(a)
    same(a, np.full((4, 6), 2, NUMPY[dtype]))


@pytest.mark.parametrize("precise", [True, False])
def test_what_is_not_written_stays(precise: bool) -> None:
    def first_row(a: Tensor) -> None:
        nisa.dma_copy(dst=a[0:1], src=load(a[1:2]))

    a = drawn(4, 6, dtype="bfloat16")
    before = a.copy()
    simulate(first_row, precise=precise)(a)
    same(a, before[[1, 1, 2, 3]])


def views() -> dict[str, Array]:
    whole = np.zeros((12, 14), np.float32)
    swapped = np.zeros((4, 6), np.dtype(np.float32).newbyteorder("S"))
    return {
        "transposed": whole[:6, :4].T,
        "in steps": whole[::3, 1:13:2],
        "backwards": whole[:4, :6][::-1, ::-1],
        "in Fortran's order": np.zeros((4, 6), np.float32, order="F"),
        "of the other byte order": swapped,
        "unaligned": np.zeros(97, np.uint8)[1:].view(np.float32).reshape(4, 6),
    }


@pytest.mark.parametrize("name", views())
def test_views_are_updated_where_they_are(name: str) -> None:
    a = views()[name]
    whole = a.base if a.base is not None else a
    simulate(increase)(a)
    np.testing.assert_array_equal(a.astype(np.float32), np.ones((4, 6), np.float32))
    if name in ("transposed", "in steps", "backwards"):
        assert np.count_nonzero(whole) == 24


def test_a_file_in_memory_is_updated(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "numbers", np.float32, "w+", shape=(4, 6))
    simulate(increase)(mapped)
    mapped.flush()
    same(np.fromfile(tmp_path / "numbers", np.float32).reshape(4, 6), np.ones((4, 6), np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_are_updated(dtype: str, torch: Any) -> None:
    values = torch.tensor(np.zeros((4, 6)), dtype)
    simulate(increase)(values)
    simulate(increase)(FakeTensor(values.held, requires_grad=True))
    simulate(increase)(values[:, ::2])
    same(values.held, np.full((4, 6), 2, NUMPY[dtype]) + (np.arange(6) % 2 == 0).astype(NUMPY[dtype]))


def own_memory() -> Array:
    return np.zeros((4, 6), np.float32)


def read_only() -> Array:
    array = own_memory()
    array.flags.writeable = False
    return array


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "read-only": (read_only, "is read-only"),
    "broadcast": (lambda: np.broadcast_to(np.zeros(6, np.float32), (4, 6)), "is read-only"),
    "JAX": (lambda: Jax(own_memory()), "is read-only"),
    "strides of 0": (
        lambda: np.lib.stride_tricks.as_strided(own_memory(), (4, 6), (0, 4)),
        "elements that share memory",
    ),
    "windows": (lambda: np.lib.stride_tricks.as_strided(own_memory(), (4, 6), (4, 4)), "elements that share memory"),
    "expanded": (lambda: torch_tensors.tensor(np.zeros((1, 6))).expand(4, 6), "elements that share memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_t_be_updated_is_refused_before_anything_runs(name: str) -> None:
    make, problem = REFUSED[name]
    with pytest.raises(KernelError, match=f"kernel increase writes its argument 'a', .*{problem}") as error:
        simulate(increase)(make())
    assert "copy" in str(error.value.hint)
    assert simulate(add)(make(), own_memory()) is not None  # a kernel that only reads it doesn't mind


def test_the_docs_say_what_is_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")
    problems = {problem.removeprefix("is ") for _, problem in REFUSED.values()}
    assert [problem for problem in problems if problem not in page] == []


class Copied(Jax):
    """Each reading gives a new array."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._array.copy()


def test_a_copy_can_t_be_updated() -> None:
    with pytest.raises(KernelError, match=r"gives only a copy of its numbers, as a .*Copied does"):
        simulate(increase)(Copied(own_memory()))


def test_arguments_that_share_memory() -> None:
    def copy_over(a: Tensor, b: Tensor) -> None:
        nisa.dma_copy(dst=a, src=load(b))

    a = np.zeros((8, 6), np.float32)
    for one, other in ((a, a), (a[:4], a[2:6]), (a[::2], a[:4])):
        with pytest.raises(KernelError, match=r"writes its argument 'a', .*shares memory with another argument"):
            simulate(copy_over)(one, other)
    a[1::2] = 3
    simulate(copy_over)(a[::2], a[1::2])
    same(a, np.full((8, 6), 3, np.float32))
    same(simulate(add)(a, a), a + a)


def test_a_run_that_fails_leaves_the_array_alone() -> None:
    def gather(a: Tensor, index: Tensor) -> None:
        ones = nl.ones((4, 6), nl.float32)
        nisa.dma_copy(dst=a, src=ones)
        nisa.dma_copy(dst=ones, src=a.vector_select(0, load(index)))

    a = own_memory()
    with pytest.raises(KernelError, match="out of bounds"):
        simulate(gather)(a, np.full((4, 1), 9, np.int32))
    same(a, own_memory())


def test_an_argument_may_be_returned_too() -> None:
    def both(a: Tensor) -> Tensor:
        nisa.dma_copy(dst=a, src=nl.ones((4, 6), nl.float32))
        return a

    a = own_memory()
    made = simulate(both)(a)
    same(a, np.ones((4, 6), np.float32))
    same(made, a)
    assert not np.shares_memory(made, a)


def test_arguments_that_are_only_read_stay(torch: Any) -> None:
    a = drawn(4, 6)
    a.flags.writeable = False
    same(simulate(add)(a, a), a + a)


def test_every_run_starts_with_what_the_array_holds() -> None:
    a, run = own_memory(), simulate(increase)
    run(a)
    a[0] = 5
    run(a)
    same(a, np.concatenate([np.full((1, 6), 6), np.full((3, 6), 2)]).astype(np.float32))


def test_two_cores_update_one_array() -> None:
    @nki.jit
    def halves(a: Any, b: Any) -> None:
        core = nl.program_id(0)
        half = load(a[core * 4 : core * 4 + 4])
        nisa.tensor_scalar(dst=half, data=half, op0=nl.add, operand0=core + 1.0)
        nisa.dma_copy(dst=a[core * 4 : core * 4 + 4], src=half)
        if core == 1:
            nisa.dma_copy(dst=b, src=half)

    for kernel in (simulate(halves)[2], simulate(halves[2]), halves[2]):
        a, b = np.zeros((8, 6), np.float32), np.zeros((4, 6), np.float32)
        assert kernel(a, b) is None
        same(a, np.repeat(np.array([1, 2], np.float32), 4)[:, None] + np.zeros((8, 6), np.float32))
        same(b, np.full((4, 6), 2, np.float32))


def test_strict_mode_takes_mutable_arguments() -> None:
    a = own_memory()
    simulate(increase, strict=True)(a)
    same(a, np.ones((4, 6), np.float32))


SCRIPT = """
import nki, nki.language as nl, nki.isa as nisa, nki.typing as nt
import numpy as np

@nki.jit
def fill(a: nt.mutable_tensor, value):
    ones = nl.full(a.shape, value, nl.float32)
    nisa.dma_copy(dst=a, src=ones)

a = np.zeros((4, 6), np.float32)
assert fill(a, 3.0) is None
print(a.sum(), nki.simulate(fill)(a, 2.0), a.sum())
"""


def test_a_script_s_arrays_are_updated(tmp_path: Path) -> None:
    path = tmp_path / "fill.py"
    path.write_text(SCRIPT, encoding="utf-8")
    result = CliRunner().invoke(app, ["nki", "run", str(path)])
    assert (result.exit_code, result.stdout) == (0, "72.0 None 48.0\n")
    assert CliRunner().invoke(app, ["nki", "check", str(path), "--call", "fill(f32[4,6], 1.0)"]).exit_code == 0


def test_a_kernel_must_give_something() -> None:
    with pytest.raises(KernelError, match="returned NoneType; it must return tensors") as error:
        simulate(lambda a: None)(own_memory())
    assert error.value.hint == "a kernel that writes to one of its arguments may return nothing"
    with pytest.raises(KernelError, match="returned an empty tuple"):
        simulate(lambda a: ())(own_memory())
