"""``print`` in a kernel: values when it is simulated, in the order of the program; shapes when it is only traced."""

from __future__ import annotations

import builtins
import io
import logging
import pdb
import pprint
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from simulating import Tensor, drawn, give, load, tile, zeros

from trnrt.errors import KernelError, KernelMemoryError
from trnrt.nki import nisa, nki, nl, profile, simulate, trace

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Captured = pytest.CaptureFixture[str]


def printed(body: Callable[[Tensor], Any], capsys: Captured, x: Any = X, **options: Any) -> str:
    """What a kernel prints when it is simulated."""

    def kernel(a: Tensor) -> Tensor:
        loaded = load(a)
        body(loaded)
        return give(loaded)

    simulate(kernel, **options)(x)
    return capsys.readouterr().out


def test_a_tile_s_values(capsys: Captured) -> None:
    assert printed(lambda a: print(a), capsys) == f"{X}\n"
    assert printed(lambda a: print("x:", a[0:1, 1:], a.shape, 3), capsys) == f"x: {X[0:1, 1:]} (2, 3) 3\n"


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "f-string": lambda a: print(f"a is {a}!"),
    "conversion": lambda a: print(f"a is {a!s}!"),
    "format": lambda a: print("a is {}!".format(a)),  # noqa: UP032
    "percent": lambda a: print("a is %s!" % a),  # noqa: UP031
    "str": lambda a: print("a is " + str(a) + "!"),
    "separator": lambda a: print("a is ", a, "!", sep=""),
    "end": lambda a: print("a is", a, end="!\n"),
    "two prints": lambda a: (print("a is", end=" "), print(a, end=""), print("!")),
    "no separator or end": lambda a: (print("a is", a, sep=None, end=""), print("!", end=None)),
}


@pytest.mark.parametrize("form", FORMS)
def test_values_in_text(form: str, capsys: Captured) -> None:
    assert printed(FORMS[form], capsys) == f"a is {X}!\n"


def test_values_in_containers(capsys: Captured) -> None:
    @dataclass
    class Pair:
        one: Any
        name: str

    assert printed(lambda a: print([a, 1], (a,), {"a": a}), capsys) == f"[{X}, 1] ({X},) {{'a': {X}}}\n"
    assert printed(lambda a: print(Pair(a, "x")), capsys).endswith(f"Pair(one={X}, name='x')\n")


def test_values_are_those_of_their_time(capsys: Captured) -> None:
    def body(a: Tensor) -> None:
        before = f"before: {a}"
        print("now:", a)
        nisa.memset(dst=a, value=7)
        print("then:", a)
        print(before)

    sevens = np.full((2, 3), 7, np.float32)
    assert printed(body, capsys) == f"now: {X}\nthen: {sevens}\nbefore: {X}\n"


def test_prints_without_values_keep_their_place(capsys: Captured) -> None:
    def body(a: Tensor) -> None:
        print("first")
        print(a[0:1, 0:1])
        print("last")

    assert printed(body, capsys) == "first\n[[0.]]\nlast\n"


def test_each_run_prints(capsys: Captured) -> None:
    def kernel(a: Tensor) -> Tensor:
        print("a:", load(a))
        return give(load(a))

    run = simulate(kernel)
    run(X)
    run(X + 1)
    assert capsys.readouterr().out == f"a: {X}\na: {X + 1}\n"


@pytest.mark.usefixtures("level_0_6")
def test_registers_and_counters_of_loops(capsys: Captured) -> None:
    def body(a: Tensor) -> None:
        register = nisa.register_alloc(5)
        print("register", register)
        for i in nl.dynamic_range(1, 6, 2):
            nisa.tensor_scalar(dst=a, data=a, op0=nl.add, operand0=1.0)
            print(f"round {i}: {a[0:1, 0:1]}")
        print("done")

    assert printed(body, capsys) == "register 5\nround 1: [[1.]]\nround 3: [[2.]]\nround 5: [[3.]]\ndone\n"


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.int32, nl.uint8, nl.float8_e5m2])
def test_each_dtype_prints_as_numpy_s(dtype: Any, capsys: Captured) -> None:
    def body(a: Tensor) -> None:
        narrow = tile(2, 3, dtype=dtype)
        nisa.tensor_copy(dst=narrow, src=a)
        print(narrow)

    assert printed(body, capsys) == f"{X.astype(dtype.numpy)}\n"


def test_without_rounding_nothing_is_rounded_to_be_printed(capsys: Captured) -> None:
    def body(a: Tensor) -> None:
        narrow = tile(2, 3, dtype=nl.bfloat16)
        nisa.tensor_copy(dst=narrow, src=a)
        print(narrow[0:1, 0:1])
        nl.device_print("narrow", narrow[0:1, 0:1])

    assert printed(body, capsys, X + np.float32(1.001), precise=False) == "[[1.001]]\nnarrow [[1.001]]\n"


def test_memory_of_every_kind(capsys: Captured) -> None:
    def body(a: Tensor) -> None:
        in_psum = tile(2, 3, buffer=nl.psum)
        nisa.tensor_copy(dst=in_psum, src=a)
        print(in_psum)
        unwritten = tile(1, 2)
        print(unwritten)
        bits = a.view(nl.int32)
        print(bits)
        nl.device_print("bits", bits)
        index = zeros(1, 1, dtype=nl.int32)
        print(a.select(1, index))

    bits = X.view(np.int32)
    assert printed(body, capsys) == f"{X}\n[[nan nan]]\n{bits}\nbits {bits}\n{X[:, 0]}\n"


def test_an_argument_in_hbm(capsys: Captured) -> None:
    def kernel(a: Tensor) -> None:
        print(a)
        nisa.dma_copy(dst=a, src=zeros(2, 3))
        print(a)

    simulate(kernel)(X.copy())
    assert capsys.readouterr().out == f"{X}\n{X * 0}\n"


def test_where_it_is_printed_to(capsys: Captured) -> None:
    class Recorder:
        text = ""
        flushed = 0

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            self.flushed += 1

    to = Recorder()
    assert printed(lambda a: print("a", a, file=to, flush=True), capsys) == ""
    assert (to.text, to.flushed) == (f"a {X}\n", 1)

    def kernel(a: Tensor) -> Tensor:
        print(load(a), file=sys.stderr)
        return give(load(a))

    simulate(kernel)(X)
    assert capsys.readouterr().err == f"{X}\n"


def test_both_cores_print(capsys: Captured) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        mine = load(a[nl.program_id(0)])
        print("core", nl.program_id(0), mine)
        out = nl.ndarray((2, 1, 3), nl.float32, nl.shared_hbm)
        nisa.dma_copy(dst=out[nl.program_id(0)], src=mine)
        return out

    kernel[2](X.reshape(2, 1, 3))
    assert capsys.readouterr().out == f"core 0 {X[0:1]}\ncore 1 {X[1:]}\n"


# Where nothing runs


def test_tracing_prints_at_once_what_it_knows(capsys: Captured) -> None:
    def kernel(a: Tensor) -> Tensor:
        loaded = load(a)
        print(f"loaded {loaded}, {nisa.register_alloc(3)}")
        return give(loaded)

    assert "print" not in {instruction.operation.name for instruction in trace(kernel, X).instructions}
    said = "loaded (2, 3) float32 sbuf view of 'a tile', register 1\n"
    assert capsys.readouterr().out == said
    profile(kernel, X)
    assert capsys.readouterr().out == said


def failing(a: Tensor) -> Tensor:
    loaded = load(a)
    print("loaded", loaded)
    print("shape", loaded.shape)
    nisa.memset(dst=loaded[5], value=0)
    return a


def too_large(a: Tensor) -> Tensor:
    print("loaded", load(a))
    print("shape", a.shape)
    large = [zeros(128, 20_000) for _ in range(4)]
    for one in large:
        nisa.tensor_copy(dst=one, src=large[0])
    return a


@pytest.mark.parametrize(("kernel", "error"), [(failing, KernelError), (too_large, KernelMemoryError)])
def test_a_kernel_that_fails_has_printed(kernel: Any, error: type[KernelError], capsys: Captured) -> None:
    with pytest.raises(error):
        simulate(kernel)(X)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["loaded (2, 3) float32 sbuf view of 'a tile'", "shape (2, 3)"]


def test_errors_name_tensors_without_marks() -> None:
    def kernel(a: Tensor) -> Tensor:
        return load(a).permute((1, 0))

    with pytest.raises(KernelError) as traced:
        trace(kernel, X)
    with pytest.raises(KernelError) as simulated:
        simulate(kernel)(X)
    assert str(traced.value) == str(simulated.value)


def test_python_s_print_comes_back() -> None:
    before = builtins.print
    with pytest.raises(KernelError):
        simulate(failing)(X)
    assert builtins.print is before


def test_other_threads_print_meanwhile(capsys: Captured) -> None:
    def body(a: Tensor) -> None:
        thread = threading.Thread(target=lambda: print("another thread"))
        thread.start()
        thread.join()
        print("the kernel")

    assert printed(body, capsys) == "another thread\nthe kernel\n"


def test_a_breakpoint_stops_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def stop() -> None:
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_name, frame.f_locals["loaded"].shape))

    monkeypatch.setattr(sys, "breakpointhook", stop)

    def kernel(a: Tensor) -> Tensor:
        loaded = load(a)
        breakpoint()
        return give(loaded)

    simulate(kernel)(X)
    assert seen == [("kernel", (2, 3))]


def debugged(kernel: Any, commands: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """What pdb answers at the kernel's breakpoint()."""
    answers = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(f"{commands}c\n"), stdout=answers, nosigint=True, readrc=False)
    monkeypatch.setattr(sys, "breakpointhook", lambda: debugger.set_trace(sys._getframe(1)))
    simulate(kernel, **options)(X)
    return answers.getvalue()


def test_a_debugger_sees_values(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """What it asks for is not part of the program, and is run again without the prints before."""

    def kernel(a: Tensor) -> Tensor:
        loaded = load(a)
        print("before")
        nl.device_print("loaded", loaded)
        nisa.tensor_scalar(dst=loaded, data=loaded, op0=nl.add, operand0=1.0)
        breakpoint()
        nisa.memset(dst=loaded, value=0)
        print("after", loaded)
        return give(loaded)

    said = debugged(kernel, "p loaded.shape\np loaded\npp loaded[0:1]\np a\n", monkeypatch)
    for expected in ("(2, 3)", str(X + 1), str(X[0:1] + 1), str(X)):
        assert expected in said
    assert capsys.readouterr().out == f"before\nloaded {X}\nafter {X * 0}\n"
    assert str(X + 1) in debugged(kernel, "print(loaded)\n", monkeypatch) + capsys.readouterr().out


def test_a_debugger_sees_rounded_values_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(a: Tensor) -> Tensor:
        narrow = tile(2, 3, dtype=nl.bfloat16)
        nisa.tensor_scalar(dst=narrow, data=load(a), op0=nl.add, operand0=1.001)
        breakpoint()
        return give(narrow)

    assert "[1 2 3]" in debugged(kernel, "p narrow[0:1]\n", monkeypatch)
    assert "1.001" in debugged(kernel, "p narrow[0:1]\n", monkeypatch, precise=False)


@pytest.mark.usefixtures("level_0_6")
def test_where_a_debugger_sees_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(a: Tensor) -> Tensor:
        loaded, register = load(a), nisa.register_alloc(3)
        nisa.register_move(register, 4)
        for _ in nl.dynamic_range(3):
            breakpoint()
            nisa.memset(dst=loaded, value=0)
        return give(loaded)

    said = debugged(kernel, "p loaded\np register\n", monkeypatch)
    assert "(2, 3) float32 sbuf view of 'a tile'" in said
    assert "register 1" in said


def test_python_s_own_library_gets_values_at_once(capsys: Captured, caplog: pytest.LogCaptureFixture) -> None:
    def body(a: Tensor) -> None:
        logging.getLogger("kernels").warning("loaded %s", a)
        pprint.pprint(a)
        nisa.memset(dst=a, value=0)

    assert printed(body, capsys) == f"{X}\n"
    assert f"loaded {X}" in caplog.text


def test_text_that_is_never_printed_changes_nothing() -> None:
    def kernel(a: Tensor) -> Tensor:
        loaded = load(a)
        made = f"{loaded}"
        assert "(128, 64)" in made
        return give(loaded)

    np.testing.assert_array_equal(simulate(kernel)(drawn(128, 64)), drawn(128, 64))
