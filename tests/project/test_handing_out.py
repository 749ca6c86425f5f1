"""How a parallel run hands its tests out, on a run of a few: in whole handfuls, and Ray's first and in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from handing_out import HANDFUL, WHOLE, units

SHARED = Path(__file__).parents[1] / "shared"
CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = f"import pytest\n\n@pytest.mark.parametrize('k', range({2 * HANDFUL}))\ndef test_it(k): pass\n"


def test_neighbours_share_a_unit_and_so_do_all_of_ray() -> None:
    names = ("one", "ray_cores", "two", "predict_ray")
    found = units(f"tests/a/test_{name}.py::test[{k}]" for name in names for k in range(20))
    one, two, ray = ([unit for nodeid, unit in found.items() if part in nodeid] for part in ("one", "two", "ray"))
    assert set(ray) == {"ray"} and len(ray) == 40
    assert not set(one) & set(two)
    assert [one.count(unit) for unit in dict.fromkeys(one)] == [HANDFUL, HANDFUL, 20 - 2 * HANDFUL]


def test_files_that_share_a_server_are_handed_out_whole() -> None:
    assert {path.name for path in CONFTEST.parent.rglob("test_*.py")} >= WHOLE
    for name in WHOLE:
        assert len(set(units(f"tests/e2e/{name}::test[{k}]" for k in range(3 * HANDFUL)).values())) == 1


def test_a_parallel_run(tmp_path: Path) -> None:
    names = ("test_a.py", "test_b.py", "test_d_ray.py", "test_ray_c.py")
    for name in names:
        (tmp_path / name).write_text(TESTS)
    source = CONFTEST.read_text(encoding="utf-8").split("@pytest.fixture")[0]
    (tmp_path / "conftest.py").write_text(source.replace("Path(__file__).parent / folder", f"Path({str(SHARED)!r})"))
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # [gw0] [ 50%] PASSED test_a.py::test_it[0]
    lines = [line.split() for line in ran.stdout.splitlines() if line.startswith("[gw")]
    worker_of = {line[-1]: line[0] for line in lines}
    unit_of = units(f"{name}::test_it[{k}]" for name in names for k in range(2 * HANDFUL))
    assert set(worker_of) == set(unit_of)
    workers: dict[str, set[str]] = {}
    for nodeid, worker in worker_of.items():
        workers.setdefault(unit_of[nodeid], set()).add(worker)
    assert len(workers) == 5
    assert [unit for unit, several in workers.items() if len(several) > 1] == []
    ran_by_rays = [nodeid for nodeid, worker in worker_of.items() if {worker} == workers["ray"]]
    assert all(unit_of[nodeid] == "ray" for nodeid in ran_by_rays[: 4 * HANDFUL])
