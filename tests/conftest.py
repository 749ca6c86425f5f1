"""What test folders share with their tests: helper modules beside them, and a cache that is nobody else's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Before numpy is imported: threads of several test processes that wait for each other cost more than they bring.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Folders whose tests import a helper module by its name; under importmode=importlib pytest adds none of them itself.
for folder in ("kernels", "unit/nki", "unit/planner", "shared", "conformance/onnx"):
    sys.path.append(str(Path(__file__).parent / folder))


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test writes to the user's own cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TRNRT_CACHE", str(tmp_path_factory.mktemp("cache")))
