"""What test folders share: helper modules beside them, a cache that is nobody else's, a browser, a server for it.

Property tests try the same examples in each run, and have no deadline: what fails here fails everywhere, and a slow
machine is no fault. ``pytest --hypothesis-profile=random`` looks for new examples instead. ``--order-seed N`` runs the
tests in another order, and ``-m quick`` those that ``shared/quick.py`` lists.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from trnrt.commands.blas import choose_blas_kernels, limit_blas_threads

if TYPE_CHECKING:
    from handing_out import Handfuls
    from playwright.sync_api import Browser
    from serving import ServerProcess
    from xdist.remote import Producer

# Before numpy is imported: threads of several test processes that wait for each other cost more than they bring.
limit_blas_threads()
choose_blas_kernels()
# pytest's processes inherit the 80 columns that readline assumes; what is printed to no terminal must not be cut.
os.environ.pop("COLUMNS", None)

settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("random", settings.get_profile("fixed"), derandomize=False)
settings.load_profile("fixed")

# Hypothesis draws some examples from the constants of the project's modules that happen to be imported: in one of
# several processes, those that the tests before needed. Where the examples are to be the same, it knows of none.
if hasattr(providers, "_get_local_constants"):
    imported, none = providers._get_local_constants, providers._local_constants
    providers._get_local_constants = lambda: none if settings().derandomize else imported()

# Folders whose tests import a helper module by its name; under importmode=importlib pytest adds none of them itself.
for folder in ("kernels", "nki", "planner", "shared", "conformance/onnx", "serve", "../examples/embedding_server"):
    sys.path.append(str(Path(__file__).parent / folder))
sys.path.append(str(Path(__file__).parents[1]))  # of ``benchmarks``, which is in no wheel


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Handfuls | None:
    """By the handful, where the tests are to be kept in groups."""
    from handing_out import Handfuls

    return Handfuls(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Skip garbage collection while tests are collected, and skip what they leave when it runs later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        # Plans and graphs are thousands of objects that live for one test. With Python's own threshold of 700, looking
        # through them takes a tenth of the suite's CPU time.
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """An order of the tests, by number."""
    parser.addoption("--order-seed", type=int, metavar="N", help="shuffle the files, and the tests of each file")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``-m quick`` imports no file that has no quick test."""
    from quick import has_quick

    if config.getoption("-m") != "quick" or not collection_path.name.startswith("test_"):
        return None
    return None if collection_path.suffix != ".py" or has_quick(collection_path) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Quick tests get their mark. What waits for other processes most of the time is begun first, beside the rest."""
    from handing_out import of_ray
    from ordering import reorder
    from quick import is_quick

    for item in items:
        if isinstance(item, pytest.Function) and is_quick(item.path, item.originalname):
            item.add_marker("quick")
    seed = config.getoption("--order-seed")
    if seed is not None:
        reorder(items, seed)
    items.sort(key=lambda item: not of_ray(item.path.name))


@pytest.fixture
def level_0_6() -> Iterator[None]:
    """NKI 0.6 as the language level."""
    from trnrt.nki.level import use_level

    with use_level("0.6"):
        yield


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test writes to the user's own cache; each module has one, and with it few entries to look through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRNRT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def own_targets() -> Iterator[None]:
    """Each module of tests begins without targets from files: messages list all targets that a process knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trnrt.nki.machine.targets._given", {})
        yield


# What these two need is imported where a test asks for them: the others do without the server's packages.


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    from browsing import chromium

    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of the sample models, and of one that does not load."""
    from visiting import sample_server

    with sample_server(tmp_path_factory.mktemp("serve")) as started:
        yield started


@pytest.fixture(autouse=True)
def _compute_on_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Served models compute on their threads in in-process tests: many hold a run, and look at the event loop
    meanwhile. Servers in processes of their own choose as always, and ``test_inline`` tests both places."""
    if request.path.parent.name != "serve":
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trnrt.serve.hosting.inline.QUICK_S", -1.0)
        yield
