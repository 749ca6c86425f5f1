"""Work for the idle tensor engine, so that its clock is up when the real work starts."""

from typing import Any

from trnrt.nki import nisa, nl


def warm_up(transposes: int, zeros: Any = None) -> None:
    """Transpose zeros ``transposes`` times, 0.2 us each, while the first loads are under way. Nothing on trn1.

    From trn2 on the tensor engine runs at half its clock until it has been busy for 55 % of a window of 6.8 us
    (docs/timing.md).

    zeros: those of ``warm_up_zeros``; by default new ones

    numpy: nothing
    """
    if nisa.get_nc_version() < nisa.nc_version.gen3:
        return
    zeros_sb = warm_up_zeros() if zeros is None else zeros
    turned_psum = nl.ndarray(zeros_sb.shape, dtype=nl.float32, buffer=nl.psum)
    for _ in range(transposes):
        nisa.nc_transpose(dst=turned_psum, data=zeros_sb, engine=nisa.engine.tensor)


def warm_up_zeros() -> nl.NkiTensor:
    """Zeros (P, P) for ``warm_up``, made by the GpSimd engine before what it does next: no later tile takes their place
    before the transposes."""
    zeros_sb = nl.ndarray((nl.tile_size.pmax, nl.tile_size.pmax), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sb, value=0.0)
    return zeros_sb
