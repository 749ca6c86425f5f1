"""The rules of shuffles, gathers, GpSimd searches, and DMA that transposes, adds or prints."""

from __future__ import annotations

from typing import Any

from rule_cases import case
from simulating import Tensor, tile, zeros

from trnrt.nki import nisa, nl

NEXT = [(i + 1) % 32 for i in range(32)]


@case("kept-dtype", "src is bfloat16, dst float32", "must be equal")
def _(broken: bool) -> None:
    src = zeros(32, 4, dtype=nl.bfloat16 if broken else nl.float32)
    nisa.nc_stream_shuffle(dst=zeros(32, 4), src=src, shuffle_mask=NEXT)  # here


@case("shuffle-mask", "shuffle_mask[31] is 32", "0 to 31, or 255")
def _(broken: bool) -> None:
    mask = [0] * 31 + [32 if broken else 255]
    nisa.nc_stream_shuffle(dst=zeros(32, 4), src=zeros(32, 4), shuffle_mask=mask)  # here


@case("shuffle-start-partition", "dst starts at partition 32", "on 64 active partitions it must be 0 or 64")
def _(broken: bool) -> None:
    start = 32 if broken else 64
    nisa.nc_stream_shuffle(dst=zeros(128, 4)[start : start + 33], src=zeros(64, 4), shuffle_mask=NEXT)  # here


@case("shuffle-source", "partition 1 of dst takes partition 2 of src, which has 2")
def _(broken: bool) -> None:
    nisa.nc_stream_shuffle(dst=zeros(2, 4), src=zeros(2 if broken else 3, 4), shuffle_mask=NEXT)  # here


def gathered(partitions: int = 16, size: int = 32, dtype: object = nl.float32) -> tuple[Tensor, Tensor, Tensor]:
    """dst, data, and indices of nc_n_gather and local_gather."""
    return tile(partitions, size, dtype=dtype), zeros(partitions, 8, dtype=dtype), zeros(partitions, 2, dtype=nl.uint16)


@case("gpsimd-cores", "dst spans 17 partitions", "multiple of 16")
def _(broken: bool) -> None:
    dst, data, index = gathered(17 if broken else 32)
    nisa.local_gather(dst=dst, src_buffer=data, index=index)  # here


@case("gather-index-dtype", "index is uint32", "must be uint16")
def _(broken: bool) -> None:
    dst, data, index = gathered()
    index = zeros(16, 2, dtype=nl.uint32) if broken else index
    nisa.local_gather(dst=dst, src_buffer=data, index=index)  # here


@case("gather-elements", "num_elem_per_idx=3", "1, 2, 4, 8, 16 or 32")
def _(broken: bool) -> None:
    each = 3 if broken else 4
    dst, data, index = gathered(size=32 * each)
    nisa.local_gather(dst=dst, src_buffer=data, index=index, num_elem_per_idx=each)  # here


@case("gather-indices", "num_valid_indices=33", "index gives a core 32")
def _(broken: bool) -> None:
    count = 33 if broken else 31
    dst, data, index = gathered(size=count)
    nisa.local_gather(dst=dst, src_buffer=data, index=index, num_valid_indices=count)  # here


@case("gather-size", "dst holds 33 elements a partition", "32 indices of 1 elements give 32")
def _(broken: bool) -> None:
    dst, data, index = gathered(size=33 if broken else 32)
    nisa.local_gather(dst=dst, src_buffer=data, index=index)  # here


@case("topk-dtypes", "src is float32", "must be bfloat16")
def _(broken: bool) -> None:
    src = zeros(16, 2, dtype=nl.float32 if broken else nl.bfloat16)
    values, places = zeros(16, 8, dtype=nl.bfloat16), zeros(16, 8, dtype=nl.uint32)
    nisa.topk(val_dst=values, idx_dst=places, src=src, n=20)  # here


@case("topk-size", "src holds 1 elements a partition", "n=17 takes 2")
def _(broken: bool) -> None:
    values, places = zeros(16, 8, dtype=nl.bfloat16), zeros(16, 8, dtype=nl.uint32)
    nisa.topk(val_dst=values, idx_dst=places, src=zeros(16, 1, dtype=nl.bfloat16), n=17 if broken else 16)  # here


@case("nonzero-target", "trn1 has a NeuronCore-v2", "nonzero_with_count takes v3", target="trn1")
def _(broken: bool) -> None:
    if broken:
        nisa.nonzero_with_count(dst=zeros(16, 5, dtype=nl.int32), src=zeros(16, 4))  # here


@case("nonzero-dtypes", "src is bfloat16", "float32 or int32")
def _(broken: bool) -> None:
    src = zeros(16, 4, dtype=nl.bfloat16 if broken else nl.int32)
    nisa.nonzero_with_count(dst=zeros(16, 5, dtype=nl.int32), src=src)  # here


@case("nonzero-size", "dst holds 4 elements a partition", "must hold 5")
def _(broken: bool) -> None:
    nisa.nonzero_with_count(dst=zeros(16, 4 if broken else 5, dtype=nl.int32), src=zeros(16, 4))  # here


@case("nonzero-numbers", "padding_val=2147483648", "int32")
def _(broken: bool) -> None:
    padding = 2**31 if broken else -(2**31)
    nisa.nonzero_with_count(dst=zeros(16, 5, dtype=nl.int32), src=zeros(16, 4), padding_val=padding)  # here


@case("dma-transpose-target", "trn1 has a NeuronCore-v2", "dma_transpose takes v3", target="trn1")
def _(broken: bool) -> None:
    if broken:
        nisa.dma_transpose(dst=tile(4, 8), src=zeros(8, 4))  # here


@case("dma-transpose-axes", "axes=(0, 2, 1) of 3 dimensions", "must be (2, 1, 0)")
def _(broken: bool) -> None:
    axes = (0, 2, 1) if broken else (2, 1, 0)
    nisa.dma_transpose(dst=tile(4, 2, 8), src=zeros(8, 2, 4), axes=axes)  # here


@case("dma-transpose-shape", "src is (8, 1, 1, 4), dst (4, 8)", "must be (4, 1, 1, 8)")
def _(broken: bool) -> None:
    dst = tile(4, 8) if broken else tile(4, 1, 1, 8)
    nisa.dma_transpose(dst=dst, src=zeros(8, 1, 1, 4))  # here


@case("dma-transpose-dtype", "src is int8", "2 or 4 bytes")
def _(broken: bool) -> None:
    dtype = nl.int8 if broken else nl.int16
    nisa.dma_transpose(dst=tile(4, 8, dtype=dtype), src=zeros(8, 4, dtype=dtype))  # here


@case("dma-transpose-descriptors", "dge_mode=dge_mode.swdge", "unknown, hwdge or none")
def _(broken: bool) -> None:
    mode = nisa.dge_mode.swdge if broken else nisa.dge_mode.none
    nisa.dma_transpose(dst=tile(4, 8), src=zeros(8, 4), dge_mode=mode)  # here


@case("dma-transpose-hardware", "src.shape[0] is 15", "must be 16")
def _(broken: bool) -> None:
    rows = 15 if broken else 16
    src = zeros(rows, 4, dtype=nl.bfloat16)
    nisa.dma_transpose(dst=tile(4, rows, dtype=nl.bfloat16), src=src, dge_mode=nisa.dge_mode.hwdge)  # here


@case("dma-transpose-indirect", "the indices are int32 in 16 partitions", "must be uint32")
def _(broken: bool) -> None:
    index = zeros(16, 1, dtype=nl.int32 if broken else nl.uint32)
    rows = tile(32, 8, dtype=nl.bfloat16, buffer=nl.shared_hbm).ap([[8, 16], [1, 8]], vector_offset=index)
    nisa.dma_transpose(dst=tile(8, 16, dtype=nl.bfloat16), src=rows)  # here


@case("oob-skip", "oob_mode=oob_mode.skip of direct views")
def _(broken: bool) -> None:
    mode = nisa.oob_mode.skip if broken else nisa.oob_mode.error
    nisa.dma_transpose(dst=tile(4, 8), src=zeros(8, 4), oob_mode=mode)  # here


@case("dma-compute-sources", "srcs has 17 tensors", "limit is 16")
def _(broken: bool) -> None:
    nisa.dma_compute(dst=tile(4, 8), srcs=[zeros(4, 8)] * (17 if broken else 16), reduce_op=nl.add)  # here


@case("dma-compute-size", "src1 has 28 elements (4, 7), dst 32")
def _(broken: bool) -> None:
    other = zeros(4, 7) if broken else zeros(2, 16)
    nisa.dma_compute(dst=tile(4, 8), srcs=[zeros(4, 8), other], reduce_op=nl.add)  # here


@case("dma-compute-operator", "scales=[1.0, 2.0] of 2 tensors", "each must be 1.0")
def _(broken: bool) -> None:
    scales = [1.0, 2.0 if broken else 1.0]
    nisa.dma_compute(dst=tile(4, 8), srcs=[zeros(4, 8)] * 2, reduce_op=nl.add, scales=scales)  # here


@case("dma-compute-unique", "unique_indices=False", "must be True")
def _(broken: bool) -> None:
    nisa.dma_compute(tile(4, 8), [zeros(4, 8)] * 2, nl.add, unique_indices=not broken)  # here


@case("dma-compute-indirect", "srcs has 2 tensors", "one of them dst")
def _(broken: bool) -> None:
    rows = tile(32, 8, buffer=nl.shared_hbm).ap([[8, 16], [1, 8]], vector_offset=zeros(16, 1, dtype=nl.uint32))
    dst = zeros(16, 8)
    nisa.dma_compute(dst, [rows, zeros(16, 8) if broken else dst], nl.add)  # here


@case("print-memory", "tensor is in PSUM", "copy it to SBUF")
def _(broken: bool) -> None:
    nl.device_print("here", zeros(4, 8, buffer=nl.psum if broken else nl.sbuf))  # here


@case("dma-modes", "oob_mode='skip'", "a member of nisa.oob_mode: error, skip")
def _(broken: bool) -> None:
    mode: Any = "skip" if broken else nisa.oob_mode.error
    nisa.dma_copy(dst=tile(8, 4), src=zeros(8, 4), oob_mode=mode)  # here
