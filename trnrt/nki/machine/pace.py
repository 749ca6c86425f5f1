"""The numbers of the timing model, read from a target's data file, which gives each one's source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

End = Literal["least", "most"]


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """A compute engine's pipeline.

    An instruction of ``c`` cycles ends ``latency_ns`` plus its cycles after its start; the next one that does not
    depend on it may start after ``max(c, interval_cycles)``. ``signal_ns`` from an end to the semaphore that tells of
    it, ``wait_ns`` from the semaphore to the start of what waited.
    """

    clock_ghz: float
    latency_ns: float
    interval_cycles: int
    signal_ns: float
    wait_ns: float
    second_wait_ns: float


@dataclass(frozen=True, slots=True)
class TensorTiming:
    """The tensor engine: weights are loaded (``load``), then columns stream through (``multiply``).

    ``latency_ns`` is from a multiplication's start to its first column in PSUM; ``gap_ns`` what separates two passes at
    full clock; ``load_latency_ns`` a weight load that nothing hides, ``load_interval_cycles`` what it keeps the engine
    from starting the next one at least. Float32 weights whose columns are more than ``hidden_stride_bytes`` apart are
    loaded after the product before, not during it, 128 columns in ``strided_load_ns``.

    ``ramp_window_ns``: the clock's rate is looked at once in each such window; it is halved while the last window was
    busy for less than ``ramp_share`` (0: it never is), and every instruction then takes ``slow_latency_ns`` more. The
    windows have a grid of their own: the first product comes when ``ramp_offset`` of one is over.
    """

    clock_ghz: float
    latency_ns: float
    gap_ns: float
    interval_cycles: int
    load_latency_ns: float
    load_interval_cycles: int
    signal_ns: float
    wait_ns: float
    second_wait_ns: float
    hidden_stride_bytes: int
    strided_load_ns: float
    ramp_window_ns: float
    ramp_share: float
    ramp_offset: float
    slow_latency_ns: float
    peak_tflops: tuple[tuple[str, float], ...]

    def peak(self, dtype: str) -> float:
        """TFLOP a second of products of this dtype."""
        peaks = dict(self.peak_tflops)
        return peaks.get("float8" if dtype.startswith("float8") else dtype, peaks["other"])


@dataclass(frozen=True, slots=True)
class DmaTiming:
    """The DMA engines and who starts them. ``*_hardware``, ``*_software`` and ``*_static`` are where descriptors come
    from: ``trigger`` keeps the issuing engine from issuing anything else, ``start`` is from the trigger to the first
    data; ``load_start_ns`` is what that takes longer for a load whose descriptors the device makes.

    With software descriptors ``prepare_software_ns`` go by before the trigger, and gpsimd is occupied for
    ``trigger_software_ns`` where all SBUF partitions take part, and ``row_software_ns`` less for each that does not.
    The last of the engines that carry a transfer begins ``load_skew_ns`` or ``store_skew_ns`` after the first,
    ``static_skew_ns`` with static descriptors.

    A packet of contiguous bytes takes ``packet_ns`` plus its bytes over ``engine_gbps``; all engines together move no
    more than ``total_gbps``. ``read_ns``: what a transfer out of HBM takes longer, whatever its size.
    ``completion_ns``: from the last packet to the semaphore. ``hbm_gbps`` is a core's part of the device's bandwidth,
    ``hbm_stack_gbps`` what one of the HBM stacks has.
    """

    engines: int
    engine_gbps: float
    total_gbps: float
    packet_ns: float
    read_ns: float
    completion_ns: float
    default_mode: Literal["hardware", "software", "static"]
    static_stores: Literal["vector", "scalar", "gpsimd", "tensor", "sync"]
    trigger_hardware_ns: float
    trigger_software_ns: float
    trigger_static_ns: float
    row_software_ns: float
    prepare_software_ns: float
    load_start_ns: float
    load_skew_ns: float
    store_skew_ns: float
    static_skew_ns: float
    start_hardware_ns: float
    start_software_ns: float
    start_static_ns: float
    transpose_share: float
    hbm_gbps: float
    hbm_stack_gbps: float


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Numbers that may be others: ``least`` and ``most`` are (name, value) pairs, those with which a kernel takes the
    least and the most time. ``cause`` says in a few words what they are of, ``source`` where the interval comes from,
    ``pin`` what to write in a kernel so that it doesn't matter, "" where nothing does.
    """

    cause: str
    least: tuple[tuple[str, float | str], ...]
    most: tuple[tuple[str, float | str], ...]
    source: str
    pin: str


@dataclass(frozen=True, slots=True)
class Timing:
    """A target's timing. ``compared``: whether its predictions were compared with measurements.

    ``order``: how the compiler is taken to issue the headline's instructions, "program" or "free" (list scheduling);
    ``places``: how many times the places that they need the tiles of a loop take turns on.
    ``head_ns`` and ``tail_ns``: what a profiler's total has before the first and after the last instruction;
    ``benchmark_ns``: how much of them a benchmark of many runs still sees.
    """

    compared: bool
    order: Literal["program", "free"]
    places: int
    head_ns: float
    tail_ns: float
    benchmark_ns: float
    table_load_ns: float
    function_latency_ns: float
    wide_stride_factor: float
    vector_modes: bool
    exclusive_psum: bool
    exclusive_sbuf: bool
    vector: EngineTiming
    scalar: EngineTiming
    gpsimd: EngineTiming
    sync: EngineTiming
    tensor: TensorTiming
    dma: DmaTiming
    uncertain: tuple[Uncertain, ...]

    def move_to(self, end: End, causes: Collection[str] | None = None) -> Timing:
        """The same with its uncertain numbers at one end of their intervals: those of ``causes``, or all."""
        timing = self
        for one in self.uncertain:
            if causes is None or one.cause in causes:
                for name, value in one.least if end == "least" else one.most:
                    timing = with_value(timing, name, value)
        return timing


def value_of(timing: Timing, name: str) -> Any:
    """A number of the model by its name ("dma.packet_ns")."""
    found: Any = timing
    for part in name.split("."):
        found = getattr(found, part)
    return found


def with_value(timing: Any, name: str, value: float | str) -> Any:
    """``timing`` (or a part of it) with another number in the place that ``name`` says."""
    head, _, rest = name.partition(".")
    return replace(timing, **{head: with_value(getattr(timing, head), rest, value) if rest else value})
