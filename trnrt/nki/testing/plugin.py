"""The pytest plugin: options, fixtures and a mark for tests of kernels. ``docs/testing-kernels.md`` describes them.

pytest imports this module in every run where trnrt is installed. So it imports nothing heavy at its top, and does
nothing to tests that don't name its fixtures or its mark.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trnrt.nki.level import Level
    from trnrt.nki.testing.running import Simulation

_NAMES = (b"nki_simulate", b"nki_target", b"nki_budget")
_MARK = "nki_budget(us, upper=False): fail if a kernel call of the test is predicted to take more microseconds"
_INSTALLED = pytest.StashKey[AbstractContextManager[bool]]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """The options, and the same as settings of the configuration file."""
    group = parser.getgroup("nki", "kernels on trnrt's simulator")
    targets = "targets to run kernels on, as trn1,trn2; repeatable. A test runs once for each"
    group.addoption("--nki-target", action="append", metavar="TARGETS", help=targets)
    level = "release of NKI that kernels are traced by and `import nki` gives: 0.6 or 0.7"
    group.addoption("--nki", dest="nki_level", metavar="RELEASE", help=level)
    parser.addini("nki_target", targets, type="args", default=[])
    parser.addini("nki_level", level, default="")
    always = "make `import nki` give the simulator in the whole session, conftest files included"
    parser.addini("nki_install", always, type="bool", default=False)
    # Of a package with a plugin, pytest rewrites the asserts of all modules. Those of kernels are part of the kernel.
    getattr(pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("trnrt")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """With ``nki_install``, give the simulator to conftest files, too."""
    if early_config.getini("nki_install"):
        from trnrt.nki.installing import install_briefly

        installed = install_briefly(_level(early_config), legacy=True)
        installed.__enter__()
        early_config.stash[_INSTALLED] = installed


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and check what the command line names."""
    config.addinivalue_line("markers", _MARK)
    if config.getoption("--nki-target") or config.getoption("nki_level"):
        _targets(config)
        _level(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Take back what ``nki_install`` installed."""
    if _INSTALLED in config.stash:
        config.stash[_INSTALLED].__exit__(None, None, None)
        del config.stash[_INSTALLED]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A test file that names our fixtures or mark may import ``nki`` or ``neuronxcc.nki``, as may what it imports."""
    with _simulator(collector.config) if _is_ours(collector) else nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """So may its tests and their fixtures."""
    with _simulator(item.config) if _is_ours(item.getparent(pytest.Module)) else nullcontext():
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of kernels once for each target that is asked for."""
    budgeted = metafunc.definition.get_closest_marker("nki_budget") is not None
    if not budgeted and "nki_target" not in metafunc.fixturenames:
        return
    targets = _targets(metafunc.config)
    if targets and not _chooses_target(metafunc):
        if "nki_target" not in metafunc.fixturenames:
            metafunc.fixturenames.append("nki_target")
        metafunc.parametrize("nki_target", targets, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test whose kernels are predicted to take more than its ``nki_budget``."""
    mark = item.get_closest_marker("nki_budget")
    if mark is None:
        return (yield)
    from trnrt.nki.testing.budgets import read_budget, record_calls

    try:
        budget = read_budget(mark.args, mark.kwargs)
    except ValueError as error:
        pytest.fail(f"{item.nodeid}: {error}", pytrace=False)
    with record_calls() as calls:
        result = yield
    over = calls.complaints(budget)
    if over:
        pytest.fail("\n".join(over), pytrace=False)
    return result


@pytest.fixture
def nki_target(request: pytest.FixtureRequest) -> Iterator[str]:
    """The simulated target of this test; kernels that are called directly run on it, too."""
    from trnrt.nki.machine.targets import get_target, portable_name
    from trnrt.nki.sim.kernel import TARGET_VARIABLE, default_target

    target = getattr(request, "param", None) or default_target()
    get_target(target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TARGET_VARIABLE, portable_name(target))
        yield target


@pytest.fixture
def nki_simulate(nki_target: str, pytestconfig: pytest.Config) -> Simulation:
    """Run a kernel on the simulator: ``nki_simulate(kernel, a, b).equals(a + b)``."""
    from trnrt.nki.level import default_level
    from trnrt.nki.testing.running import Simulation

    return Simulation(nki_target, _level(pytestconfig) or default_level())


@cache
def _names_us(path: Path) -> bool:
    """True if a test file has one of our names in its text."""
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return any(name in text for name in _NAMES)


def _is_ours(node: pytest.Collector | None) -> bool:
    return isinstance(node, pytest.Module) and _names_us(node.path)


def _simulator(config: pytest.Config) -> AbstractContextManager[bool]:
    """The simulator as ``nki`` and ``neuronxcc.nki``, unless AWS's packages are installed."""
    from trnrt.nki.installing import install_briefly

    return install_briefly(_level(config), legacy=True)


def _targets(config: pytest.Config) -> list[str]:
    """The targets of the command line, else of the configuration; UsageError if there is no such target."""
    from trnrt.nki.errors import OptionError
    from trnrt.nki.machine.targets import get_target

    texts = config.getoption("--nki-target") or config.getini("nki_target")
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    try:
        for name in names:
            get_target(name)
    except OptionError as error:
        raise pytest.UsageError(f"--nki-target: {error}") from None
    return list(dict.fromkeys(names))


def _level(config: pytest.Config) -> Level | None:
    """The release of NKI of the command line, else of the configuration; None if neither names one."""
    from trnrt.nki.errors import OptionError
    from trnrt.nki.level import as_level

    # Not getoption: while conftest files are imported, that has no value yet.
    value = getattr(config.known_args_namespace, "nki_level", None) or config.getini("nki_level")
    try:
        return as_level(value, "--nki") if value else None
    except OptionError as error:
        raise pytest.UsageError(f"{error}; {error.hint}") from None


def _chooses_target(metafunc: pytest.Metafunc) -> bool:
    """True if the test has its own ``parametrize("nki_target", ...)``."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if "nki_target" in (names.replace(",", " ").split() if isinstance(names, str) else names):
            return True
    return False
