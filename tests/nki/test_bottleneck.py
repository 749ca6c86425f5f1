"""The sentence on the critical path: its kind, lines and figures, and advice only where it is certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulating import tile

from trnrt.nki import Spec, nisa, nki, nl, profiling, trace
from trnrt.nki.bottleneck import Bottleneck
from trnrt.nki.machine.timing.steps import Step


def found(body: Callable[..., Any], *shapes: tuple[tuple[int, ...], str], **options: Any) -> Bottleneck:
    program = trace(nki.jit(body), *(Spec(*shape) for shape in shapes))
    bottleneck = profiling.profile_programs([program], **options).bottleneck
    assert bottleneck is not None
    return bottleneck


def line_of(body: Callable[..., Any], text: str) -> int:
    import inspect

    lines, first = inspect.getsourcelines(body)
    return first + next(k for k, line in enumerate(lines) if text in line)


def hops(x: nl.NkiTensor) -> nl.NkiTensor:
    """One small copy after another, each of what the one before wrote."""
    x_sb = tile(128, 16)
    hbm = tile(128, 16, buffer=nl.private_hbm)
    nisa.dma_copy(dst=x_sb, src=x)
    for _ in range(6):
        nisa.dma_copy(dst=hbm, src=x_sb)
        nisa.dma_copy(dst=x_sb, src=hbm)
    return tile(1, 1, buffer=nl.shared_hbm)


def products(x: nl.NkiTensor) -> nl.NkiTensor:
    """64 products from tiles that are loaded once."""
    x_sb = tile(128, 512, dtype=x.dtype)
    nisa.dma_copy(dst=x_sb, src=x)
    for _ in range(64):
        sums = tile(128, 512, buffer=nl.psum)
        nisa.nc_matmul(dst=sums, stationary=x_sb[:, :128], moving=x_sb)
    return tile(1, 1, buffer=nl.shared_hbm)


def narrow(x: nl.NkiTensor) -> nl.NkiTensor:
    """Many tiny instructions on two partitions."""
    x_sb = tile(2, 1)
    nisa.dma_copy(dst=x_sb, src=x)
    for _ in range(400):
        nisa.tensor_tensor(dst=x_sb, data1=x_sb, data2=x_sb, op=nl.add)
    return tile(1, 1, buffer=nl.shared_hbm)


def test_small_transfers_in_turn() -> None:
    bottleneck = found(hops, ((128, 16), "float32"))
    assert bottleneck.kind == "DMA latency" and bottleneck.count == 13
    lines = {line_of(hops, f"nisa.dma_copy(dst={dst}") for dst in ("hbm", "x_sb, src=hbm")}
    assert lines == {place.line for place in bottleneck.places[:2]}
    assert bottleneck.sentence.startswith(f"The fixed latencies of DMA transfers (lines {min(lines)} and")
    share = f"{100 * bottleneck.share:.0f} % of the time after the launch"
    assert f"hold {share} (13 transfers, about" in bottleneck.sentence
    assert "8.0 KiB each); the busiest are the DMA engines, " in bottleneck.sentence
    assert bottleneck.advice.startswith("Make fewer, larger transfers: ")


@pytest.mark.parametrize(("dtype", "advised"), [("float32", True), ("bfloat16", False)])
def test_products_are_faster_in_16_bits(dtype: str, advised: bool) -> None:
    profile = profiling.profile_programs([trace(nki.jit(products), Spec((128, 512), dtype))])
    bottleneck = profile.bottleneck
    assert bottleneck is not None
    line = line_of(products, "nc_matmul")
    assert (bottleneck.kind, bottleneck.count, bottleneck.more) == ("tensor engine", 64, 0)
    assert [place.name for place in bottleneck.places] == [f"line {line}"]
    assert f"Matrix products on the tensor engine (line {line}) hold " in bottleneck.sentence
    assert f"; the tensor engine is busy {100 * profile.engines['tensor'].share:.0f} % of the" in bottleneck.sentence
    assert ("multiply in bfloat16" in bottleneck.advice) is advised


def test_lines_of_helpers_name_their_file() -> None:
    """The same transfers from another file, which a small profile is made of."""
    program = trace(nki.jit(hops), Spec((128, 16), "float32"))
    program.file = "kernel.py"
    bottleneck = profiling.profile_programs([program]).bottleneck
    assert bottleneck is not None and " of test_bottleneck.py) hold" in bottleneck.sentence


def test_instructions_on_few_partitions() -> None:
    bottleneck = found(narrow, ((2, 1), "float32"))
    assert bottleneck.kind == "vector latency" and bottleneck.count == 400
    assert "The fixed costs of the vector engine's instructions" in bottleneck.sentence
    assert bottleneck.advice == "Use more partitions in fewer instructions: these write 2 of 128 on average."


def test_a_small_kernel_hears_of_its_launch() -> None:
    def body(x: nl.NkiTensor) -> nl.NkiTensor:
        nisa.dma_copy(dst=tile(1, 16), src=x)
        return tile(1, 1, buffer=nl.shared_hbm)

    bottleneck = found(body, ((1, 16), "float32"))
    assert bottleneck.advice == "", "a single transfer can't be joined with others"
    assert "The program's fixed start and end take longer than all of this: 7.40 us." in bottleneck.sentence


def test_a_model_names_its_steps() -> None:
    first, last = line_of(hops, "x_sb = tile"), line_of(hops, "dst=x_sb, src=hbm")
    steps = [Step("a" * 100, ("n",), (first, last - 2)), Step("copies", ("m",), (last - 1, last))]
    bottleneck = found(hops, ((128, 16), "float32"), steps=steps)
    assert [(place.name, place.line) for place in bottleneck.places] == [("copies", 0)]
    assert "DMA transfers (copies) hold" in bottleneck.sentence


def test_the_share_is_that_of_its_parts() -> None:
    bottleneck = found(hops, ((128, 16), "float32"))
    assert bottleneck.us >= sum(place.us for place in bottleneck.places) > 0.89 * bottleneck.us
    assert 0 < bottleneck.share <= 1


def idle(x: nl.NkiTensor) -> nl.NkiTensor:
    """No instruction."""
    return tile(1, 1, buffer=nl.shared_hbm)


def test_nothing_has_no_bottleneck() -> None:
    assert profiling.profile_programs([trace(nki.jit(idle), Spec((1, 1), "float32"))]).bottleneck is None


# ---- advice is right: the same work as advised takes less time


def loads(count: int) -> Callable[..., Any]:
    """One tile of 128 x 512 in ``count`` loads, each after the sum of the one before."""

    def body(x: nl.NkiTensor) -> nl.NkiTensor:
        width = 512 // count
        x_sb, total = tile(128, width), tile(128, 1)
        for k in range(count):
            nisa.dma_copy(dst=x_sb, src=x[:, k * width : (k + 1) * width])
            nisa.tensor_reduce(dst=total, op=nl.add, data=x_sb, axis=1)
        return tile(1, 1, buffer=nl.shared_hbm)

    return body


def additions(rows: int) -> Callable[..., Any]:
    """4,096 elements added to themselves 100 times, on ``rows`` partitions at a time."""

    def body(x: nl.NkiTensor) -> nl.NkiTensor:
        x_sb = tile(rows, 32)
        nisa.dma_copy(dst=x_sb, src=x[:rows, :32])
        for _ in range(100 * (128 // rows)):
            nisa.tensor_tensor(dst=x_sb, data1=x_sb, data2=x_sb, op=nl.add)
        return tile(1, 1, buffer=nl.shared_hbm)

    return body


def gathers(run: int) -> Callable[..., Any]:
    """One load of 64 KiB in contiguous runs of ``run`` elements; several, so that their data holds the path."""

    def body(x: nl.NkiTensor) -> nl.NkiTensor:
        for _ in range(8):
            x_sb = tile(128, 128)
            source = x.ap([[2048, 128], [2048 // (128 // run), 128 // run], [1, run]])
            nisa.dma_copy(dst=x_sb.reshape((128, 128 // run, run)), src=source)
        return tile(1, 1, buffer=nl.shared_hbm)

    return body


def trips(count: int) -> Callable[..., Any]:
    """A device loop of ``count`` trips that does the same work in all."""

    def body(x: nl.NkiTensor) -> nl.NkiTensor:
        x_sb = tile(128, 16)
        nisa.dma_copy(dst=x_sb, src=x[:, :16])

        def work(k: Any) -> None:
            for _ in range(16 // count):
                nisa.tensor_tensor(dst=x_sb, data1=x_sb, data2=x_sb, op=nl.add)

        nl.fori_loop(0, count, work)
        return tile(1, 1, buffer=nl.shared_hbm)

    return body


@pytest.mark.parametrize(
    ("make", "slow", "fast", "kind", "advice"),
    [
        (loads, 16, 2, "DMA latency", "Make fewer, larger transfers"),
        (additions, 4, 128, "vector latency", "Use more partitions"),
        (gathers, 4, 128, "DMA data", "Make runs of contiguous bytes longer"),
        (trips, 16, 2, "loop barriers", "Do more work in each trip"),
    ],
)
def test_advice_that_is_followed_makes_the_kernel_faster(
    make: Any, slow: int, fast: int, kind: str, advice: str
) -> None:
    before, after = (
        profiling.profile_programs([trace(nki.jit(make(size)), Spec((128, 2048), "float32"))]) for size in (slow, fast)
    )
    assert before.bottleneck is not None
    assert before.bottleneck.kind == kind and before.bottleneck.advice.startswith(advice)
    assert after.benchmark_us < before.benchmark_us


def test_16_bits_are_faster_as_advised() -> None:
    wide, narrow = (
        profiling.profile_programs([trace(nki.jit(products), Spec((128, 512), dtype))]).benchmark_us
        for dtype in ("float32", "bfloat16")
    )
    assert narrow < wide / 2
