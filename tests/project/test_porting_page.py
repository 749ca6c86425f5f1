"""``docs/porting.md`` shows what ``trnrt nki port`` prints: ``UPDATE_DOCS=1`` writes those parts anew."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
from nki_scripts import trnrt
from portable_lines import LEFT, port_line

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"
CALL = "scaled_softmax(f32[300,64], 0.5)"

# Lines of a kernel, for the table of translations.
LINES = (
    "t = nl.load(a[i_p, i_f])",
    "nl.store(out[i_p, i_f], value=x)",
    "t = nl.load(a[i_p, i_f], mask=(i_p < rows))",
    "t = nisa.tensor_tensor(x, y, op=nl.add)",
    "t = nisa.activation(op=nl.exp, data=x, scale=2.0)",
    "t = x * 2 + y",
    "t = x - column",
    "x += y",
    "t = x / 4",
    "t = nl.divide(x, y)",
    "blocks = nl.ndarray((4, nl.par_dim(128), 64), dtype=a.dtype, buffer=nl.sbuf)\nblocks[2, i_p, i_f] = nl.copy(x)",
    "total = nl.zeros((64, 64), dtype=nl.float32, buffer=nl.psum)\ntotal += nisa.nc_matmul(x, y)",
    "total = nl.matmul(x, y, transpose_x=True)",
    "t = nl.copy(x[i_p, 2 * nl.arange(32)[None, :]])",
    "t = nisa.affine_select(pred=(i_p >= i_f), on_true_tile=x, on_false_value=0)",
    "t = nl.ndarray((nl.par_dim(128), 64), dtype=a.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=0))",
)


def example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command on the page's example, and its output."""
    monkeypatch.chdir(folder)
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert source is not None
    (folder / "scores.py").write_text(source.group(1), encoding="utf-8")
    outcome = trnrt("port", "scores.py", "--diff", "--call", CALL)
    assert outcome.code == 1  # nki.benchmark is left
    text = f"```diff\n{outcome.out}```\n\n```\n{outcome.err}```"
    return f"    trnrt nki port scores.py --diff --call '{CALL}'\n\n{text}"


def translations(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rows = ["| old | today |", "|---|---|"]
    for line in LINES:
        ported, marks = port_line(line)
        assert not marks
        rows.append(f"| {_cell(line)} | {_cell(ported)} |")
    return "\n".join(rows)


def left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rows = ["| old | why | what to write |", "|---|---|---|"]
    for line in LEFT:
        _, (mark,) = port_line(line)
        rows.append(f"| {_cell(line)} | {mark.reason} | {mark.instead} |")
    return "\n".join(rows)


def _cell(code: str) -> str:
    """Code for a cell: a statement a line."""
    found, lines = [], code.split("\n")
    for node in ast.parse(code).body:
        single = node.lineno == node.end_lineno
        found.append(lines[node.lineno - 1] if single else ast.unparse(node))
    return "<br>".join(f"`{line}`".replace("|", "\\|") for line in found)


@pytest.mark.parametrize("part", [example, translations, left], ids=lambda part: part.__name__)
def test_the_page_shows_what_the_verb_does(part: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = part.__name__  # type: ignore[attr-defined]
    made = f"<!-- {name} -->\n{part(tmp_path, monkeypatch)}\n<!-- end of {name} -->"  # type: ignore[operator]
    text = PAGE.read_text(encoding="utf-8")
    pattern = rf"<!-- {name} -->\n.*?<!-- end of {name} -->"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(re.sub(pattern, lambda _: made, text, flags=re.DOTALL), encoding="utf-8")
    found = re.search(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found.group() == made
