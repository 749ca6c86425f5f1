"""``trnrt nki run`` and ``trnrt nki check``: scripts that say ``import nki``, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from nki_scripts import KERNELS, ONES, line_of, script, trnrt

from trnrt.errors import KernelWarning, OptionError
from trnrt.nki.calls import describe, parse_call
from trnrt.nki.checking import check
from trnrt.nki.machine.dtypes import bfloat16, float32
from trnrt.nki.sim.kernel import Spec

# ---- run


def test_a_script_runs_as_main_with_its_arguments_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("number = 3\n")
    path = script(
        tmp_path, f"{ONES}import beside_it\nprint(__name__, sys.argv, add(ones, ones)[0, 0] + beside_it.number)"
    )
    before = list(sys.path), list(sys.argv), sys.modules["__main__"]
    outcome = trnrt("run", path, "a", "--size=3", "-n", "4", "--", "--target", "mine")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"__main__ {[str(path), 'a', '--size=3', '-n', '4', '--target', 'mine']} 5.0\n"
    assert (list(sys.path), list(sys.argv), sys.modules["__main__"]) == before
    sys.modules.pop("beside_it")


@pytest.mark.parametrize("verb", ["run", "check", "profile"])
def test_the_release_of_nki_is_chosen(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    @nki.jit
    def looped(a):
        for _ in nl.dynamic_range(1):
            out = add(a, a)
        return out
    looped(np.ones((2, 2), np.float32))
    """
    path = script(tmp_path, text)
    assert trnrt(verb, "--nki", "0.6", path).code == 0
    outcome = trnrt(verb, path)
    assert outcome.code == 1 and "nl.fori_loop" in outcome.out + outcome.err
    monkeypatch.setenv("TRNRT_NKI_VERSION", "0.6")
    assert trnrt(verb, path).code == 0
    assert trnrt(verb, "--nki", "0.7", path).code == 1
    monkeypatch.setenv("TRNRT_NKI_VERSION", "6")
    outcome = trnrt(verb, path)
    assert outcome.code == 2 and "TRNRT_NKI_VERSION: there is no language level '6'" in outcome.err
    if verb == "check":
        assert trnrt("check", "--nki", "0.6", path).out.startswith(f"{path} on trn2, NKI 0.6: 0 findings")
        assert trnrt("check", "--nki", "0.7", "--json", path).document["nki"] == "0.7"


@pytest.mark.parametrize("verb", ["run", "check", "profile"])
def test_wrong_timing_is_no_error_of_the_scripts(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_TIMING", str(tmp_path / "none.toml"))
    outcome = trnrt(verb, script(tmp_path, f"{ONES}add(ones, ones)"))
    assert outcome.code == 2 and outcome.err.startswith("error: can't read the timing in")
    assert "hint: `trnrt calibrate REPORT -o" in outcome.err


@pytest.mark.parametrize("before", [True, False])
def test_target_is_what_kernels_are_traced_for(tmp_path: Path, before: bool) -> None:
    text = """
    @nki.jit
    def generation(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        assert nisa.get_nc_version() >= nisa.nc_version.gen4
        nisa.dma_copy(dst=out, src=a)
        return out
    generation(np.ones((2, 2), np.float32))
    """
    path = script(tmp_path, text)
    told = ("--target", "trn3")
    assert trnrt("run", *(told if before else ()), path, *(() if before else told)).code == 0
    assert "NEURON_PLATFORM_TARGET_OVERRIDE" not in os.environ
    outcome = trnrt("run", path)
    assert outcome.code == 1
    assert "assertion failed: assert nisa.get_nc_version()" in outcome.err


def test_a_kernel_error_shows_the_kernels_line(tmp_path: Path) -> None:
    path = script(tmp_path, "huge(np.ones((2, 2), np.float32))")
    outcome = trnrt("run", path)
    code = "x = nl.ndarray((128, 100000), dtype=nl.float32, buffer=nl.sbuf)"
    assert outcome.code == 1
    assert outcome.err.startswith("error: nl.ndarray: shape (128, 100000)")
    assert outcome.err.endswith(f"  at {path}:{line_of(path, code)} in huge\n    {code}\n")
    assert "Traceback" not in outcome.err


def test_a_wrong_call_shows_the_line_that_calls(tmp_path: Path) -> None:
    path = script(tmp_path, "add(1)")
    outcome = trnrt("run", path)
    assert outcome.code == 1 and f"{path}:{line_of(path, 'add(1)')}" in outcome.err and "add(1)" in outcome.err


def test_the_scripts_own_error_shows_its_traceback_and_none_of_ours(tmp_path: Path) -> None:
    text = """
    def broken():
        try:
            huge(np.ones((2, 2), np.float32))
        except Exception as error:
            raise ValueError("mine") from error
    broken()
    """
    path = script(tmp_path, text)
    outcome = trnrt("run", path)
    assert outcome.code == 1
    assert outcome.err.count(f'File "{path}"') == 4 and outcome.err.endswith("ValueError: mine\n")
    assert "site-packages" not in outcome.err and "runpy" not in outcome.err and "trnrt/nki" not in outcome.err


@pytest.mark.parametrize(
    ("statement", "code", "err"),
    [("sys.exit(7)", 7, ""), ("sys.exit()", 0, ""), ("sys.exit('no')", 1, "no\n"), ("raise SystemExit(0)", 0, "")],
)
def test_exit_codes_are_kept(tmp_path: Path, statement: str, code: int, err: str) -> None:
    outcome = trnrt("run", script(tmp_path, statement))
    assert (outcome.code, outcome.out, outcome.err) == (code, "", err)


@pytest.mark.parametrize("verb", ["run", "check"])
def test_a_file_that_is_none_is_a_wrong_request(tmp_path: Path, verb: str) -> None:
    for path in (tmp_path, tmp_path / "missing.py"):
        outcome = trnrt(verb, path)
        assert (outcome.code, outcome.out) == (2, "") and "there is no file" in outcome.err
    path = script(tmp_path, "")
    assert trnrt(verb, path, "--target", "trn9").code == 2


def test_a_syntax_error_when_run_is_the_scripts(tmp_path: Path) -> None:
    path = script(tmp_path, "def f(:\n", kernels="")
    outcome = trnrt("run", path)
    assert outcome.code == 1 and outcome.err.startswith(f'  File "{path}", line 1') and "SyntaxError" in outcome.err


def test_the_command_itself(tmp_path: Path) -> None:
    path = script(tmp_path, f"{ONES}print(add(ones, ones).sum()); sys.exit(3)")
    line = [sys.executable, "-m", "trnrt", "nki", "run", str(path)]
    result = subprocess.run(line, text=True, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (3, "16384.0\n", "")


# ---- check


def test_check_traces_what_the_script_calls_and_executes_nothing(tmp_path: Path) -> None:
    text = """
    out = add(ones, ones, times=3)
    assert out.shape == (128, 64) and out.dtype == np.float32 and not out.any()
    np.testing.assert_allclose(out, ones)
    add(ones, ones, times=3)
    nki.simulate(add)(ones.astype(np.float16), ones)
    print("done")
    """
    outcome = trnrt("check", script(tmp_path, ONES + dedent(text)), "--json")
    assert outcome.code == 0 and outcome.err == "done\n"
    assert outcome.document["findings"] == []
    assert outcome.document["calls"] == [
        {
            "kernel": "add",
            "arguments": arguments,
            "instructions": instructions,
            "sbuf_peak_bytes": size,
            "psum_peak_bytes": 0,
            "fits": True,
            "error": None,
        }
        for arguments, instructions, size in [
            ("f32[128,64], f32[128,64], times=3", 6, 512),
            ("f16[128,64], f32[128,64]", 4, 256),
        ]
    ]


def test_check_reports_what_the_compiler_and_the_hardware_refuse(tmp_path: Path) -> None:
    text = """
    @nki.jit
    def refused(a):
        tiles = [nl.arange(4) for _ in range(3)]
        return a
    for kernel in (refused, huge):
        try:
            kernel(ones)
        except Exception:
            pass
    """
    path = script(tmp_path, ONES + dedent(text))
    outcome = trnrt("check", path, "--nki", "0.6", "--json", "--json-out", tmp_path / "report.json")
    assert outcome.code == 1 and outcome.document["nki"] == "0.6"
    assert json.loads((tmp_path / "report.json").read_text()) == outcome.document
    found = [(f["file"], f["line"], f["rule"]) for f in outcome.document["findings"]]
    assert found == [
        (str(path), line_of(path, "100000"), "tile-bytes"),
        (str(path), line_of(path, "arange"), "comprehension"),
        (str(path), line_of(path, "arange"), "api-name"),
    ]
    assert all(f["message"] and f["instead"] and f["column"] >= 1 for f in outcome.document["findings"])
    refused, huge = outcome.document["calls"]
    assert "arange does not exist" in refused["error"] and refused["instructions"] is None
    assert "100000" in huge["error"]
    table = trnrt("check", "--nki", "0.6", path)
    assert table.code == 1 and "comprehension" in table.out and "FAIL" in table.out


def test_a_broken_rule_is_caught_as_an_assertion_or_ends_the_script(tmp_path: Path) -> None:
    caught = "try:\n    add(ones, ones, times=0)\nexcept AssertionError as error:\n    print('caught', error)\n"
    ran = trnrt("run", script(tmp_path, ONES + caught))
    assert ran.code == 0
    assert ran.out.startswith("caught kernel add: assertion failed: assert times > 0")
    ended = trnrt("run", script(tmp_path, f"{ONES}add(ones, ones, times=0)"))
    assert (ended.code, ended.out) == (1, "")
    assert "Traceback" not in ended.err


def test_a_condition_on_a_tile_names_line_and_way_out(tmp_path: Path) -> None:
    kernel = """
@nki.jit
def choose(a):
    tile = nl.load(a)
    if tile > 0:
        nisa.memset(dst=tile, value=0)
    return a


"""
    path = script(tmp_path, f"{ONES}choose(ones)", kernels=KERNELS + kernel)
    line = path.read_text(encoding="utf-8").split("if tile")[0].count("\n") + 1
    for verb in ("run", "check"):
        outcome = trnrt(verb, path)
        said = " ".join((outcome.out + outcome.err).split())
        assert outcome.code == 1
        assert "known on the device only" in said
        assert "nl.where" in said
        assert f":{line}" in said


def test_a_kernel_prints_values_when_it_runs_and_shapes_when_it_is_checked(tmp_path: Path) -> None:
    kernel = """
@nki.jit
def shown(a):
    tile = nl.load(a)
    print(f"tile {tile[0:1, 0:2]}")
    return a


"""
    path = script(tmp_path, f"{ONES}shown(ones)", kernels=KERNELS + kernel)
    assert trnrt("run", path).out == "tile [[1. 1.]]\n"
    assert "tile (1, 2) float32 sbuf view of" in trnrt("check", path).err


DOUBTFUL = """
@nki.jit
def half(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[:64], src=a[:64])
    return out


@nki.jit
def apart(a):
    out = nl.ndarray((32, 64), dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    for _ in range(2):
        nisa.scalar_tensor_tensor(dst=x[:32], data=x[:32], op0=nl.add, operand0=1.0, op1=nl.add, operand1=x[32:64])
    nisa.dma_copy(dst=out, src=x[:32])
    return out


@nki.jit
def roots(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=nl.sqrt(nl.load(a)))
    return out


"""


def test_check_counts_a_loops_body_once(tmp_path: Path) -> None:
    text = """
    @nki.jit
    def looped(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        def body(i):
            tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=a)
            nisa.dma_copy(dst=out, src=tile)
        nl.fori_loop(0, 3, body)
        return out
    looped(np.ones((2, 2), np.float32))
    """
    path = script(tmp_path, text)
    (call,) = trnrt("check", path, "--json").document["calls"]
    (profile,) = trnrt("profile", path, "--json").document["calls"]
    assert call["instructions"] == profile["instructions_compiled"] == 2


def test_check_finds_what_nothing_wrote(tmp_path: Path) -> None:
    path = script(tmp_path, f"{DOUBTFUL}{ONES}half(ones)\nhalf(ones)\n")
    outcome = trnrt("check", path, "--json")
    assert outcome.code == 1
    (finding,) = outcome.document["findings"]
    assert finding["rule"] == "unwritten-memory" and finding["file"] == str(path)
    assert path.read_text().splitlines()[finding["line"] - 1].startswith("    out = nl.ndarray(a.shape")
    assert "nothing has written 4096 of 8192 elements, indices [64 to 127, 0 to 63]" in finding["message"]
    assert [call["error"] for call in outcome.document["calls"]] == [None]
    text = trnrt("check", path).out
    assert "unwritten-memory" in text and "traced" in text and "pass" not in text
    assert not check(path).failures  # the call could be traced


def test_check_warns_of_what_may_be_refused(tmp_path: Path) -> None:
    path = script(tmp_path, f"{DOUBTFUL}{ONES}apart(ones)\n")
    outcome = trnrt("check", path, "--json")
    assert outcome.code == 0 and outcome.document["findings"] == []
    (warning,) = outcome.document["warnings"]
    assert (warning["rule"], warning["line"]) == ("other-start-partition", line_of(path, "scalar_tensor_tensor"))
    assert "data starts at partition 0, operand1 at 32" in warning["message"]
    table = trnrt("check", path)
    assert table.code == 0 and "1 warning" in table.out and "other-start-partition" in table.out
    with pytest.warns(KernelWarning, match="data starts at partition 0, operand1 at 32"):
        assert trnrt("run", path).code == 0


def test_run_shows_what_the_simulator_warns_of(tmp_path: Path) -> None:
    path = script(tmp_path, f"{DOUBTFUL}{ONES}print(roots(ones - 1)[0, 0])\n")
    command = [sys.executable, "-m", "trnrt", "nki", "run", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "0.0\n"
    place = f"{path}:{line_of(path, 'nl.sqrt')}"
    assert f"{place}: KernelWarning: activation: nl.sqrt of 0 and 8191 more of 8192 values" in ran.stderr
    assert "its valid input range is 2**-116 to 2**118" in ran.stderr and f"at {place} in roots" in ran.stderr


def test_check_with_calls_imports_the_module(tmp_path: Path) -> None:
    path = script(tmp_path, f"{ONES}add(ones, ones)\nif __name__ == '__main__':\n    sys.exit(5)\n")
    calls = ("--call", "add(f32[64,32], bf16[64,32], 2, name='x')", "--call", "add(f32[129,1], f32[129,1])")
    document = trnrt("check", path, *calls, "--target", "trn1", "--json").document
    assert document["target"] == "trn1" and document["file"] == str(path)
    first, second = document["calls"]
    assert (first["arguments"], first["instructions"]) == ("f32[64,32], bf16[64,32], 2, name='x'", 5)
    assert "129 partitions" in second["error"]
    (finding,) = document["findings"]
    assert finding["rule"] == "tile-partitions" and "at most 128" in finding["instead"]
    assert trnrt("check", path, *calls[:2]).code == 0


def test_kernels_on_two_cores(tmp_path: Path) -> None:
    path = script(tmp_path, f"{ONES}add[2](ones, ones)\nnki.simulate(add)[2](ones, ones)\n")
    report = check(path)
    assert [(c.kernel, c.instructions, c.sbuf_peak_bytes) for c in report.calls] == [("add[2]", 8, 512)]
    assert report.clean and check(path, ["add[2](f32[128,64], f32[128,64])"]).calls == report.calls
    assert trnrt("check", path, "--call", "add[3](f32[1,1], f32[1,1])").code == 2


def test_a_wrong_call_in_check_is_found_where_it_is_made(tmp_path: Path) -> None:
    path = script(tmp_path, f"{ONES}add(ones)")
    (finding,) = check(path).findings
    assert finding.line == line_of(path, "add(ones)") and "missing a required argument" in finding.message
    (finding,) = check(path, ["add(f32[1,1])"]).findings
    assert finding.line == line_of(path, "def add") - 1  # its decorator's


def test_kernels_of_another_file_are_checked_with_their_callers(tmp_path: Path) -> None:
    script(tmp_path, "").rename(tmp_path / "other_kernels.py")
    with (tmp_path / "other_kernels.py").open("a") as file:
        file.write("@nki.jit\ndef named(a):\n    f = lambda x: x\n    return a\n")
    path = script(
        tmp_path, f"import numpy as np\nimport other_kernels\n{ONES}other_kernels.add(ones, ones)\n", kernels=""
    )
    (finding,) = check(path, nki="0.6").findings
    assert (finding.file, finding.rule) == (str(tmp_path / "other_kernels.py"), "lambda")
    sys.modules.pop("other_kernels")
    assert check(path, nki="0.7").findings == []
    sys.modules.pop("other_kernels")


def test_a_syntax_error_is_a_finding(tmp_path: Path) -> None:
    path = script(tmp_path, "x = 1\ndef f(:\n", kernels="")
    document = trnrt("check", path, "--json").document
    assert [(f["line"], f["rule"]) for f in document["findings"]] == [(2, "syntax")]
    assert trnrt("check", path).code == 1


@pytest.mark.parametrize(
    ("text", "findings", "notes"),
    [
        ("1 / 0", ["script"], ["the script called no kernel"]),
        (f"{ONES}assert add(ones, ones).any(), 'zeros'", [], ["the script stopped at line"]),
        (f"{ONES}add(ones, ones)\nsys.exit(1)", [], ["the script stopped at line"]),
        (f"{ONES}add(ones, ones)\nsys.exit(0)", [], []),
        ("", [], ["the script called no kernel"]),
    ],
)
def test_scripts_that_stop(tmp_path: Path, text: str, findings: list[str], notes: list[str]) -> None:
    report = check(script(tmp_path, text))
    assert [finding.rule for finding in report.findings] == findings
    assert len(report.notes) == len(notes)
    assert all(told.startswith(start) for told, start in zip(report.notes, notes, strict=True))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("nothing(f32[1,1])", "has no kernel 'nothing'"),
        ("add", "it is not a call"),
        ("add(", "can't read"),
        ("add(f33[1])", "f33 is not a dtype"),
        ("add(f32[n])", "n is not a size"),
        ("add(**{})", "expands a dictionary"),
        ("add(print(1))", "neither a tensor nor a constant"),
        ("add(*x)", "neither a tensor nor a constant"),
        ("a.b(1)", "not a kernel's name"),
        ("add(-True)", "not a number"),
        ("add(b'x')", "neither a tensor nor a constant"),
        ("add(" + "(" * 400 + ")" * 400 + ")", "can't read"),
    ],
)
def test_calls_that_cant_be_made(tmp_path: Path, call: str, told: str) -> None:
    outcome = trnrt("check", script(tmp_path, ""), "--call", call)
    assert (outcome.code, outcome.out) == (2, "") and told in outcome.err


def test_calls_are_read_as_they_are_shown() -> None:
    text = "k(f32[128,512], bf16[4], u8[1,2,3], 4, -1.5, 'a b', True, None, (1, (2,), ()), f8e4m3, x=f32[2], y=False)"
    call = parse_call(text)
    assert (call.kernel, call.cores) == ("k", None)
    assert parse_call("k[2]()").cores == 2
    assert call.args[:5] == (Spec((128, 512), float32), Spec((4,), bfloat16), Spec((1, 2, 3), "uint8"), 4, -1.5)
    assert call.args[5:9] == ("a b", True, None, (1, (2,), ()))
    assert call.kwargs == {"x": Spec((2,), float32), "y": False}
    assert f"k({describe(call.args, call.kwargs)})" == text


def test_every_dtype_can_be_named() -> None:
    for name in ["f32", "bf16", "f16", "tf32", "f8e4m3", "f8e5m2", "i8", "i16", "i32", "u8", "u16", "u32", "bool"]:
        assert describe(parse_call(f"k({name}[2,3])").args, {}) == f"{name}[2,3]"
    with pytest.raises(OptionError, match="f64 is not a dtype"):
        parse_call("k(f64[1])")
