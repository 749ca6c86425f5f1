"""Untranslated code is left as it was, and marked; comments stay; new files are left alone."""

from __future__ import annotations

import io
import sys
import tokenize

import pytest
from portable_flow import FLOW
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


CHANGES = {
    "an index that changes in the loop": (
        """
    for i in nl.static_range(2):
        x = nl.load(a[i_p, i_f])
        i_p = i_p + 128
""",
        "x = nl.load(a[i_p, i_f])",
        "i_p changes in the loop",
    ),
    "a name of an index": (
        """
    base = 0
    rows = base + nl.arange(128)[:, None]
    base += 128
    x = nl.load(a[rows, i_f])
""",
        "x = nl.load(a[rows, i_f])",
        "rows was made of base, which has changed",
    ),
    "a name of a mask": (
        """
    n = 100
    mask = i_p < n
    n = 3
    x = nl.load(a[i_p, i_f], mask=mask)
""",
        "x = nl.load(a[i_p, i_f], mask=mask)",
        "mask was made of n, which has changed",
    ),
    "an index of a branch": (
        """
    if a.shape[0] > 128:
        rows = 128 + nl.arange(128)[:, None]
    else:
        rows = nl.arange(128)[:, None]
    x = nl.load(a[rows, i_f])
""",
        "x = nl.load(a[rows, i_f])",
        "rows is not the same after each branch",
    ),
    "a mask as a value": (
        """
    mask = i_p < 100
    x = nl.where(mask, x, 0.0)
""",
        "x = nl.where(mask, x, 0.0)",
        "mask, a mask, is used outside of mask=",
    ),
    "a return in a loop that was traced once": (
        """
    for i in nl.affine_range(2):
        for j in range(3):
            x = nl.load(a[i_p, i_f])
            return x
""",
        "return x",
        "a return leaves a loop that AWS traced once",
    ),
    "a break": (
        """
    for i in nl.sequential_range(2):
        x = nl.load(a[i_p, i_f])
        break
""",
        "break",
        "a break leaves a loop that AWS traced once",
    ),
    "min is a variable": (
        """
    rows = a.shape[0]
    min = nl.min(x, axis=1)
    x = nl.load(a[i_p, i_f], mask=i_p < rows)
""",
        "x = nl.load(a[i_p, i_f], mask=i_p < rows)",
        "a variable of the function is called min",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_names_that_change_are_marked(name: str) -> None:
    """Slices are written with the names of an index: they must still hold the same numbers."""
    source, statement, reason = CHANGES[name]
    ported = port_source(KERNEL.replace("    {line}\n", source), "old.py")
    assert reason in ported.marks[0].reason
    lines = [text.strip() for text in ported.text.splitlines()]
    assert lines[lines.index(statement, 12) - 1] == ported.marks[0].comment


@pytest.mark.parametrize("loop", ["for i in nl.static_range(2)", "while True"])
def test_loops_of_python_may_be_left(loop: str) -> None:
    source = (
        f"    for j in nl.affine_range(2):\n        {loop}:\n            x = nl.load(a[i_p, i_f])\n            break\n"
    )
    assert not port_source(KERNEL.replace("    {line}\n", source), "old.py").marks


def test_an_index_of_an_earlier_loop_or_branch_is_no_mark() -> None:
    source = """
    for k in nl.affine_range(2):
        rows = k * 128 + nl.arange(128)[:, None]
        x = nl.load(a[rows, i_f])
    for k in nl.affine_range(2):
        rows = k * 128 + nl.arange(128)[:, None]
        if a.shape[0] < 128:
            raise ValueError(a.shape)
        x = nl.load(b[rows, i_f])
"""
    ported = port_source(KERNEL.replace("    {line}\n", source), "old.py")
    assert not ported.marks
    assert "src=b[k * 128:(k + 1) * 128, 0:64]" in ported.text


def test_what_the_indexes_of_a_marked_statement_are_made_of_stays() -> None:
    source = """
    rows, columns = nl.arange(128)[:, None], nl.arange(64)[None, :]
    for k in nl.affine_range(2):
        row = k * 128 + rows
        x = nl.load(a[row // 2, columns])
"""
    ported = port_source(KERNEL.replace("    {line}\n", source), "old.py")
    assert "rows = nl.arange(128)[:, None]\n    columns = nl.arange(64)[None, :]\n" in ported.text
    assert "row = k * 128 + rows" in ported.text


def test_inner_functions_read_the_indexes_of_the_outer() -> None:
    source = """
    def load(t, k):
        return nl.load(t[k, i_p, i_f])

    x = load(a, 0)
"""
    ported = port_source(KERNEL.replace("    {line}\n", source), "old.py")
    assert not ported.marks
    assert "src=t[k, 0:128, 0:64]" in ported.text


def test_comments_of_imports_stay_with_them() -> None:
    source = "import neuronxcc.nki as nki  # the compiler\nimport neuronxcc.nki.language as nl\n\nnki, nl\n"
    ported = port_source(source, "old.py").text
    assert ported == "import nki  # the compiler\nimport nki.language as nl\n\nnki, nl\n"


def test_methods_compute_with_tiles() -> None:
    source = HEAD + (
        "class Lab:\n"
        "    # of one tile\n"
        "    def load(self, a): return nl.load(a)\n\n"
        "    @nki.jit(mode='simulation')  # simulated\n"
        "    def kernel(self, a):\n"
        "        return self.load(a) * 2\n"
    )
    ported = port_source(source, "old.py")
    assert not ported.marks
    assert "nl.multiply(load_tile, 2)" in ported.text
    assert _comments(ported.text) == _comments(source)


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
    for i in nl.affine_range(  # blocks
        1  # only one
    ):  # a loop
        pass
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


@pytest.mark.parametrize("case", [*CASES, *FLOW], ids=lambda case: case.name)
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
    assert ported.marks[0].line == 1
    assert "from neuronxcc.nki._private_kernels.mlp import mlp" in ported.text
    assert port_source(ported.text, "new.py").is_new


def test_a_star_import_is_marked() -> None:
    ported = port_source("import neuronxcc.nki as nki\nfrom neuronxcc.nki.language import *\n", "old.py")
    assert "import * hides" in ported.marks[0].reason
    assert ported.marks[0].line == 2
    assert "from neuronxcc.nki.language import *" in ported.text


def test_an_index_outside_of_a_kernel_is_marked() -> None:
    source = KERNEL.format(line="x = nl.load(a[i_q, i_f])").replace(
        "@nki.jit", "i_q = nl.arange(128)[:, None]\n@nki.jit"
    )
    made, used = port_source(source, "old.py").marks
    assert made.reason == "an index is made outside of a kernel"
    assert used.reason == "i_q is an index that is made outside of the kernel"
    own = source.replace("    i_p, i_f", "    i_q = nl.arange(128)[:, None]\n    i_p, i_f")
    assert len(port_source(own, "old.py").marks) == 1


def test_a_call_after_a_colon_is_marked() -> None:
    ported = port_source(HOST.format(line="") + "if main: nki.benchmark(kernel)(main)\n", "old.py")
    assert "nki.benchmark" in ported.marks[0].reason
