"""A session's compiled programs: one for each shape, kept until the session is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trnrt.backends import Array, Backend
from trnrt.cache.entries import NEW_MODEL
from trnrt.running.partition import LoadedPartition
from trnrt.running.planning import Planner
from trnrt.running.results import RunResult


class Programs:
    """Compiles a program for each shape of inputs once, and runs it."""

    def __init__(self, planner: Planner, backend: Backend) -> None:
        self._planner, self._backend = planner, backend
        self.loaded: dict[tuple[tuple[tuple[int, ...], ...], tuple[bytes, ...]], LoadedPartition] = {}

    def run(self, feeds: Sequence[Mapping[str, Array]]) -> tuple[list[dict[str, Array]], RunResult]:
        """Run all of these inputs, as many in parallel as suits the backend; return the outputs of each."""
        notes: list[str] = []
        programs = tuple(self._load(arrays, notes) for arrays in feeds)
        if len(feeds) == 1 or self._backend.parallel == 1:
            outputs = [program.run(arrays) for program, arrays in zip(programs, feeds, strict=True)]
        else:
            from concurrent.futures import ThreadPoolExecutor  # and logging, which a single slice doesn't need

            with ThreadPoolExecutor(self._backend.parallel) as pool:
                outputs = list(pool.map(LoadedPartition.run, programs, feeds))
        return outputs, RunResult(cache_notes=tuple(notes), programs=programs)

    def close(self) -> None:
        """Release the compiled programs and their device slots."""
        while True:
            try:
                _, program = self.loaded.popitem()
            except KeyError:  # no check before: another thread, whose run failed, too, may close the last one
                return
            program.close()

    def load(self, arrays: Mapping[str, Array]) -> LoadedPartition:
        """The program for inputs of these shapes, compiled now if it is new."""
        return self._load(arrays, [])

    def _load(self, arrays: Mapping[str, Array], notes: list[str]) -> LoadedPartition:
        model = self._planner.model
        # A parameter's value matters, too: Reshape's shape, TopK's count.
        values = {name: arrays[name] for name in model.parameters}
        shapes = tuple(arrays[info.name].shape for info in model.inputs)
        key = (shapes, tuple(array.tobytes() for array in values.values()))
        if key not in self.loaded:
            partition, note = self._planner.get({name: array.shape for name, array in arrays.items()}, values)
            # A new model, or a run's second bucket, needs no note.
            if note and note != NEW_MODEL and not (self.loaded and note.startswith("batch ")):
                notes.append(note)
            self.loaded[key] = LoadedPartition(partition, self._backend, self._planner.cache)
        return self.loaded[key]
