"""Keys of what depends on trnrt's code and tables change with every one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trnrt.cache.code import PLANS, ROOT, code_version

TABLES = ["nki/machine/trn2.toml", "nki/sim/nki_api_0_6.json"]
CODE = [
    *("kernels/common.py", "nki/machine/targets.py", "nki/sim/isa.py"),
    *("operators/conv.py", "planner/making.py", "running/profiler.py", "text.py"),
]
BESIDE = ["capacity/assumptions.toml", "serve/hosting/batching.py", "session.py"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Some files of trnrt; kernels and serve behind links, as in a checkout."""
    for name in (*TABLES, *CODE, *BESIDE):
        room, _, rest = name.partition("/")
        path = tmp_path / ("beside" if room in ("kernels", "serve") else "trnrt") / room / rest
        path.parent.mkdir(parents=True, exist_ok=True) if rest else None
        shutil.copyfile(ROOT / name, path if rest else tmp_path / "trnrt" / room)
    for room in ("kernels", "serve"):
        (tmp_path / "trnrt" / room).symlink_to(tmp_path / "beside" / room)
    return tmp_path / "trnrt"


def versions(root: Path) -> tuple[str, str]:
    """The one of plans, and the one of everything, anew."""
    code_version.cache_clear()
    return code_version(PLANS, root), code_version(None, root)


@pytest.mark.parametrize("name", [*TABLES, *CODE, *BESIDE])
def test_an_edited_file_is_another_version(copied: Path, name: str) -> None:
    before = versions(copied)
    assert before == versions(copied)
    with (copied / name).open("a") as file:
        file.write("\n")
    after = versions(copied)
    assert (after[0] != before[0]) == (name not in BESIDE)
    assert after[1] != before[1]


def test_a_file_that_is_called_otherwise_is_another_version(copied: Path) -> None:
    before = versions(copied)
    (copied / "nki/machine/trn2.toml").rename(copied / "nki/machine/trn4.toml")
    assert versions(copied)[0] != before[0]


def test_every_table_of_the_planner_and_the_machine_counts() -> None:
    """None of them has a name that is not read."""
    beside = {
        path.suffix
        for room in PLANS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert beside <= {".json", ".toml"}
