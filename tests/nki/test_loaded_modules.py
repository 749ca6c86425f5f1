"""The modules that imports and short commands load, as loading takes most of their time.

``python -m benchmarks.starting`` measures it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.starting.cpu import ADDITION

IMPORT = "from trnrt.nki import nki, nl, nisa"
PROFILE = f"from trnrt.cli import app; app({list(ADDITION[2:])}, standalone_mode=False)"
RUNNING = ("trnrt.nki.machine.execute", "trnrt.nki.machine.cores", "trnrt.nki.sim.printing")
FAMILIES = ("trnrt.nki.sim.instructions.matmul", "trnrt.nki.sim.lang.reductions")
CHECKING = ("trnrt.nki.sim.subset", "trnrt.nki.sim.subset_api", "trnrt.nki.machine.timing", "trnrt.nki.machine.memory")
PACKAGES = (
    "typer",
    "rich",
    "pydantic",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "PIL",
    "numpy.testing",
    "tempfile",
    "hashlib",
)
REPORTS = ("trnrt.report.page", "trnrt.report.documents", "trnrt.report.comparing", "trnrt.commands.records")


def loaded(code: str) -> set[str]:
    """The modules of a process that has run some code."""
    listing = f"import json, sys\n{code}\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # rich wraps narrow pages
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True, env=environment)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("code", "needless"),
    [
        (IMPORT, (*RUNNING, *FAMILIES, *CHECKING, *PACKAGES, "click")),
        (PROFILE, (*RUNNING, *FAMILIES, *PACKAGES, *REPORTS)),
    ],
    ids=["import", "profile"],
)
def test_nothing_needless_is_loaded(code: str, needless: tuple[str, ...]) -> None:
    found = loaded(code)
    assert {"numpy", "trnrt.nki.sim.isa"} <= found
    assert found.isdisjoint(needless), sorted(found & set(needless))


def test_an_instruction_loads_its_family_alone() -> None:
    found = loaded(f"{IMPORT}; nisa.nc_matmul")
    assert "trnrt.nki.sim.instructions.matmul" in found
    assert "trnrt.nki.sim.instructions.shuffle" not in found


def test_the_assertions_of_numpy_pass_if_the_script_imports_them() -> None:
    """A checked script's kernels return zeros; numpy.testing is loaded, and replaced, if it asks for it."""
    code = (
        "from trnrt.nki.tolerating import tolerate_zeros\n"
        "import sys, numpy as np\n"
        "with tolerate_zeros():\n"
        "    assert 'numpy.testing' not in sys.modules\n"
        "    from numpy.testing import assert_array_equal\n"
        "    assert_array_equal(np.zeros(2), np.ones(2))\n"
        "    assert np.allclose(np.zeros(2), np.ones(2))\n"
        "import numpy.testing\n"
        "assert numpy.testing.assert_array_equal is not assert_array_equal\n"
        "assert not np.allclose(np.zeros(2), np.ones(2))\n"
    )
    assert "numpy.testing" in loaded(code)
