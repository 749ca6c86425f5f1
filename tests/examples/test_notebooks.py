"""The notebooks of ``examples/notebooks`` run, and print what is stored in them.

``UPDATE_DOCS=1 pytest tests/examples/test_notebooks.py`` stores the outputs of a fresh run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from notebooks import executed, write

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
MOST_BYTES = 60_000


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_model", "kernel_timeline"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_its_outputs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = executed(path)
    if os.environ.get("UPDATE_DOCS"):
        write(path, notebook)
    assert path.stat().st_size < MOST_BYTES
    assert notebook == json.loads(path.read_text(encoding="utf-8"))
    assert any(cell.get("outputs") for cell in notebook["cells"])
