"""``benchmarks/nki_library``: its stand-ins, its counts and its list of known failures, without the library itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.nki_library import command as nki_library
from benchmarks.nki_library.families import COMMIT, FAMILIES, KNOWN, SLOW, reason
from benchmarks.nki_library.running import Result, _selection, chosen, read_report, total
from benchmarks.nki_library.source import check_out
from trnrt.errors import OptionError

RACE = "test_folded_load_store_dst_batch[lnc-2_b-16]"
FULL = (
    "E   trnrt.errors.KernelMemoryError: SBUF is full: tile [64x8x8x64] bfloat16 "
    "(/l/nkilib/core/embeddings/rope.py:220 in RoPE_sbuf) needs 65536 bytes"
)
REPORT = f"""<testsuites><testsuite>
<testcase name="test_rope_manual[dh-128]"><failure message="InferenceException">{FULL}</failure></testcase>
<testcase name="test_rope_manual[dh-64]"><failure message="E">E  AssertionError: off by 3</failure></testcase>
<testcase name="test_rope_fast[1]"/><testcase name="test_rope_fast[2]"><skipped message="slow"/></testcase>
<testcase name="test_rope_fast[3]"><error message="no fixture">failed on setup</error></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def result(tmp_path: Path) -> Result:
    report = tmp_path / "rope.xml"
    report.write_text(REPORT, encoding="utf-8")
    return read_report(report, "rope")


def test_a_report_is_counted_and_explained(result: Result) -> None:
    assert (result.passed, result.failed, result.skipped, result.unexplained) == (1, 3, 1, 2)
    full, wrong, broken = result.failures
    assert full.why is not None and "spills" in full.why and full.message.startswith("KernelMemoryError: SBUF is full")
    assert (wrong.why, wrong.message) == (None, "AssertionError: off by 3")
    assert (broken.why, broken.message) == (None, "no fixture")


def test_only_the_very_failure_is_explained() -> None:
    """Neither another family's, nor another test's, nor one that says something else."""
    assert reason("rope", "test_rope_manual[dh-128]", FULL) is not None
    assert reason("rope_hf", "test_rope_manual[dh-128]", FULL) is None
    assert reason("rope", "test_rope_fast[dh-128]", FULL) is None
    assert reason("rope", "test_rope_manual[dh-128]", "Validation failed for ['x_out']") is None
    assert reason("cascaded_max_utils", RACE, "Validation failed for ['output_tensor']") is not None
    assert (
        reason("cascaded_max_utils", RACE.replace("lnc-2", "lnc-1"), "Validation failed for ['output_tensor']") is None
    )


def test_every_known_failure_is_of_a_family() -> None:
    assert {known.family for known in KNOWN} <= set(FAMILIES)
    assert all(len(known.why) > 50 for known in KNOWN)


def test_the_exit_code_is_that_of_what_is_not_explained(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    explained = Result("rope", passed=3, failures=result.failures[:1])
    for found, code in ((result, 1), (explained, 0)):
        monkeypatch.setattr(nki_library, "require", lambda: None)
        monkeypatch.setattr(nki_library, "_run", lambda families, asked, found=found: [found])
        assert nki_library.main(["rope", "--json"]) == code
        document = json.loads(capsys.readouterr().out)
        assert document["commit"] == COMMIT and document["total"]["failed"] == found.failed
        assert document["families"][0]["unexplained"] == document["total"]["unexplained"] == found.unexplained
        assert nki_library.main(["rope"]) == code
        page = capsys.readouterr().out
        assert page.splitlines()[0].split() == ["family", "passed", "failed", "unexplained", "skipped", "seconds"]
        assert ("NOT EXPLAINED" in page) == bool(code)


def test_families_add_up() -> None:
    added = total([Result("a", passed=2, skipped=1, seconds=1.5), Result("b", passed=3, seconds=2)])
    assert (added.passed, added.skipped, added.failed, added.seconds) == (5, 1, 0, 3.5)


@pytest.mark.parametrize(
    ("select", "slow", "given"),
    [
        (None, False, ["-k", f"not {SLOW}"]),
        ("fast or sweep", False, ["-k", f"(fast or sweep) and not {SLOW}"]),
        ("fast", True, ["-k", "(fast)"]),
        (None, True, []),
    ],
)
def test_slow_tests_are_asked_for(select: str | None, slow: bool, given: list[str]) -> None:
    assert _selection(select, slow=slow) == given


def test_wrong_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="no family 'ropes'"):
        chosen(["rope", "ropes"])
    assert chosen([]) == list(FAMILIES)
    with pytest.raises(OptionError, match="there is no folder"):
        check_out(str(tmp_path / "missing"), tmp_path)
    with pytest.raises(OptionError, match="can't clone"):
        check_out(str(tmp_path), tmp_path / "clone")
    assert nki_library.main(["ropes"]) == 2
    assert "there are cumsum" in capsys.readouterr().err


STANDING_IN = """
import os, sys
import numpy as np
import benchmarks.nki_library.stand_ins
import boto3, fabric2, neuron_dtypes as dt, nki, nki.language as nl, nki.isa as nisa, nki_cpu_simulator.nki.isa
from nki.collectives import ReplicaGroup
from botocore.exceptions import ClientError
from nki_cpu_simulator import nki as theirs

assert theirs is nki and nki_cpu_simulator.nki.isa is nisa
assert dt.static_cast(np.float32([1.004]), nl.bfloat16).dtype == nl.bfloat16
assert dt.is_float_type(nl.float8_e4m3) and not dt.is_float_type("int32")

def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=2.0 + nl.program_id(0))
    nisa.dma_copy(dst=out, src=a)
    return out

os.environ["NKI_NC_VERSION"] = "gen3"
assert (nki.cpu_simulate(doubled)[1](x=np.ones((4, 4), np.float32)) == 2).all()
try:
    boto3.Session()
except RuntimeError as error:
    assert "boto3.Session has no stand-in" in str(error)
else:
    raise SystemExit("a stand-in was used")
"""


def test_the_stand_ins_hold_without_the_packages() -> None:
    """In a process of its own, as they take AWS's names there."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{STANDING_IN}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
