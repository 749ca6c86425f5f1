"""The benchmarks' command lines: each is listed, documented, and outside the package."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_sections import command_section

from benchmarks import ROOT
from benchmarks.__main__ import lines
from trnrt.cli import app

NAMES = [path.parent.name for path in sorted((ROOT / "benchmarks").glob("*/__main__.py"))]
TYPED = [
    "courses",
    "kernels",
    "labs",
    "models",
    "networks",
    "pictures",
    "quantised",
    "recurrent",
    "reports",
    "search",
    "serve",
    "simulator",
    "size",
    "starting",
    "timing",
    "zoo",
]
"""Those with the flags of the other verbs; the rest have argparse's."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def benchmarks_page() -> str:
    """docs/benchmarks.md: every benchmark with its flags, from the commands themselves."""
    text = [
        "# Benchmarks",
        "",
        "Generated from the commands. They are for developers and not in the wheel: run them in a checkout. They exit",
        "with 0 for success, 1 if a bar is missed, and 2 if the request was wrong, as the verbs in `docs/cli.md` do.",
        "",
        "<!-- not run: takes minutes -->",
        "",
        *(f"    {line}" for line in lines()),
        "",
    ]
    for name in TYPED:
        command = import_module(f"benchmarks.{name}.__main__").app
        text += command_section(f"python -m benchmarks.{name}", command)
    return "\n".join(text)


def test_the_page_is_generated() -> None:
    page = ROOT / "docs" / "benchmarks.md"
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(benchmarks_page(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == benchmarks_page()


def test_every_benchmark_is_listed() -> None:
    found = run("benchmarks")
    assert found.returncode == 0
    assert [line.split()[2] for line in found.stdout.splitlines() if line.startswith("python")] == [
        f"benchmarks.{name}" for name in NAMES
    ]
    assert set(TYPED) < set(NAMES)
    assert run("benchmarks", "timing").returncode == 2


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_run(name: str) -> None:
    found = run(f"benchmarks.{name}", "--help")
    assert found.returncode == 0, found.stderr
    assert f"python -m benchmarks.{name}" in found.stdout


@pytest.mark.parametrize("script", ["baseline/run.py", "nki_library/run.py"])
def test_scripts_can_be_run_from_anywhere(script: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--help"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((), "<name>"), (("timing", "--fit"), "timing"), (("--help",), "<name>"), (("models", "--only", "a"), "models")],
)
def test_the_old_verb_names_the_new_command(arguments: tuple[str, ...], name: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert f"`python -m benchmarks.{name}` in a checkout" in result.output


@pytest.mark.parametrize("flags", [["--target", "trn9"], ["--only", "lenet"], ["--no-such-flag"]])
def test_a_wrong_request_exits_with_2(flags: list[str]) -> None:
    from benchmarks.models.__main__ import app as models

    result = CliRunner().invoke(models, flags)
    assert result.exit_code == 2
    assert "rror: " in result.output and "Traceback" not in result.output
