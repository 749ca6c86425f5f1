"""What test folders share with their tests: helper modules beside them, and a cache that is nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Folders whose tests import a helper module by its name; under importmode=importlib pytest adds none of them itself.
for folder in ("kernels", "unit/nki", "unit/planner", "shared"):
    sys.path.append(str(Path(__file__).parent / folder))


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test writes to the user's own cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TRNRT_CACHE", str(tmp_path_factory.mktemp("cache")))
