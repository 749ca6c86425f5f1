"""The seam to AWS's package: which `nki` a kernel gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASK = """
import json
import trnrt.nki as seam
print(json.dumps([seam.USES_AWS, seam.nki.__name__, seam.nl.__name__, seam.nisa.__name__]))
"""
OURS = [False, "trnrt.nki.sim", "trnrt.nki.sim.language", "trnrt.nki.sim.isa"]
AWS = [True, "nki", "nki.language", "nki.isa"]


def seam(folder: Path, choice: str | None = None) -> list[object]:
    """What a fresh Python gets that finds ``folder`` first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    environment.pop("TRNRT_NKI", None)
    if choice is not None:
        environment["TRNRT_NKI"] = choice
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    answer: list[object] = json.loads(done.stdout)
    return answer


def package(folder: Path, **files: str) -> Path:
    """A folder with a package `nki` of these files."""
    (folder / "nki").mkdir()
    for name, text in {"__init__": "", **files}.items():
        (folder / "nki" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_without_aws_s_package_it_is_the_simulator(tmp_path: Path) -> None:
    assert seam(tmp_path) == OURS


def test_aws_s_package_is_used_where_it_is_installed(tmp_path: Path) -> None:
    assert seam(package(tmp_path, language="", isa="")) == AWS


def test_the_simulator_can_be_asked_for(tmp_path: Path) -> None:
    """And nothing of AWS's package is imported then."""
    folder = package(tmp_path, language="raise RuntimeError", isa="raise RuntimeError")
    assert seam(folder, "simulator") == OURS


@pytest.mark.parametrize(
    "placeholder",
    [
        {},
        {"__init__": "raise RuntimeError('install it from the other index')"},
        {"__init__": "import warnings\nwarnings.warn('placeholder', stacklevel=1)"},
        {"language": ""},
    ],
    ids=["empty", "raises", "warns", "half"],
)
def test_the_placeholder_of_pypi_is_not_aws_s_package(placeholder: dict[str, str], tmp_path: Path) -> None:
    assert seam(package(tmp_path, **placeholder)) == OURS


def test_a_module_of_that_name_is_not_aws_s_package(tmp_path: Path) -> None:
    (tmp_path / "nki.py").write_text("", encoding="utf-8")
    assert seam(tmp_path) == OURS
