"""dma_transpose and dma_compute against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from simulating import TARGETS, drawn, give, load, rounded, run, same, tile

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
SHAPES = [(16, 128), (5, 3), (8, 3, 12), (4, 2, 3, 7), (128, 1, 1, 96)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint16"])
@pytest.mark.parametrize("in_sbuf", [False, True])
def test_transpose(shape: tuple[int, ...], dtype: str, in_sbuf: bool) -> None:
    """The documented permutations, from HBM and from SBUF."""
    axes = AXES[len(shape)]

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(*(shape[axis] for axis in axes), dtype=x.dtype)
        nisa.dma_transpose(dst=dst, src=load(x) if in_sbuf else x)
        return give(dst)

    x = drawn(*shape, dtype=dtype)
    same(run(kernel, x), x.transpose(axes))


@pytest.mark.parametrize("mode", [nisa.dge_mode.unknown, nisa.dge_mode.hwdge, nisa.dge_mode.none])
def test_transpose_with_descriptors_of_each_kind(mode: nisa.dge_mode) -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(64, 2, 8, dtype=x.dtype)
        nisa.dma_transpose(dst, x, axes=[2, 1, 0], dge_mode=mode)
        return give(dst)

    x = drawn(8, 2, 64, dtype="bfloat16")
    same(run(kernel, x), x.transpose(2, 1, 0))


def test_transpose_is_bit_accurate_and_goes_to_hbm_too() -> None:
    """As the migration guide's example has it: dst in HBM."""

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        out = nl.ndarray((4, 1, 1, 3), x.dtype, nl.shared_hbm)
        nisa.dma_transpose(dst=out, src=x, axes=(3, 1, 2, 0))
        return out

    x = np.array([[np.nan, np.inf, -0.0, 1], [-np.inf, 2, 3, 4], [5, 6, 7, np.nan]], np.float32).reshape(3, 1, 1, 4)
    got = run(kernel, x, target="trn3")
    same(got, x.transpose(3, 1, 2, 0))
    assert np.signbit(got[2, 0, 0, 0])


def test_transpose_in_place() -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        a = load(x)
        nisa.dma_transpose(dst=a, src=a)
        return give(a)

    x = drawn(24, 24)
    same(run(kernel, x), np.ascontiguousarray(x.T))


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((2, 4, 64), "src.shape\\[0\\] \\* src.shape\\[-2\\] is 8; it must be a multiple of 16"),
        ((3, 16, 64), "src.shape\\[0\\] is 3"),
        ((16, 1, 129), "src.shape\\[-1\\] is 129"),
    ],
)
def test_what_hardware_descriptors_do_not_take(shape: tuple[int, ...], says: str) -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        out = nl.ndarray(shape[::-1], x.dtype, nl.shared_hbm)
        nisa.dma_transpose(out, x, dge_mode=nisa.dge_mode.hwdge)
        return out

    with pytest.raises(KernelError, match=says):
        run(kernel, drawn(*shape, dtype="float16"))


def test_hardware_descriptors_take_two_bytes() -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        out = tile(8, 16)
        nisa.dma_transpose(out, x, dge_mode=nisa.dge_mode.hwdge)
        return give(out)

    with pytest.raises(KernelError, match="src is float32; with hardware descriptors its elements must have 2 bytes"):
        run(kernel, drawn(16, 8))


@pytest.mark.parametrize("ndim", [1, 5])
def test_transposes_of_other_ranks_are_refused(ndim: int) -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        nisa.dma_transpose(x, x)
        return x

    with pytest.raises(KernelError, match=f"src has {ndim} dimensions; it must have 2, 3 or 4"):
        run(kernel, drawn(*(2,) * ndim))


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("bfloat16", "float32"), ("float32", "int8")])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [2, 3, 16])
def test_compute_adds_in_float32(dtypes: tuple[str, str], target: str, count: int) -> None:
    """One rounding at the end; sources in HBM and in SBUF, of another shape than dst."""

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        sources = [x[i] if i % 2 else load(x[i]) for i in range(count)]
        dst = nl.ndarray((12, 4), dtypes[1], nl.shared_hbm)
        nisa.dma_compute(dst, sources, nl.add, scales=[1.0] * count)
        return dst

    x = drawn(count, 6, 8, dtype=dtypes[0]) * 20
    total = x[0].astype(np.float32)
    for other in x[1:]:
        total = total + other.astype(np.float32)
    same(run(kernel, x.astype(x.dtype), target=target), rounded(total.reshape(12, 4), dtypes[1]))


def test_compute_accumulates_where_dst_is_a_source() -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        a = load(x)
        for _ in range(3):
            nisa.dma_compute(dst=a[:, 0:4], srcs=[x[:, 4:8], a[:, 0:4]], reduce_op=nl.add)
        return give(a)

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    expected = x.copy()
    expected[:, :4] += 3 * x[:, 4:]
    same(run(kernel, x), expected)


def refused(**arguments: object) -> str:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        given = {"dst": x, "srcs": [x, x], "reduce_op": nl.add, **arguments}
        if given["srcs"] == "one":
            given["srcs"] = [x]
        nisa.dma_compute(**given)  # type: ignore[arg-type]
        return x

    with pytest.raises(KernelError) as found:
        run(kernel, drawn(4, 4))
    return str(found.value)


def test_what_compute_refuses() -> None:
    assert "srcs has 1 tensor; the reference" in refused(srcs="one")
    assert "srcs is a int; it must be a list" in refused(srcs=3)
    assert "src0 is None; it must be a tensor" in refused(srcs=[])
    assert "reduce_op=nl.multiply; it must be nl.add" in refused(reduce_op=nl.multiply)
    assert "scales=[1.0] of 2 tensors" in refused(scales=[1.0])
    assert "oob_mode.skip" in refused(oob_mode=nisa.oob_mode.skip)


@pytest.mark.parametrize("rows", [16, 48, 128])
def test_indirect_transpose(rows: int) -> None:
    """The documented operation: ``src[indices].T``, with indices to spare."""

    def kernel(x: nl.NkiTensor, index: nl.NkiTensor) -> nl.NkiTensor:
        chosen = x.ap(pattern=[[128, rows], [1, 128]], vector_offset=load(index), indirect_dim=0)
        dst = tile(128, rows, dtype=x.dtype)
        nisa.dma_transpose(dst=dst, src=chosen, axes=(1, 0), dge_mode=nisa.dge_mode.swdge)
        return give(dst)

    x = drawn(200, 128, dtype="bfloat16")
    index = np.random.default_rng(0).integers(0, 200, (128, 1), dtype=np.uint32)
    same(run(kernel, x, index), np.ascontiguousarray(x[index[:rows, 0]].T))


def test_indirect_transpose_of_four_dimensions() -> None:
    def kernel(x: nl.NkiTensor, index: nl.NkiTensor) -> nl.NkiTensor:
        pattern = [[96, 32], [96, 1], [32, 3], [1, 32]]
        dst = tile(32, 1, 3, 32, dtype=x.dtype)
        nisa.dma_transpose(dst=dst, src=x.ap(pattern=pattern, vector_offset=load(index)))
        return give(dst)

    x = drawn(20, 1, 3, 32, dtype="float16")
    index = np.random.default_rng(0).integers(0, 20, (32, 1), dtype=np.uint32)
    same(run(kernel, x, index), np.ascontiguousarray(x[index[:, 0]].transpose(3, 1, 2, 0)))


def test_indirect_transposes_check_their_indices() -> None:
    def kernel(x: nl.NkiTensor, index: nl.NkiTensor, mode: nisa.oob_mode) -> nl.NkiTensor:
        chosen = x.ap(pattern=[[8, 16], [1, 8]], vector_offset=load(index))
        dst = tile(8, 16, dtype=x.dtype)
        nisa.dma_transpose(dst=dst, src=chosen, oob_mode=mode)
        return give(dst)

    x, index = drawn(20, 8, dtype="float16"), np.full((16, 1), 20, np.uint32)
    with pytest.raises(KernelError, match="run-time index 20 is out of bounds"):
        run(kernel, x, index, nisa.oob_mode.error)
    with pytest.raises(KernelError, match=r"oob_mode\.skip is not modelled"):
        run(kernel, x, index, nisa.oob_mode.skip)


def test_a_register_may_say_what_is_transposed() -> None:
    def kernel(x: nl.NkiTensor, index: nl.NkiTensor) -> nl.NkiTensor:
        register = nisa.register_alloc()
        nisa.register_load(register, load(index))
        dst = tile(8, 4)
        nisa.dma_transpose(dst=dst, src=x.ap([[8, 4], [1, 8]], scalar_offset=register))
        return give(dst)

    x = drawn(12, 8)
    same(run(kernel, x, np.array([[5]], np.int32)), np.ascontiguousarray(x[5:9].T))


def test_compute_gathers_rows() -> None:
    """The documented gather: dst in SBUF gets rows of HBM added."""

    def kernel(x: nl.NkiTensor, y: nl.NkiTensor, index: nl.NkiTensor) -> nl.NkiTensor:
        a, places = load(y), load(index)
        chosen = x.ap([[6, 8], [1, 6]], vector_offset=places)
        nisa.dma_compute(dst=a[:, :], srcs=[chosen, a[:, :]], reduce_op=nl.add, unique_indices=True)
        return give(a)

    x, y = drawn(20, 6, dtype="bfloat16"), drawn(8, 6, seed=1)
    index = np.array([[3], [19], [0], [3], [7], [8], [1], [2]], np.uint32)
    same(run(kernel, x, y, index), x[index[:, 0]].astype(np.float32) + y)


@pytest.mark.parametrize("skips", [False, True])
def test_compute_scatters_rows(skips: bool) -> None:
    """The documented scatter: rows of dst in HBM get a tile of SBUF added."""

    def kernel(x: nl.NkiTensor, y: nl.NkiTensor, index: nl.NkiTensor) -> nl.NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        rows = out.vector_select(0, load(index))
        mode = nisa.oob_mode.skip if skips else nisa.oob_mode.error
        nisa.dma_compute(rows, [rows, load(y)], nl.add, oob_mode=mode)
        return out

    x, y = drawn(20, 6), drawn(4, 6, seed=1)
    index = np.array([[3], [19], [99 if skips else 11], [7]], np.int32)
    expected = x.copy()
    for row, place in enumerate(index[:, 0]):
        if place < 20:
            expected[place] += y[row]
    same(run(kernel, x, y, index), expected)
    index[3] = 3
    with pytest.raises(KernelError, match=r"row 3 of .* is selected 2 times by one instruction that adds to it"):
        run(kernel, x, y, index)
