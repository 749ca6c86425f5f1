"""Instructions that need not run. They stay in the program, with their rules, addresses and times; this only makes the
simulator faster.

Loads of a tile that only DMA fills, from one kernel argument, at once or in pieces: the argument does not change while
the program runs, so reading it in place gives the same values. And what fills tiles that nothing reads, such as the
products that warm the tensor engine up.
"""

from __future__ import annotations

from collections import Counter

from trnrt.nki.machine.program import Instruction, Program, View

_Touched = tuple[set[int], set[int]]  # the storages that an instruction writes, and all that it touches


def elided_loads(program: Program, as_bytes: set[int]) -> dict[int, View]:
    """Storage index of each such tile -> the window on the argument that replaces it."""
    writers = program.writers()
    constant = {s.index for s in program.inputs if s.index not in writers} - as_bytes - set(program.initial)
    in_loops = {position for begin, end in program.loops() for position in range(begin, end)}  # may never run
    sources: dict[int, View] = {}
    for tile, positions in writers.items():
        loads = [program.instructions[position] for position in positions]
        if tile not in as_bytes and in_loops.isdisjoint(positions) and all(_is_load(one, constant) for one in loads):
            source = _common_source(loads)
            if source is not None:
                sources[tile] = source
    loaded: Counter[int] = Counter()
    for instruction in program.instructions:
        for arg, view in instruction.operands:
            tile = view.storage.index
            source = sources.get(tile)
            if source is None:
                continue
            if arg in instruction.operation.writes:
                loaded[tile] += 1
            elif loaded[tile] < len(writers[tile]) or source_view(view, source) is None:  # read too early, or no slice
                del sources[tile]
        for view in instruction.extra:  # run-time indices are read from the tile itself
            sources.pop(view.storage.index, None)
    return sources


def unread_tiles(program: Program) -> set[int]:
    """The on-chip tiles, by storage index, that only silent instructions write, and only for tiles of this kind.

    Whoever looks at a tile after a run finds such a one unwritten.
    """
    read, silent = {view.storage.index for view in program.outputs} | set(program.initial), list[_Touched]()
    for instruction in program.instructions:
        touched = {view.storage.index for view in instruction.touches()}
        if instruction.operation.silent and all(view.dynamic is None for _, view in instruction.operands):
            silent.append(({view.storage.index for view in instruction.writes()}, touched))
        else:
            read |= touched
    unread = {storage.index for storage in program.storages if storage.on_chip} - read
    # What writes another tile reads its sources: these are read, too, and so on back to the first.
    while heard := [touched for written, touched in silent if not written <= unread]:
        silent = [(written, touched) for written, touched in silent if written <= unread]
        unread -= set().union(*heard)
    return unread


def _is_load(instruction: Instruction, constant: set[int]) -> bool:
    """True if an instruction loads a tile, element for element, from an argument that nothing writes."""
    if instruction.operation.name != "dma_copy":
        return False
    dst, src = instruction["dst"], instruction["src"]
    return bool(
        src.storage.index in constant
        and dst.storage.on_chip
        and src.cast is dst.cast is src.dynamic is dst.dynamic is None
        and src.dtype == dst.dtype
    )


def _common_source(loads: list[Instruction]) -> View | None:
    """The window on an argument with the same data as all loads of a tile; None if there is none.

    Either one load fills the tile, or each fills columns with the same columns of an argument of the tile's shape.
    """
    dst, src = loads[0]["dst"], loads[0]["src"]
    tile, argument = dst.storage, src.storage
    if len(loads) == 1 and src.shape == dst.shape == tile.shape and dst.strides == tile.strides:
        source: View = src
        return source
    if tile.shape != argument.shape or not all(_is_piece(one["dst"], one["src"], argument.index) for one in loads):
        return None
    complete = sum(one["dst"].size for one in loads) == tile.size
    if complete and len({one["dst"].offset for one in loads}) == len(loads):
        return View(argument, argument.shape, argument.strides, 0)
    return None


def _is_piece(dst: View, src: View, argument: int) -> bool:
    """True if ``dst`` is columns of a tile, and ``src`` the same columns of the argument."""
    return (
        src.storage.index == argument
        and (src.shape, src.strides, src.offset) == (dst.shape, dst.strides, dst.offset)
        and dst.ndim == 2
        and dst.shape[0] == dst.storage.shape[0]
    )


def source_view(view: View, source: View) -> View | None:
    """``view`` of a tile as a view of the tile's source; None if it is no plain slice of the tile."""
    if view.cast is not None or view.dynamic is not None:
        return None
    sizes, steps = view.storage.shape, view.storage.strides
    starts = view.storage.coordinates(view.offset)
    offset = source.offset + sum(start * stride for start, stride in zip(starts, source.strides, strict=True))
    strides, after = [], 0
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == 1:
            strides.append(0)
            continue
        dim = next((d for d in range(after, len(steps)) if steps[d] == stride and sizes[d] > 1), None)
        if dim is None or starts[dim] + size > sizes[dim]:
            return None
        strides.append(source.strides[dim])
        after = dim + 1
    return View(source.storage, view.shape, tuple(strides), offset)
