"""The runs of the courses' harnesses: with solutions they must pass, with known bad kernels they must fail.

A run takes a copy of the course's folder, puts files of a solution in their places, and may change a line of them. Its
times are the harness's own lines; beside them stand limits that the harness itself prints or grades by, in its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.courses.repositories import (
    CS149,
    CS149_OF_2024,
    CS149_SOLVED,
    CS152_SOLVED,
    Repository,
)

Change = tuple[str, str, Callable[[str], str]]
"""A file of the working folder, what the change does, and the change."""

TIME = r"Execution Time(?: for student implementation)?: ([\d.]+) (?:μs|us)"
LAB_TIME = r"Executed in ([\d.]+) μs"
FFNN_TIME = r"Execution Time: ([\d.]+) ms"


@dataclass(frozen=True)
class Run:
    """A harness's command line. ``says``: regular expressions that its output must match; ``code``: its exit code.

    ``time``: the expression of a time in its output, ``unit_us`` in microseconds. ``limits``: those of the course for
    each of these times. ``published``: others' measurements of the same kernel. ``setup``: a command before it.
    ``files``: those that it must leave. ``target``: the course's instances.
    ``options``: of `trnrt nki run`.
    """

    name: str
    course: Repository
    folder: str
    script: str
    arguments: tuple[str, ...]
    says: tuple[str, ...]
    code: int = 0
    solution: tuple[Repository, tuple[str, ...]] | None = None
    changes: tuple[Change, ...] = ()
    time: str = TIME
    unit_us: float = 1.0
    limits: tuple[float | None, ...] = ()
    published: tuple[float | None, ...] = ()
    setup: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    target: str = "trn2"
    slow: bool = False
    options: tuple[str, ...] = ()


def set_constant(name: str, value: int) -> Callable[[str], str]:
    """Give the first constant of this name another value."""
    return lambda text: re.sub(rf"(?m)^(\s*{name} = )\d+.*$", rf"\g<1>{value}", text, count=1)


def keep_last_product(text: str) -> str:
    """Let the first ``+=`` of matrix products be ``=``: only the last product counts."""
    return text.replace("+= nisa.nc_matmul", "= nisa.nc_matmul", 1)


PART_1 = (CS149_SOLVED, ("part1/kernels.py",))
PART_2 = (CS149_SOLVED, ("part2/conv2d.py",))
LAB_6 = (CS152_SOLVED, ("nki_ffnn/kernels.py", "nki_ffnn/matmul_kernels.py"))
CORRECT = (r"Correctness passed\? True", TIME)


def _part_1(
    kernel: str, size: int, *arguments: str, change: Change | None = None, solved: bool = True, published: float | None
) -> Run:
    return Run(
        f"CS149 part 1, {kernel} {size}{' ' + change[1] if change else ''}",
        CS149,
        "part1",
        "run_benchmark.py",
        ("--kernel", kernel, "-n", str(size), *arguments),
        CORRECT,
        solution=PART_1 if solved else None,
        changes=(change,) if change else (),
        files=tuple(f"{arguments[1]}.{kind}" for kind in ("neff", "ntff")) if arguments else (),
        published=(published,),
    )


def _vec_add(kernel: str, size: int, *arguments: str, published: float | None = None) -> Run:
    return Run(
        f"CS149 of 2024 part 1, {kernel} {size}",
        CS149_OF_2024,
        "part1",
        "vec_add.py",
        ("--kernel", kernel, "--size", str(size), *arguments),
        (r"Corectness passed\? True", TIME),
        files=tuple(f"{arguments[1]}.{kind}" for kind in ("neff", "ntff")) if arguments else (),
        target="trn1",
        published=(published,),
    )


ROWS_OF_128: Change = ("part1/kernels.py", "in rows of 128", set_constant("ROW_CHUNK", 128))

# Published: TIMING.md's M-02, M-06, M-20 and M-41 (of the solution itself) on trn2, M-09 on trn1. Those of a stream of
# 256,000, a transposition and a convolution are from a profiler, with descriptors that the host wrote.
_PASSED = (r"(?s)(?:Running correctness test.*?Passed.*?){4}",)

RUNS: tuple[Run, ...] = (
    _part_1("naive", 128, published=None),
    _part_1("tiled", 1280, solved=False, published=None),
    _part_1("tiled", 25600, change=ROWS_OF_128, solved=False, published=378),
    _part_1("stream", 256000, "--profile_name", "stream", published=26.4),
    _part_1("transpose", 1024, "--profile_name", "transpose", published=46.47),
    Run(
        "CS149 part 2, all cases",
        CS149,
        "part2",
        "test_harness.py",
        ("--test_maxpool", "--profile", "conv"),
        (*_PASSED, r"Correctness: 10\.0"),
        solution=PART_2,
        limits=(4596, 1002, 4596, 1002, 110, 84, 110, 84),  # performance_requirements_by_dtype_size
        published=(None, 782.8, None, 781.0),
        files=("conv_float32.ntff", "conv_pool_float16_smaller.ntff"),
        slow=True,
    ),
    _vec_add("naive", 128),
    _vec_add("tiled", 1280),
    _vec_add("stream", 25600, published=53),
    _vec_add("alloc", 256000, "--profile", "alloc"),
    Run(
        "CS149 of 2024 part 2, all cases, with the solution of 2025",
        CS149_OF_2024,
        "part2",
        "test_harness.py",
        ("--test_maxpool", "--profile", "conv"),
        _PASSED,
        solution=PART_2,
        limits=(4300, 1300, 4300, 1300),  # performance_requirements_by_dtype
        files=("conv_float32.ntff", "conv_pool_float16.ntff"),
        target="trn1",
        slow=True,
    ),
    Run(
        "CS152 lab 6, all tests of the feed-forward network",
        CS152_SOLVED,
        "nki_ffnn",
        "tester.py",
        ("--test-all",),
        tuple(rf"{name} test passed!" for name in ("Transpose", r"Bias add \+ activation", "Forward", "Predict")),
        target="trn1",
        slow=True,
    ),
    Run(
        "CS152 lab 6, the network on stored data",
        CS152_SOLVED,
        "nki_ffnn",
        "ffnn.py",
        ("--benchmark",),
        ("Predictions match the golden model",),
        # The course's matmul_kernels.py keeps more in SBUF than there is; AWS's compiler spills, the simulator refuses.
        options=("--no-capacity",),
        setup=("ffnn_ref.py", "--store-data"),
        time=FFNN_TIME,
        unit_us=1e3,
        target="trn1",
        slow=True,
    ),
    Run(
        "CS152 lab 6, basic convolutions",
        CS152_SOLVED,
        "nki_conv2d",
        "tester.py",
        ("--basic", "--profile"),
        ("All basic correctness tests passed!", "All profiles generated successfully!"),
        time=LAB_TIME,
        limits=(590, 700, 2500),  # utils.py
        target="trn1",
        slow=True,
    ),
    Run(
        "bad: CS149 part 1, tiles of 256 rows",
        CS149,
        "part1",
        "run_benchmark.py",
        ("--kernel", "tiled", "-n", "25600"),
        (r"spans 256 partitions; the limit is 128",),
        1,
        PART_1,
    ),
    Run(
        "bad: CS149 of 2024 part 1, three tiles over each other",
        CS149_OF_2024,
        "part1",
        "vec_add.py",
        ("--kernel", "alloc_bad", "--size", "256000"),
        (r"(?s)tiles? share .*kernels\.py:225.*kernels\.py:228.*kernels\.py:231",),
        1,
        target="trn1",
    ),
    Run(
        "bad: CS149 part 1, the starter's transpose",
        CS149,
        "part1",
        "run_benchmark.py",
        ("--kernel", "transpose", "-n", "1024"),
        (r"Correctness passed\? False|nothing is written",),
        1,
    ),
    Run(
        "bad: CS149 part 2, the starter's convolution",
        CS149,
        "part2",
        "test_harness.py",
        (),
        (r"RuntimeError",),
        1,
    ),
    Run(
        "bad: CS149 part 2, a sum that keeps its last product only",
        CS149,
        "part2",
        "test_harness.py",
        ("--simulate",),
        (r"(?s)smaller image.*Output mismatch.*Failed", "Correctness failed, skipping performance tests"),
        0,
        PART_2,
        changes=(("part2/conv2d.py", "the first sum of products is an assignment", keep_last_product),),
        slow=True,
    ),
)
