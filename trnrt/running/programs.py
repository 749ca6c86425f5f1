"""What a session has compiled: a program for each shape that came, on a backend, kept until it is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trnrt.backends import Array, Backend
from trnrt.cache.entries import NEW_MODEL
from trnrt.running.partition import LoadedPartition
from trnrt.running.planning import Planner


@dataclass(frozen=True)
class Ran:
    """What running some inputs gave: the outputs of each, what was run for each, and what the cache had to say."""

    outputs: list[dict[str, Array]]
    programs: tuple[LoadedPartition, ...]
    cache_notes: tuple[str, ...]


class Programs:
    """Compiles what inputs need, once, and runs them."""

    def __init__(self, planner: Planner, backend: Backend) -> None:
        self._planner, self._backend = planner, backend
        self.loaded: dict[tuple[tuple[tuple[int, ...], ...], tuple[bytes, ...]], LoadedPartition] = {}

    def run(self, feeds: Sequence[Mapping[str, Array]]) -> Ran:
        """Run all of these inputs, as many at a time as the backend likes."""
        notes: list[str] = []
        programs = tuple(self._load(arrays, notes) for arrays in feeds)
        if len(feeds) == 1 or self._backend.parallel == 1:
            outputs = [program.run(arrays) for program, arrays in zip(programs, feeds, strict=True)]
        else:
            with ThreadPoolExecutor(self._backend.parallel) as pool:
                outputs = list(pool.map(LoadedPartition.run, programs, feeds))
        return Ran(outputs, programs, tuple(notes))

    def close(self) -> None:
        """Release what was compiled, and its place on a device."""
        while True:
            try:
                _, program = self.loaded.popitem()
            except KeyError:  # not asked before: another thread's run may have failed, too, and close the last one
                return
            program.close()

    def _load(self, arrays: Mapping[str, Array], notes: list[str]) -> LoadedPartition:
        model = self._planner.model
        # Of some inputs the values matter, too: Reshape's shape, TopK's count.
        values = {name: arrays[name] for name in model.parameters}
        shapes = tuple(arrays[info.name].shape for info in model.inputs)
        key = (shapes, tuple(array.tobytes() for array in values.values()))
        if key not in self.loaded:
            partition, note = self._planner.get({name: array.shape for name, array in arrays.items()}, values)
            # That a model is new, or that a run needs a second bucket, surprises nobody.
            if note and note != NEW_MODEL and not (self.loaded and note.startswith("batch ")):
                notes.append(note)
            self.loaded[key] = LoadedPartition(partition, self._backend, self._planner.cache)
        return self.loaded[key]
