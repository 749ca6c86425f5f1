"""Ported kernels compute what the old ones did: against numpy, and by the verb's own comparison."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from portable_flow import FLOW
from portable_kernels import CASES, Case, port_case

from trnrt.nki import scripts
from trnrt.nki.calls import parse_call
from trnrt.nki.checking import static_findings
from trnrt.nki.installing import install_briefly
from trnrt.nki.porting.comparing import compare_ported
from trnrt.nki.sim.kernel import Spec, simulate

LEVELS = ("0.6", "0.7")
# The old kernel breaks a rule of the simulator: on trn2 sums on what another instruction wrote are undefined.
NUMPY_ALONE = ("products are added to what is in PSUM",)
BY_NAME = {case.name: case for case in CASES}


def drawn(call: str, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Random arguments for a call."""
    draw, parsed = np.random.default_rng(seed), parse_call(call)
    args = [
        draw.standard_normal(value.shape).astype(value.dtype.numpy) if isinstance(value, Spec) else value
        for value in parsed.args
    ]
    return args, dict(parsed.kwargs)


def run_ported(text: str, folder: Path, call: str, level: str) -> tuple[Any, list[Any], dict[str, Any]]:
    """The result of a ported kernel, strictly checked, and its arguments."""
    file = folder / "ported.py"
    file.write_text(text)
    module = ModuleType("ported")
    args, kwargs = drawn(call)
    with install_briefly(level):
        scripts.import_module(file, module)
        return simulate(module.kernel, strict=True, nki=level)(*args, **kwargs), args, kwargs


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", [*CASES, *FLOW], ids=lambda case: case.name)
def test_numbers(case: Case, level: str, tmp_path: Path) -> None:
    ported = port_case(case)
    assert not ported.marks
    assert not static_findings(ported.text, "old.py", level=level)
    results, args, kwargs = run_ported(ported.text, tmp_path, case.call, level)
    wanted = case.numpy(*args, **kwargs)
    pairs = zip(results, wanted, strict=True) if isinstance(wanted, tuple) else [(results, wanted)]
    for result, want in pairs:
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))
    assert not [text for text in case.writes if text not in ported.text]
    assert not [text for text in case.gone if text in ported.text]


@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 300), columns=st.integers(1, 40))
def test_a_mask_leaves_any_number_of_rows(rows: int, columns: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = port_case(BY_NAME["a mask of rows"]).text
    result, args, _ = run_ported(text, tmp_path_factory.mktemp("masked"), f"kernel(f32[{rows},{columns}])", "0.7")
    np.testing.assert_allclose(result, np.exp(args[0]) + 1, rtol=1e-5)


@pytest.mark.parametrize("case", [c for c in (*CASES, *FLOW) if c.name not in NUMPY_ALONE], ids=lambda case: case.name)
def test_the_old_kernel_agrees(case: Case, tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text(case.text)
    (compared,) = compare_ported(script, port_case(case).text, [case.call])
    assert compared.error is None
    assert compared.equal
