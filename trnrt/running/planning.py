"""Plans of a model and their predicted latencies: made, or taken from the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from trnrt.cache.entries import Entries
from trnrt.cache.plans import PlanCache, keep_partition, request_for
from trnrt.importer import ImportedModel
from trnrt.inputs.drawing import Array
from trnrt.planner import PlanOptions

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Range
    from trnrt.planner.parts.partition import Partition

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Planner:
    """Plans one model with the same options for any input shapes.

    ``values`` are always those of the inputs that are the model's parameters.
    """

    model: ImportedModel
    options: PlanOptions
    cache: PlanCache

    def make(self, shapes: Shapes, values: Mapping[str, Array] | None = None) -> Partition:
        """The parts for these shapes, planned now."""
        from trnrt.planner.parts.partitioning import make_partition  # onnx_ir, which a cached plan doesn't need

        return make_partition(self.model, shapes, self.options, values)

    def get(self, shapes: Shapes, values: Mapping[str, Array]) -> tuple[Partition, str]:
        """The parts, from the cache or newly planned, and why they were planned."""
        request = request_for(self.model, shapes, values, self.options)
        return self.cache.partition(request, lambda: self.make(shapes, values))

    def keep(self, entries: Entries, shapes: Shapes) -> str:
        """Keep the plan for these shapes, and its predicted latency; return why they can't be kept, or ""."""
        request = request_for(self.model, shapes, {}, self.options)
        partition = self.get(shapes, {})[0]
        problem = keep_partition(entries, request, partition)
        if not problem:
            entries.put_time(request, astuple(self.latency(shapes, {}, partition)))
        return problem

    def latency(self, shapes: Shapes, values: Mapping[str, Array], partition: Partition | None = None) -> Range:
        """The predicted latency on the device, from the cache if possible; runs nothing.

        ``partition``: the parts, if known; otherwise they are planned.
        """
        from trnrt.nki.machine.timing import Range  # the timing model, which a run doesn't need

        request = request_for(self.model, shapes, values, self.options)
        return Range(*self.cache.time(request, lambda: astuple(self._time(partition or self.get(shapes, values)[0]))))

    def _time(self, partition: Partition) -> Range:
        from trnrt.nki.machine.timing import add_ranges
        from trnrt.running.profiler import predicted_range_of

        on_device = [predicted_range_of(plan, self.cache.directory) for plan in partition.plans]
        return add_ranges(on_device, partition.crossings_us)
