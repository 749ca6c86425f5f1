"""``nki.language``: ranges, regions, the launch grid, sizes, dtypes, and the classes of kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from simulating import TARGETS, Tensor, drawn, give, load, run, same

from trnrt.errors import KernelError
from trnrt.nki import nisa, nki, nl, simulate

X = drawn(128, 8)


@pytest.mark.parametrize("function", [nl.affine_range, nl.sequential_range, nl.static_range])
def test_ranges_are_python_s(function: Callable[..., range]) -> None:
    assert list(function(4)) == [0, 1, 2, 3]
    assert list(function(2, 8, 3)) == [2, 5]
    assert list(function(2, stop=4)) == [2, 3]


def test_no_reorder_is_a_region() -> None:
    """The reference's example."""

    def kernel() -> Tensor:
        with nl.no_reorder():
            a = nl.full((128, 512), 3.0, dtype=nl.float32, buffer=nl.sbuf)
            b = nl.full((128, 512), 2.0, dtype=nl.float32, buffer=nl.sbuf)
            return give(nl.add(a, b))

    same(run(kernel), np.full((128, 512), 5, np.float32))


def test_no_reorder_holds_no_device_loop() -> None:
    def kernel(x: Tensor) -> Tensor:
        tile = load(x)

        def body(i: nisa.VirtualRegister) -> None:
            nisa.tensor_copy(tile, tile)

        with nl.no_reorder():
            nl.fori_loop(0, 4, body)
        return give(tile)

    with pytest.raises(KernelError, match="a device loop is in the region"):
        run(kernel, X)


def test_one_core_has_no_grid() -> None:
    def kernel(x: Tensor) -> Tensor:
        assert (nl.program_id(), nl.program_id(0), nl.program_id(axis=0)) == (0, 0, 0)
        assert (nl.num_programs(), nl.num_programs(0), nl.num_programs(axes=0)) == (1, 1, 1)
        assert nl.program_ndim() == 0
        return give(load(x))

    same(run(kernel, X), X)
    with pytest.raises(KernelError, match="axis 1 of a launch grid"):
        run(lambda x: nl.program_id(1), X)


def test_two_cores_are_a_grid_of_one_dimension() -> None:
    """The guide's example: half of the rows each."""

    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        assert (nl.program_ndim(), nl.num_programs()) == (1, 2)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        rows = nl.ds(nl.program_id() * 64, 64)
        nl.store(out[rows], nl.add(nl.load(x[rows]), float(nl.program_id(0))))
        return out

    same(kernel[2](X), X + np.repeat(np.array([[0], [1]], np.float32), 64, axis=0))


@pytest.mark.parametrize(("target", "mebibytes"), [("trn1", 24), ("trn2", 28), ("trn3", 32)])
def test_tile_sizes(target: str, mebibytes: int) -> None:
    def kernel(x: Tensor) -> Tensor:
        size = nl.tile_size
        assert (size.pmax, size.gemm_stationary_fmax, size.bn_stats_fmax) == (128, 128, 512)
        assert (size.psum_fmax, size.psum_bank_fmax, size.psum_bank_fmax_bytes) == (512, 512, 2048)
        assert (size.psum_num_banks, size.psum_min_align, size.sbuf_min_align) == (8, 4, 1)
        assert size.gemm_moving_fmax == 512
        assert (
            size.sbuf_size_bytes == {"trn1": 24, "trn2": 24, "trn3": 32}.get(target, 0) * 2**20 or size.sbuf_size_bytes
        )
        assert size.sbuf_fmax * 4 == size.sbuf_fmax_bytes == size.total_available_sbuf_size
        assert size.sbuf_fmax_bytes * 128 < size.sbuf_size_bytes
        return give(load(x))

    same(run(kernel, X, target=target), X)


def test_regions() -> None:
    assert nl.hbm is nl.private_hbm
    for buffer, hbm, on_chip, psum, sbuf in (
        (nl.sbuf, False, True, False, True),
        (nl.psum, False, True, True, False),
        (nl.private_hbm, True, False, False, False),
        (nl.shared_hbm, True, False, False, False),
    ):
        assert (nl.is_hbm(buffer), nl.is_on_chip(buffer)) == (hbm, on_chip)
        assert (nl.is_psum(buffer), nl.is_sbuf(buffer)) == (psum, sbuf)


def test_packed_dtypes_have_names() -> None:
    assert nl.float8_e4m3fn_x4 == "float8_e4m3fn_x4"
    assert nl.float8_e5m2_x4 != nl.float8_e4m3fn_x4
    assert nl.float8_e5m2_x4.itemsize == 4
    assert nl.float4_e2m1fn_x4.itemsize == 2
    assert nl.float8_e8m0fnu.itemsize == 1


class Plain(nl.NKIObject):
    size: int
    scale: float = 2.0
    note = "none"


@dataclass
class Decorated(nl.NKIObject):
    size: int
    toggled: bool = False

    def toggle(self) -> None:
        self.toggled = not self.toggled


@dataclass(frozen=True)
class Frozen(nl.NKIObject):
    size: int = 3


class Counted(Plain):
    count: int = 0

    def __post_init__(self) -> None:
        self.count = self.size * 2


class Own(nl.NKIObject):
    size: int = 1

    def __init__(self, size: int) -> None:
        self.size = size


def test_classes_of_kernels_are_data_classes() -> None:
    assert Plain().size is None
    assert (Plain(3).size, Plain(3, 4.0).scale, Plain(note="x").note) == (3, 4.0, "x")
    assert Plain(1) == Plain(1, 2.0)
    assert Plain(1) != Plain(2)
    assert repr(Plain(1)) == "Plain(size=1, scale=2.0, note='none')"
    assert (Counted(4).count, Counted(4).scale) == (8, 2.0)
    assert (Frozen().size, Frozen(5).size, Own(7).size) == (3, 5, 7)
    changed = Decorated(1)
    changed.toggle()
    assert (changed.size, changed.toggled) == (1, True)
    with pytest.raises(TypeError, match="no attribute 'width'"):
        Plain(width=1)
    with pytest.raises(TypeError, match="twice a value for 'size'"):
        Plain(1, size=2)
    with pytest.raises(TypeError, match="takes 3 values; 4 were given"):
        Plain(1, 2.0, "", 4)


@nki.jit
def scaled(x: Tensor, options: Plain) -> Tensor:
    return give(nl.multiply(load(x), options.scale))


def test_objects_are_arguments_of_kernels() -> None:
    """An object that was changed is another argument: the program is traced anew."""
    options = Plain(1)
    kernel = simulate(scaled)
    same(kernel(X, options), X * 2)
    options.scale = 3.0
    same(kernel(X, options), X * 3)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_called_outside_a_kernel(target: str) -> None:
    for call in (lambda: nl.zeros((4, 4), nl.float32), nl.program_id, lambda: nl.tile_size.sbuf_fmax):
        with pytest.raises(KernelError, match="outside a kernel"):
            call()


def test_dataclass_makes_fields_of_attributes_without_annotations() -> None:
    @dataclass
    class Section(nl.NKIObject):
        index = None
        width: int = 4
        name = "s"

        def area(self) -> int:
            return self.width * 2

    section = Section(width=3, index=1)  # type: ignore[call-arg]
    assert vars(section) == {"index": 1, "width": 3, "name": "s"} and section.area() == 6
    assert section == Section(width=3, index=1)  # type: ignore[call-arg]
