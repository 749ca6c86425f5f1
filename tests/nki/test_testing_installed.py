"""The pytest plugin beside other tests: it stays out of their way, installed or not, and runs on several workers."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest
from plugin_runs import HEAD, PLUGIN, Run

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    return Run(pytester)


def test_other_tests_have_no_nki(run: Run) -> None:
    """The simulator is there for the files that use the plugin, while they are imported and run."""
    (run.pytester.path / "test_other.py").write_text(
        "import pytest\n\ndef test_none():\n    with pytest.raises(ImportError):\n        import nki\n"
    )
    text = "def test(nki_simulate):\n    import nki.compiler\n    nki_simulate(double, A).equals(2 * A)\n"
    run(text).assert_outcomes(passed=2)
    run(text, "test_other.py", "test_it.py").assert_outcomes(passed=2)
    assert "nki" not in sys.modules


def test_conftest_files_and_all_tests_may_have_it(run: Run) -> None:
    run.pytester.makeconftest("import nki.language as nl\n")
    (run.pytester.path / "test_other.py").write_text("def test_there():\n    import nki.isa\n")
    assert run("", "test_other.py").ret == pytest.ExitCode.USAGE_ERROR
    run.pytester.makeini("[pytest]\nnki_install = true\n")
    run("", "test_other.py").assert_outcomes(passed=1)
    assert "nki" not in sys.modules


def environment(site: Path) -> dict[str, str]:
    """The environment of a Python that finds this trnrt and the distributions in ``site``."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}


@pytest.fixture
def installed(pytester: pytest.Pytester) -> dict[str, str]:
    """trnrt as a wheel installs it: its files, and the plugin's entry point in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    plugins = project["entry-points"]["pytest11"]
    folder = pytester.path / "site" / "trnrt-9.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: trnrt\nVersion: 9\n")
    points = "".join(f"{name} = {module}\n" for name, module in plugins.items())
    (folder / "entry_points.txt").write_text(f"[pytest11]\n{points}")
    (folder / "RECORD").write_text("trnrt/__init__.py,,\ntrnrt/nki/__init__.py,,\ntrnrt-9.dist-info/RECORD,,\n")
    return environment(folder.parent)


def pytest_in(folder: Path, environment: dict[str, str], *options: str) -> str:
    """The output of pytest in a process of its own."""
    slow = ("cacheprovider", "schemathesis", "hypothesispytest", "anyio")  # of this environment, and slow to import
    blocked = [option for name in slow for option in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", *blocked, *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120).stdout


def test_an_installed_trnrt_brings_the_plugin_and_leaves_its_own_asserts_alone(
    run: Run, installed: dict[str, str]
) -> None:
    text = """
    def test_found(nki_simulate, request):
        nki_simulate(double, A).equals(2 * A)
        assert request.config.pluginmanager.get_plugin("trnrt.nki.testing.plugin")
        import trnrt.kernels.gather
        assert type(trnrt.kernels.gather.__loader__).__name__ == "SourceFileLoader"
    """
    run.pytester.makepyfile(test_it=HEAD + dedent(text))
    assert "1 passed" in pytest_in(run.pytester.path, installed)
    assert "1 passed" in pytest_in(run.pytester.path, installed, "-p", PLUGIN)  # twice is once


def test_it_imports_nothing_until_a_test_needs_it(run: Run, installed: dict[str, str]) -> None:
    text = "import sys\n\ndef test():\n    assert {name for name in sys.modules if name.startswith('trnrt')} == {}\n"
    run.pytester.makepyfile(
        test_it=text.replace("{}\n", f"{ {'trnrt', 'trnrt.version', 'trnrt.nki', 'trnrt.nki.testing', PLUGIN} }\n")
    )
    out = pytest_in(run.pytester.path, installed)
    assert "1 passed" in out, out


def test_it_runs_on_several_workers(run: Run, installed: dict[str, str]) -> None:
    text = """
    @pytest.mark.parametrize("columns", range(1, 5))
    def test_columns(nki_simulate, columns):
        nki_simulate(double, B[:, :columns]).equals(np.multiply(B[:, :columns], 2))

    @pytest.mark.nki_budget(us=1)
    def test_slow(nki_simulate):
        nki_simulate(double, A)
    """
    run.pytester.makepyfile(test_it=HEAD + dedent(text))
    out = pytest_in(run.pytester.path, installed, "-n", "2", "--nki-target", "trn1,trn2", "--nki", "0.6")
    assert "2 failed, 8 passed" in out and "over the budget of 1 us" in out, out


def test_the_entry_point_has_the_modules_own_name() -> None:
    """So that ``-p`` with the module's name, and an installed trnrt, register it once."""
    found = [point for point in metadata.entry_points(group="pytest11") if point.value == PLUGIN]
    assert all(point.name == PLUGIN for point in found)
