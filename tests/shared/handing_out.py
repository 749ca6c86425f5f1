"""How the tests of a parallel run are handed out to its processes: by the handful, some files whole, and all of Ray's
to one of them.

Not with xdist's own ``loadgroup``: since pytest 9.2 it sees no marks, and hands out each test on its own without a
word. Then two Rays started at a time, and what the tests of a module share was made in each process.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

HANDFUL = 8
"""The number of neighbouring tests of a file that one process takes, one after the other."""
WHOLE = frozenset(
    {
        "test_importer_guarding.py",
        "test_importer_hostile.py",
        "test_report_browser.py",
        "test_serve_browser.py",
        "test_serve_page.py",
        "test_tritonclient.py",
    }
)
"""Files whose tests share a server, a browser or another process. One worker takes them all, and starts it once."""


def of_ray(path: str) -> bool:
    """Whether a file's tests start Ray, or may: a machine of two cores has room for one."""
    return "ray" in PurePosixPath(path).stem.split("_")


def units(nodeids: Iterable[str]) -> dict[str, str]:
    """Test -> the unit that it is handed out in."""
    seen: Counter[str] = Counter()
    found = {}
    for nodeid in nodeids:
        path = nodeid.partition("::")[0]
        handful = 0 if PurePosixPath(path).name in WHOLE else seen[path] // HANDFUL
        found[nodeid] = "ray" if of_ray(path) else f"{path} {handful}"
        seen[path] += 1
    return found


class Handfuls(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduler of units, with ours for its scopes."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        # In the order of the files, and not the largest unit first: many short tests are what should end the run.
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._units: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if nodeid not in self._units:
            self._units = units(next(iter(self.registered_collections.values())))
        return self._units[nodeid]

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Note a test that has ended. What is done with is forgotten: xdist looks through all a process ever got."""
        super().mark_test_complete(node, item_index, duration)
        unit = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][unit].values()):
            del self.assigned_work[node][unit]
