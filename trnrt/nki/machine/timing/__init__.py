"""The timing model: a pure function from a program (and its target's parameters) to a timeline."""

from trnrt.nki.machine.timing.prediction import (
    WIDEST,
    Cause,
    Prediction,
    Range,
    add_ranges,
    benchmark_us,
    compiled_issues,
    largest_range,
    predict,
    predict_benchmark,
    predict_cores,
    predict_if_faster,
    profiler_us,
    retimed_us,
    schedule_freely,
)
from trnrt.nki.machine.timing.simulation import schedule
from trnrt.nki.machine.timing.timeline import PS_PER_US, Timeline, Transfer

__all__ = [
    "PS_PER_US",
    "WIDEST",
    "Cause",
    "Prediction",
    "Range",
    "Timeline",
    "Transfer",
    "add_ranges",
    "benchmark_us",
    "compiled_issues",
    "largest_range",
    "predict",
    "predict_benchmark",
    "predict_cores",
    "predict_if_faster",
    "profiler_us",
    "retimed_us",
    "schedule",
    "schedule_freely",
]
