"""Loads that need no copy: a tile that DMA fills from a kernel argument, whole or in pieces, and nothing else does.

The argument does not change while the program runs, so that reading it in place gives what the tile would hold. This
is a matter of the simulator's speed alone: the instruction stays in the program, with its rules, address and time.
"""

from __future__ import annotations

from collections import Counter

from trnrt.nki.machine.program import Instruction, Program, View


def elided_loads(program: Program, as_bytes: set[int]) -> dict[int, View]:
    """Storage index of each such tile -> the window on the argument that it stands for."""
    written = Counter(view.storage.index for instruction in program.instructions for view in instruction.writes())
    constant = {s.index for s in program.inputs if not written[s.index]} - as_bytes - set(program.initial)
    in_loops = {position for begin, end in program.loops() for position in range(begin, end)}  # may run no time at all
    sources = {
        instruction["dst"].storage.index: instruction["src"]
        for position, instruction in enumerate(program.instructions)
        if instruction.operation.name == "dma_copy"
        and position not in in_loops
        and _is_plain_load(instruction, constant)
    }
    sources = {tile: src for tile, src in sources.items() if written[tile] == 1} | _in_pieces(
        program, constant, in_loops
    )
    sources = {tile: src for tile, src in sources.items() if tile not in as_bytes}
    loaded: Counter[int] = Counter()
    for instruction in program.instructions:
        for arg, view in instruction.operands:
            tile = view.storage.index
            source = sources.get(tile)
            if source is None:
                continue
            if arg in instruction.operation.writes:
                loaded[tile] += 1
            elif (
                loaded[tile] < written[tile] or source_view(view, source) is None
            ):  # read before it is loaded, or no slice
                del sources[tile]
        for view in instruction.extra:  # run-time indices are read from the tile itself
            sources.pop(view.storage.index, None)
    return sources


def _in_pieces(program: Program, constant: set[int], in_loops: set[int]) -> dict[int, View]:
    """Tiles that several DMAs fill, each with the same part of one argument of the tile's own shape."""
    filled: Counter[int] = Counter()
    starts: dict[int, set[int]] = {}
    origins: dict[int, set[int]] = {}
    for position, instruction in enumerate(program.instructions):
        for dst in instruction.writes():
            tile = dst.storage.index
            piece = instruction.operation.name == "dma_copy" and position not in in_loops
            if piece and _is_piece(instruction, constant):
                filled[tile] += dst.size
                starts.setdefault(tile, set()).add(dst.offset)
                origins.setdefault(tile, set()).add(instruction["src"].storage.index)
            else:
                origins.setdefault(tile, set()).add(-1)
    written = Counter(view.storage.index for instruction in program.instructions for view in instruction.writes())
    arguments = {storage.index: storage for storage in program.inputs}
    tiles = {storage.index: storage for storage in program.storages}
    whole = {}
    for tile, found in origins.items():
        covered = filled[tile] == tiles[tile].size and len(starts.get(tile, ())) == written[tile]
        if covered and len(found) == 1 and found <= constant:
            argument = arguments[min(found)]
            whole[tile] = View(argument, argument.shape, argument.strides, 0)
    return whole


def _is_piece(instruction: Instruction, constant: set[int]) -> bool:
    """Whether a DMA fills columns of a tile with those of an argument of the same shape that nothing writes."""
    dst, src = instruction["dst"], instruction["src"]
    return bool(
        src.storage.index in constant
        and dst.storage.on_chip
        and src.cast is dst.cast is src.dynamic is dst.dynamic is None
        and src.storage.dtype == dst.storage.dtype
        and src.storage.shape == dst.storage.shape
        and src.storage.strides == dst.storage.strides
        and (src.shape, src.strides, src.offset) == (dst.shape, dst.strides, dst.offset)
        and dst.ndim == 2
        and dst.shape[0] == dst.storage.shape[0]
    )


def _is_plain_load(instruction: Instruction, constant: set[int]) -> bool:
    """Whether a DMA fills a whole tile, element for element, from an argument that nothing writes."""
    dst, src = instruction["dst"], instruction["src"]
    return bool(
        src.storage.index in constant
        and dst.storage.on_chip
        and src.cast is dst.cast is src.dynamic is dst.dynamic is None
        and src.dtype == dst.dtype
        and src.shape == dst.shape == dst.storage.shape
        and dst.strides == dst.storage.strides
    )


def source_view(view: View, source: View) -> View | None:
    """``view`` of a tile as a view of what the tile was loaded from; None where it is no plain slice of the tile."""
    if view.cast is not None or view.dynamic is not None:
        return None
    sizes, steps = view.storage.shape, view.storage.strides
    starts, rest = [], view.offset
    for step in steps:
        starts.append(rest // step)
        rest %= step
    offset = source.offset + sum(start * stride for start, stride in zip(starts, source.strides, strict=True))
    strides, after = [], 0
    for size, stride in zip(view.shape, view.strides, strict=True):
        dim = next((d for d in range(after, len(steps)) if steps[d] == stride and sizes[d] > 1), None)
        if size == 1:
            strides.append(0)
            continue
        if dim is None or starts[dim] + size > sizes[dim]:
            return None
        strides.append(source.strides[dim])
        after = dim + 1
    return View(source.storage, view.shape, tuple(strides), offset)
