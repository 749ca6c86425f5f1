"""What the port can't translate is left as it was, and marked; comments stay; new files are left alone."""

from __future__ import annotations

import io
import sys
import tokenize

import pytest
from portable_kernels import CASES, HEAD, Case, port_case
from portable_lines import KERNEL, LEFT

from trnrt.nki.errors import OptionError
from trnrt.nki.porting import port_source
from trnrt.nki.porting.marks import PREFIX


@pytest.mark.parametrize("line", LEFT)
def test_left_and_marked(line: str) -> None:
    ported = port_source(KERNEL.format(line=line), "old.py")
    (mark,) = ported.marks
    reason, instead = LEFT[line]
    assert reason in mark.reason
    assert instead in mark.instead
    lines = [text.strip() for text in ported.text.splitlines()]
    at = lines.index(line)
    assert lines[at - 1] == mark.comment == f"{PREFIX}{mark.reason}; {mark.instead}"
    old = KERNEL.format(line=line).splitlines()
    assert old[mark.line - 1].strip() == line


def test_indexes_of_a_marked_statement_stay() -> None:
    ported = port_source(KERNEL.format(line="x = nl.load(a[i_p, i_f // 2])"), "old.py").text
    assert "i_p, i_f = nl.mgrid[0:128, 0:64]" in ported
    assert "nl.mgrid" not in port_source(KERNEL.format(line="pass"), "old.py").text


HOST = """
import numpy as np
from neuronxcc import nki
import neuronxcc.nki.language as nl
from neuronxcc.nki import baremetal, benchmark


@nki.baremetal
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(a))  # a copy
    return out


def main():
    x = np.ones((4, 4), np.float32)
    print(nki.simulate_kernel(kernel, x))
    print(baremetal(kernel)(x))
    {line}
"""


def test_calls_of_the_host() -> None:
    ported = port_source(HOST.format(line="pass"), "old.py")
    assert not ported.marks
    assert "nki.simulate(kernel)(x)" in ported.text
    assert "print(kernel(x))" in ported.text
    assert "@nki.jit" in ported.text
    assert "baremetal" not in ported.text
    assert "benchmark" not in ported.text
    assert "import nki.isa as nisa" in ported.text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("benchmark(warmup=1)(kernel)(x)", "nki.benchmark"),
        ("nki.profile(kernel)(x)", "nki.profile"),
        ("kernel[4, 2](x)", "grid"),
    ],
)
def test_calls_of_the_host_that_are_left(line: str, reason: str) -> None:
    ported = port_source(HOST.format(line=line), "old.py")
    assert reason in ported.marks[0].reason
    assert line in ported.text


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sorted(token.string for token in tokens if token.type == tokenize.COMMENT)


COMMENTS = (
    HEAD
    + """
# before the kernel
@nki.compiler.skip_middle_end_transformations  # an old switch
@nki.jit
def kernel(a):  # of one tensor
    # before the output
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)  # in HBM
    # before the indexes
    i_p = nl.arange(128)[:, None]  # rows
    i_f = nl.arange(64)[None, :]
    x = nl.load(
        a[
            i_p,  # the rows
            i_f,  # the columns
        ]
    )  # a load
    if True:
        # before the store
        nl.store(out[i_p, i_f], value=x)
        # the end of the branch
    # before the return
    return out  # to the host
    # the end
"""
)


def test_comments_stay() -> None:
    ported = port_source(COMMENTS, "old.py").text
    assert _comments(ported) == _comments(COMMENTS)
    assert ported.index("# the rows") < ported.index("dma_copy")
    assert "# before the output\n    out = nl.ndarray(a.shape" in ported


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_ported_file_is_new(case: Case) -> None:
    text = port_case(case).text
    again = port_source(text, "new.py")
    assert again.is_new
    assert again.text == text


def test_a_new_file_is_unchanged() -> None:
    text = "import nki\n\n@nki.jit\ndef kernel( a ):\n    return a\n"
    ported = port_source(text, "new.py")
    assert ported.is_new
    assert ported.text == text


def test_what_is_not_python_is_named_with_its_place() -> None:
    with pytest.raises(OptionError, match=r"old\.py:2: .*never closed"):
        port_source("import neuronxcc.nki as nki\nx = (\n", "old.py")


def test_libcst_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(OptionError, match="libcst") as raised:
        port_source(CASES[0].text, "old.py")
    assert "trnrt[port]" in str(raised.value.hint)


def test_a_module_that_is_not_public_is_marked() -> None:
    ported = port_source("from neuronxcc.nki._private_kernels.mlp import mlp\nmlp()\n", "old.py")
    assert "not part of today's NKI" in ported.marks[0].reason
    assert "from neuronxcc.nki._private_kernels.mlp import mlp" in ported.text
