"""Convolutions with groups: which of them are computed as one, and their parts of images in HBM or SBUF."""

from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor
from trnrt.nki import nisa, nl


def together(dst: nl.NkiTensor, w: nl.NkiTensor, bias: nl.NkiTensor, channels: int, groups: int) -> Pair:
    """The number of channels and outputs of conv2d that are computed as one convolution."""
    if is_hbm_tensor(dst):
        outputs = dst.shape[1]
        assert channels % groups == 0 and outputs % groups == 0, f"conv2d: {groups} groups of {channels} to {outputs}"
        together = groups_together(channels, outputs, groups)
        return together * channels // groups, together * outputs // groups
    # Groups computed together fill whole blocks of the tile, so weights and channels have the same blocks.
    calls = bias.shape[1] // ceil_div(w.shape[3], nl.tile_size.pmax)
    assert calls == 1 or w.shape[0] == nl.tile_size.pmax, "conv2d: groups do not fill blocks of 128; they must in SBUF"
    ins = channels if calls == 1 else w.shape[1] // calls * nl.tile_size.pmax
    return ins, w.shape[3]


def whole_pieces(w: nl.NkiTensor, src: nl.NkiTensor) -> bool:
    """True if weights for a source in SBUF load in few pieces, and no taps are packed: on trn1 pieces take long."""
    is_slow = nisa.get_nc_version() < nisa.nc_version.gen3
    return is_slow and is_hbm_tensor(w) and not is_hbm_tensor(src)


def some_channels(images: nl.NkiTensor, first: int, end: int) -> nl.NkiTensor:
    """Channels ``first`` to ``end`` of images in HBM, or of a tile, which must be whole blocks or its last ones."""
    if is_hbm_tensor(images):
        return images[:, first:end]
    pmax = nl.tile_size.pmax
    assert first % pmax == 0, f"conv2d: groups from channel {first} on do not fill blocks of {pmax}; they must in SBUF"
    return images[0 : min(pmax, end - first), first // pmax : ceil_div(end, pmax)]


def groups_together(channels: int, outputs: int, groups: int) -> int:
    """The number of groups computed as one convolution: as many as fit their channels and outputs on the partitions.

    That includes depthwise ones: the tensor engine multiplies 127 zeros for each weight, and is still no slower than
    the vector engine, which takes two cycles per element and tap to multiply and add.
    """
    return max(1, min(groups, nl.tile_size.pmax // max(channels // groups, outputs // groups)))


def block_of_diagonals(channels: int) -> Pair:
    """The channels and outputs that are computed as one convolution, of ``channels`` groups of one of each."""
    return min(channels, nl.tile_size.pmax), min(channels, nl.tile_size.pmax)


def spread_diagonals(w_sb: nl.NkiTensor) -> nl.NkiTensor:
    """Matrices (P, 1, T, P) in SBUF with these diagonals (P, 1, T, 1), and zeros elsewhere. The GpSimd engine makes
    them, which has little else to do: loading them would take 128 times as many bytes as the diagonals."""
    channels, _, taps, _ = w_sb.shape
    whole_sb = nl.ndarray((channels, taps, channels), dtype=w_sb.dtype, buffer=nl.sbuf)
    nisa.affine_select(
        dst=whole_sb,
        pattern=[[0, taps], [-1, channels]],
        channel_multiplier=1,
        on_true_tile=w_sb[:, 0].broadcast(2, channels),
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    return whole_sb.expand_dim(1)


def diagonal_bytes(channels: int, taps: int, itemsize: int) -> int:
    """The most bytes per partition of ``spread_diagonals``, for planners: those of a block are made during the products
    of the one before."""
    return 2 * taps * min(channels, nl.tile_size.pmax) * itemsize
