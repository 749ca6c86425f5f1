"""shared_constant, shared_identity_matrix and device_print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulating import NUMPY, drawn, give, load, run, same, tile

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl, simulate, trace


@pytest.mark.parametrize("dtype", NUMPY)
def test_a_constant_is_in_the_program(dtype: str) -> None:
    data = drawn(4, 6, dtype=dtype)

    def kernel() -> nl.NkiTensor:
        constant = nl.shared_constant(data)
        assert (constant.shape, constant.dtype.name, constant.buffer) == ((4, 6), dtype, nl.shared_hbm)
        return give(load(constant))

    simulated = simulate(kernel, "trn3")
    same(simulated(), data)
    same(simulated(), data)


@pytest.mark.parametrize("as_text", [True, False])
def test_a_constant_from_a_file(tmp_path: Path, as_text: bool) -> None:
    data = drawn(3, 5)
    path = tmp_path / "constant.npy"
    np.save(path, data)

    def kernel() -> nl.NkiTensor:
        return give(load(nl.shared_constant(str(path) if as_text else path)))

    simulated = simulate(kernel)
    same(simulated(), data)
    path.unlink()
    same(simulated(), data)


def test_what_a_kernel_writes_to_a_constant_is_gone_at_the_next_call() -> None:
    data = drawn(2, 3)

    def kernel() -> tuple[nl.NkiTensor, nl.NkiTensor]:
        constant = nl.shared_constant(data)
        before = give(load(constant))
        nisa.dma_copy(dst=constant, src=nl.zeros((2, 3), nl.float32))
        return before, constant

    simulated = simulate(kernel)
    for _ in range(2):
        before, after = simulated()
        same(before, data)
        same(after, np.zeros_like(data))


def test_a_constant_can_be_returned_and_read_as_other_bits() -> None:
    data = drawn(2, 4)

    def kernel() -> tuple[nl.NkiTensor, nl.NkiTensor]:
        constant = nl.shared_constant(data)
        words = tile(2, 4, dtype=nl.int32)
        nisa.dma_copy(dst=words, src=constant.view(nl.int32))
        return constant, give(words)

    same_data, words = run(kernel)
    same(same_data, data)
    same(words, data.view(np.int32))


def two_cores(differ: bool) -> Any:
    data = drawn(4, 6)

    def kernel() -> nl.NkiTensor:
        out = nl.ndarray((2, 4, 6), nl.float32, nl.shared_hbm)
        core = nl.program_id(0)
        constant = nl.shared_constant(data + np.float32(core) if differ else data)
        nisa.dma_copy(dst=out[core], src=constant)
        nisa.core_barrier(out, [0, 1])
        if core == 0:
            nisa.dma_copy(dst=constant, src=nl.zeros((4, 6), nl.float32))
        return out

    return data, simulate(kernel)[2]


def test_cores_share_a_constant() -> None:
    data, simulated = two_cores(False)
    for _ in range(2):
        same(simulated(), np.stack([data, data]))


def test_constants_must_not_differ_between_cores() -> None:
    _, simulated = two_cores(True)
    with pytest.raises(KernelError, match="cores 0 and 1 have different constants in shared HBM"):
        simulated()


@pytest.mark.parametrize(
    ("constant", "says"),
    [
        (np.zeros((2, 2)), "the NeuronCore has no dtype"),
        (np.float32(1), "a float32; it must be a numpy array or a .npy file"),
        (np.zeros((), np.float32), "shape \\(\\); a tensor has a dimension"),
        (np.zeros((2, 0), np.float32), "shape \\(2, 0\\)"),
        ([1, 2], "a list; it must be a numpy array"),
        ("missing.npy", "missing.npy can't be read"),
    ],
)
def test_what_is_no_constant(constant: Any, says: str) -> None:
    def kernel() -> nl.NkiTensor:
        return nl.shared_constant(constant)

    with pytest.raises(KernelError, match=f"nl.shared_constant: {says}"):
        run(kernel)


def test_files_that_hold_no_array(tmp_path: Path) -> None:
    several, code = tmp_path / "several.npz", tmp_path / "code.npy"
    np.savez(several, a=np.ones(2), b=np.ones(2))
    np.save(code, np.array([{}], object), allow_pickle=True)
    for path, says in ((several, "holds several arrays"), (code, "can't be read: Object arrays")):

        def kernel(path: str) -> nl.NkiTensor:
            return nl.shared_constant(path)

        with pytest.raises(KernelError, match=says):
            run(kernel, str(path))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16", "float8_e5m2", "int32"])
def test_identity_matrix(dtype: str) -> None:
    def kernel() -> nl.NkiTensor:
        identity = nl.shared_identity_matrix(128, dtype=dtype)
        assert identity.buffer is nl.sbuf
        return give(identity)

    same(run(kernel), np.eye(128).astype(NUMPY[dtype]))


def test_identity_matrix_defaults_and_destinations() -> None:
    def kernel() -> tuple[nl.NkiTensor, nl.NkiTensor]:
        dst = tile(16, 16)
        assert nl.shared_identity_matrix(16, nl.float32, dst=dst) is dst
        return give(nl.shared_identity_matrix(n=8)), give(dst)

    small, dst = run(kernel)
    same(small, np.eye(8, dtype=np.uint8))
    same(dst, np.eye(16, dtype=np.float32))


def test_identity_matrices_share_their_constant() -> None:
    def kernel() -> nl.NkiTensor:
        for n, dtype in ((16, nl.float32), (16, nl.float32), (16, nl.bfloat16), (8, nl.float32)):
            nl.shared_identity_matrix(n, dtype)
        return nl.ndarray((1,), nl.float32, nl.shared_hbm)

    assert len(trace(kernel).initial) == 3


@pytest.mark.parametrize(
    ("n", "says"), [(129, "spans 129 partitions"), (0, "n=0; it must be at least 1"), (2.5, "'float'")]
)
def test_identity_matrices_that_are_none(n: Any, says: str) -> None:
    def kernel() -> nl.NkiTensor:
        return give(nl.shared_identity_matrix(n, nl.float32))

    with pytest.raises(KernelError, match=says):
        run(kernel)


def test_device_print_prints_when_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        a = load(x)
        nl.device_print("before", a[0:1, 0:2])
        nisa.memset(a, 7.0)
        nl.device_print("after", a[0:1, 0:2])
        nl.device_print("x", x[1])
        return give(a)

    x = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    trace(kernel, x)
    assert capsys.readouterr().out == ""
    run(kernel, x)
    assert capsys.readouterr().out == "before [[0 1]]\nafter [[7 7]]\nx [3 4 5]\n"


def test_device_print_takes_a_constant_prefix() -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        nl.device_print(x, x)  # type: ignore[arg-type]
        return x

    with pytest.raises(KernelError, match="print_prefix is a NkiTensor; it must be a constant string"):
        run(kernel, np.ones((2, 2), np.float32))
