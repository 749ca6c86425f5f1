"""The cost of an instruction: the cycles for which it keeps its engine's data path busy, in that engine's clock.

A cost is a function (instruction, target) -> cycles; a declaration's ``cycles`` names one. The timing model adds the
rest: the latency from start to end, the least interval of two instructions, semaphores, and the loading of an
activation function's table. DMA and the tensor engine have their own models.

``N`` is the number of elements per partition of the widest tile that streams through the engine, without operands of
one element per partition that are broadcast (``columns``). Of these sources, the first one with a figure is used:

- *measured*: the published figures of trnrt/calibration/measurements.json;
- *2.26.1*: "Estimated instruction cost" of each function of nki.isa in the Neuron SDK documentation 2.26.1;
- *2.32*: nki.isa of 2.32 (topk only);
- *arch*: the architecture guides of 2.32 (trainium_inferentia2_arch, trainium2_arch, trainium3_arch);
- *by kinship*: nothing is published; the cost of what is most like it.

By kinship are: tensor_scalar_cumulative (tensor_scalar_reduce without its result), select_reduce
(tensor_copy_predicated), activate2 (activation), the loading and storing of random states (one element per cycle), rng
on trn1 and trn2 (dropout), nc_n_gather (local_gather of single elements), and of the GpSimd engine tensor_copy, memset,
tensor_scalar, tensor_tensor, rng, nonzero_with_count, sequence_bounds and tensor_partition_reduce (iota and
affine_select). Those of the GpSimd engine may be many times too small, as they are programs.

The rates of copies, tensor_scalar and tensor_tensor fit one explanation, which no source gives: on trn1 the vector
engine reads 4 bytes per cycle and partition, so two float32 inputs take two cycles per element and two of 16 bits one;
from trn2 on SBUF delivers 8, PSUM still 4.
"""

from __future__ import annotations

from trnrt.nki.machine.dtypes import bfloat16, float16, float32
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, View
from trnrt.nki.machine.targets import Target

WIDE_STRIDE = 16  # bytes; trainium_inferentia2_arch: beyond it SBUF and PSUM deliver half as much
DYNAMIC_CYCLES = 600  # 2.26.1, tensor_copy_dynamic_src and _dst: least interval with a run-time address
GPSIMD_START = 150  # 2.26.1, affine_select: what starting a kernel of the GpSimd engine takes
COLUMN_CYCLES = 55  # measured: tensor_scalar's time beyond its elements, 53.8 (SBUF, N=512) and 55.5 (PSUM, N=128)
RECIPROCAL_CYCLES = 5.25  # measured on trn2, 5.0 of 4 elements and 5.5 of 8 (2.26.1 says 8)
RECIPROCAL_DEPTH = 64  # see reciprocal
BN_TUPLE_CYCLES = 13  # 2.26.1, bn_aggr: cycles of one (count, mean, variance * count)
GATHER_UNROLLED = 4  # 2.26.1, local_gather: t
GATHER_OVERHEAD = 28  # 2.26.1, local_gather: cycles of t indices besides their elements
QUAD_RATE = 4  # trainium3_arch: elements per cycle of the vector engine's exponential, and random numbers
TOPK_CYCLES = 4  # 2.32, topk: cycles of one element

_V4 = 4  # NeuronCore-v4, trn3
_HALVES = frozenset({bfloat16.name, float16.name})
_FLOATS = _HALVES | {float32.name}
_SUMS = (OPERATORS["add"], OPERATORS["subtract"], OPERATORS["multiply"])
_FAST_REDUCTIONS = (OPERATORS["add"], OPERATORS["maximum"])


def _tiles(instruction: Instruction) -> list[View]:
    """The tiles that stream through the engine: all operands except broadcast ones."""
    columns = instruction.operation.columns
    if not columns:
        return [view for _, view in instruction.operands]
    return [view for arg, view in instruction.operands if arg not in columns]


def _elements(tiles: list[View]) -> int:
    """N."""
    return max([tile.free_size for tile in tiles], default=1)


def _stride_cycles(instruction: Instruction, target: Target, tiles: list[View], cycles: float) -> float:
    """``cycles``, longer if a tile's elements are far apart or if its address is known only at run time.

    A wide stride counts once, however many tiles have it: the slowest interface sets the pace. Sources:
    trainium_inferentia2_arch, "Access pattern"; 2.26.1, tensor_copy_dynamic_src, for all instructions that read the
    offset from a tile.
    """
    factor = target.timing.wide_stride_factor
    if factor != 1 and any(abs(tile.step) * tile.dtype.itemsize > WIDE_STRIDE for tile in tiles):
        cycles *= factor
    if instruction.extra and any(tile.dynamic is not None and tile.dynamic.index_tile is not None for tile in tiles):
        return max(cycles, DYNAMIC_CYCLES)
    return cycles


def _all_in_sbuf(tiles: list[View]) -> bool:
    return all(tile.buffer is MemoryRegion.sbuf for tile in tiles)


def _all_of(tiles: list[View], dtypes: frozenset[str]) -> bool:
    return all(tile.dtype.name in dtypes for tile in tiles)


def _contiguous(tiles: list[View]) -> bool:
    return all(tile.step == 1 for tile in tiles)


def no_own_cycles(instruction: Instruction, target: Target) -> float:
    """0: DMA and matrix products have models of their own in ``timing``."""
    return 0


def sequencer_only(instruction: Instruction, target: Target) -> float:
    """0: the engine's sequencer executes it, and the data path stays free."""
    return 0


def streaming(instruction: Instruction, target: Target) -> float:
    """N: one element per cycle, whatever the dtype.

    2.26.1: bn_stats, dropout, max8, nc_find_index8, nc_stream_shuffle, range_select; and nc_match_replace8, where it
    says min(64, N) and is taken to mean max.
    """
    tiles = _tiles(instruction)
    return _stride_cycles(instruction, target, tiles, _elements(tiles))


def accumulating(instruction: Instruction, target: Target) -> float:
    """N; max(64, N) + 64 with ``reduce_res``: an instruction of its own reads the accumulator.

    2.26.1: activation and activation_reduce, tensor_scalar_reduce.
    """
    cycles = streaming(instruction, target)
    return cycles + _result(instruction, target, cycles)


def _result(instruction: Instruction, target: Target, cycles: float) -> float:
    """The cycles that reading the accumulators into ``reduce_res`` adds."""
    if instruction.args.get("reduce_res") is None:
        return 0
    timing = target.timing.scalar if instruction.engine is Engine.scalar else target.timing.vector
    return max(0, timing.interval_cycles - cycles) + timing.interval_cycles


def fixed_cycles(instruction: Instruction, target: Target) -> float:
    """The part of an instruction's cycles that does not grow with its elements: the start of a kernel of the GpSimd
    engine, the read of an operand of one element per partition, and the reading of the accumulators."""
    if instruction.engine is Engine.gpsimd:
        return GPSIMD_START
    cost = instruction.operation.cycles
    if instruction.args.get("reduce_res") is not None:
        return cost(instruction, target) - min(cost(instruction, target) / 2, streaming(instruction, target))
    return cost(instruction, target) - copying(instruction, target) if cost is scaling else 0


def _rate(instruction: Instruction, target: Target, tiles: list[View]) -> int:
    """Elements a cycle of a copy or a tensor_scalar: 4, 2 or 1.

    trainium2_arch, "Vector Engine Performance Mode": with inputs and outputs of 16 bits 4 if all are contiguous in
    SBUF, 2 if all are in SBUF, 2 if they are contiguous and one of them is in PSUM. Measured on trn2, and not in the
    guide: 2 with float32 contiguous in SBUF (copy: 424 to 433 ns; one element per cycle would take 692). We assume the
    same for float32 mixed with 16 bits; 1 for other formats, which the guide doesn't mention. trainium3_arch, Scalar
    Engine: the scalar engine of trn3 has the modes with 2, for 16 bits.
    """
    if not target.timing.vector_modes:
        return 1
    in_sbuf, contiguous = _all_in_sbuf(tiles), _contiguous(tiles)
    if _all_of(tiles, _HALVES):
        if instruction.engine is Engine.vector and in_sbuf and contiguous:
            return 4
        half_in_psum = contiguous and any(tile.buffer is MemoryRegion.sbuf for tile in tiles)
        return 2 if in_sbuf or half_in_psum else 1
    wide = instruction.engine is Engine.vector and in_sbuf and contiguous and _all_of(tiles, _FLOATS)
    return 2 if wide else 1


def copying(instruction: Instruction, target: Target) -> float:
    """N / rate on the vector engine, and on the scalar engine of trn3; N on the scalar engine; else a GpSimd kernel.

    2.26.1: tensor_copy, N. For the rate see ``_rate``.
    """
    if instruction.engine is Engine.gpsimd:
        return gpsimd_kernel(instruction, target)
    tiles = _tiles(instruction)
    moded = instruction.engine is Engine.vector or target.generation >= _V4
    rate = _rate(instruction, target, tiles) if moded else 1
    return _stride_cycles(instruction, target, tiles, _elements(tiles) / rate)


def scaling(instruction: Instruction, target: Target) -> float:
    """As ``copying``; on the vector engine 55 more if an operand is a tile of one element per partition.

    2.26.1: tensor_scalar, N, for two operators as for one. Measured on trn2, with float32: 481 ns in SBUF at N=512 and
    349.5 ns in PSUM at N=128, which is N/2 and N, plus 54 and 55 cycles. We take these for the read of the operand, an
    access that trainium_inferentia2_arch puts at about 60 cycles; numbers come with the instruction.
    """
    cycles = copying(instruction, target)
    column = isinstance(instruction["operand0"], View) or isinstance(instruction["operand1"], View)
    return cycles + COLUMN_CYCLES if column and instruction.engine is Engine.vector else cycles


def two_inputs(instruction: Instruction, target: Target) -> float:
    """trn1: 2N, or N if PSUM delivers one of the inputs or all is fast; trn2, trn3: N, or N/2 if all is fast.

    Fast on trn1 are 16-bit tiles, inputs contiguous in SBUF, that are added, subtracted or multiplied (2.26.1:
    tensor_tensor, which names bfloat16); from trn2 on 16-bit tiles whose inputs are in SBUF (trainium2_arch). Measured,
    with float32: 2.02 cycles per element on trn1, 1.00 on trn2.
    """
    if instruction.engine is Engine.gpsimd:
        return gpsimd_kernel(instruction, target)
    tiles = _tiles(instruction)
    inputs = [instruction["data1"], instruction["data2"]]
    in_sbuf = _all_in_sbuf(inputs)
    fast = in_sbuf and _all_of(tiles, _HALVES)
    cycles: float = _elements(tiles)
    if target.timing.vector_modes:
        cycles = cycles / 2 if fast else cycles
    elif in_sbuf and not (fast and instruction["op"] in _SUMS and _contiguous(tiles)):
        cycles *= 2
    return _stride_cycles(instruction, target, tiles, cycles)


def scanning(instruction: Instruction, target: Target) -> float:
    """2N. 2.26.1: tensor_tensor_scan."""
    return 2 * streaming(instruction, target)


def scalar_then_tensor(instruction: Instruction, target: Target) -> float:
    """2N; N for ``(bfloat16 - operand0) * bfloat16`` with an even N. 2.26.1: scalar_tensor_tensor.

    2.26.1 doesn't distinguish targets; by the measured tensor_tensor trn2 might need half as much.
    """
    cycles = streaming(instruction, target)
    data, other = instruction["data"], instruction["operand1"]
    halves = data.dtype.name == other.dtype.name == bfloat16.name
    centred = instruction["op0"] is OPERATORS["subtract"] and instruction["op1"] is OPERATORS["multiply"]
    return cycles if halves and centred and data.free_size % 2 == 0 else 2 * cycles


def selecting(instruction: Instruction, target: Target) -> float:
    """2N; N if one of values and predicate is in PSUM, or if the values are a number; plus ``reduce_res``.

    2.26.1: tensor_copy_predicated, which doesn't mention numbers: they leave one input. By kinship: select_reduce.
    """
    cycles = streaming(instruction, target)
    values = instruction["src" if "src" in instruction.args else "on_true"]
    one_input = not isinstance(values, View) or values.buffer is not instruction["predicate"].buffer
    cycles = cycles if one_input else 2 * cycles
    return cycles + _result(instruction, target, cycles)


def reduction(instruction: Instruction, target: Target) -> float:
    """N; N/2 with bfloat16 in and out and add or maximum. 2.26.1: tensor_reduce."""
    cycles = streaming(instruction, target)
    halves = instruction["data"].dtype.name == instruction["dst"].dtype.name == bfloat16.name
    return cycles / 2 if halves and instruction["op"] in _FAST_REDUCTIONS else cycles


def aggregation(instruction: Instruction, target: Target) -> float:
    """13 * N/3: 13 cycles a tuple of three. 2.26.1: bn_aggr."""
    return BN_TUPLE_CYCLES * streaming(instruction, target) / 3


def filling(instruction: Instruction, target: Target) -> float:
    """N; N/2 for zeros of bfloat16 or float16; a GpSimd kernel there. 2.26.1: memset."""
    if instruction.engine is Engine.gpsimd:
        return gpsimd_kernel(instruction, target)
    cycles = streaming(instruction, target)
    return cycles / 2 if instruction["dst"].dtype.name in _HALVES and instruction["value"] == 0 else cycles


def reciprocal(instruction: Instruction, target: Target) -> float:
    """min(5.25 N, N + 64). 2.26.1 says 8N; measured on trn2 at N=4 and 8 are 19 and 42 cycles.

    No such rate can hold for large tiles: silu-trn1 (measured) keeps the vector engine busy for 2.2 us, or 2463 cycles,
    for 512 elements. The addition and the multiplication take 3N of them, which leaves the reciprocal 1.8N at most,
    latencies included.
    """
    cycles = streaming(instruction, target)
    return min(RECIPROCAL_CYCLES * cycles, cycles + RECIPROCAL_DEPTH)


def transposition(instruction: Instruction, target: Target) -> float:
    """max(64, N) on the vector engine. 2.26.1: nc_transpose. (0 on the tensor engine, which ``timing`` models.)"""
    if instruction.engine is not Engine.vector:
        return 0
    data = [instruction["data"]]
    return max(target.timing.vector.interval_cycles, _stride_cycles(instruction, target, data, _elements(data)))


def exponentiation(instruction: Instruction, target: Target) -> float:
    """N/4, plus ``reduce_res``. trainium3_arch: four times the throughput of the scalar engine's exp."""
    cycles = streaming(instruction, target) / QUAD_RATE
    return cycles + _result(instruction, target, cycles)


def drawing(instruction: Instruction, target: Target) -> float:
    """N/4 on the vector engine of trn3, N on those before. trainium3_arch: four random numbers a cycle and lane."""
    if instruction.engine is Engine.gpsimd:
        return gpsimd_kernel(instruction, target)
    cycles = streaming(instruction, target)
    return cycles / QUAD_RATE if target.generation >= _V4 else cycles


def states(instruction: Instruction, target: Target) -> float:
    """N words on the vector engine, else a GpSimd kernel. By kinship: set_rng_seed, rand_set_state, rand_get_state."""
    return (gpsimd_kernel if instruction.engine is Engine.gpsimd else streaming)(instruction, target)


def gpsimd_kernel(instruction: Instruction, target: Target) -> float:
    """150 + N, N once for each tile that it reads. 2.26.1: iota, affine_select.

    trainium_inferentia2_arch: the engine reads one element of 32 bits a partition and cycle.
    """
    tiles, operation = _tiles(instruction), instruction.operation
    given = operation.columns.union(operation.writes)
    inputs = sum(arg not in given for arg, _ in instruction.operands)
    return GPSIMD_START + _stride_cycles(instruction, target, tiles, _elements(tiles) * max(1, inputs))


def _gather(indices: int, each: int, itemsize: int) -> float:
    """Cycles of a GpSimd processor that gathers ``each`` elements for each of ``indices``."""
    unrolled = GATHER_UNROLLED * each
    return GPSIMD_START + indices * each * (GATHER_OVERHEAD + unrolled) / unrolled / min(4 / itemsize, each)


def local_gather(instruction: Instruction, target: Target) -> float:
    """150 + elements * C, C = (28 + 4e) / 4e / min(4/itemsize, e) with e elements per index. 2.26.1: local_gather.

    2.26.1 has the elements divided by C. Then more elements per index would make a gather slower, the opposite of their
    stated purpose; so we take C for the cycles per element, as its terms suggest.
    """
    itemsize = instruction["src_buffer"].dtype.itemsize
    return _gather(instruction["num_valid_indices"], instruction["num_elem_per_idx"], itemsize)


def gather(instruction: Instruction, target: Target) -> float:
    """As ``local_gather`` with one element per index, partitions in parallel. By kinship: nc_n_gather."""
    return _gather(instruction["indices"].free_size, 1, instruction["data"].dtype.itemsize)


def topk(instruction: Instruction, target: Target) -> float:
    """4n + k. 2.32: topk."""
    return float(TOPK_CYCLES * instruction["n"] + instruction["val_dst"].free_size)
