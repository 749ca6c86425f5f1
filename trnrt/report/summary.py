"""A profile under the names of AWS's profiler.

Names, meanings and units are those of the Summary table of Neuron Explorer (tools/neuron-explorer/
profile-schema-reference.rst of the Neuron SDK's documentation), which neuron-profile's summary has, too. Of its fields
only those are here whose meaning the model has. Shares are of ``total_time``, the profiler's figure, while ``mfu`` and
``mbu`` of a ``Profile`` are of the benchmark's, and over other peaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnrt.nki.machine.targets import get_target

if TYPE_CHECKING:
    from trnrt.nki.profiling import Profile

_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")

Summary = dict[str, float | int]


def summary_of(profile: Profile) -> Summary:
    """The profiler's names with their values: seconds, percent, bytes and counts.

    For two cores, values are sums over both, and percentages are of both cores' peak.
    """
    seconds, cores = profile.profiler_us / 1e6, len(profile.cores) or 1
    target = get_target(profile.target)
    clock = target.timing.tensor.clock_ghz * 1e9
    # Whatever the dtype: two operations, for each element of the tensor engine, each cycle.
    most_flops = 2 * target.partitions * target.stationary_max * clock * cores
    most_bytes = target.timing.dma.hbm_stack_gbps * 1e9  # of the stack, whoever shares it
    bytes_moved = profile.hbm_read_bytes + profile.hbm_write_bytes
    return {
        "total_time": seconds,
        "mfu_estimated_percent": _percent(profile.flops, most_flops * seconds),
        "mbu_estimated_percent": _percent(bytes_moved, most_bytes * seconds),
        "mm_arithmetic_intensity": profile.flops / bytes_moved if bytes_moved else 0.0,
        "peak_flops_bandwidth_ratio": most_flops / most_bytes,
        **{
            f"{name}_engine_active_time_percent": _active(profile, name) for name in _ENGINES if name in profile.engines
        },
        "dma_active_time_percent": _active(profile, "dma"),
        "dma_transfer_count": profile.dma_transfer_count,
        "hbm_read_bytes": profile.hbm_read_bytes,
        "hbm_write_bytes": profile.hbm_write_bytes,
    }


def _active(profile: Profile, engine: str) -> float:
    use = profile.engines.get(engine)
    return 0.0 if use is None else _percent(use.busy_us, profile.profiler_us)


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0
