"""How much of NKI 0.6 there is: every name of the API is there and tested, or left out with a reason.

``UPDATE_DOCS=1 pytest tests/conformance/test_coverage.py`` writes docs/nki-coverage.md anew.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trnrt.nki import nisa, nki, nl
from trnrt.nki.sim.kernel import Kernel
from trnrt.nki.sim.tensor import NkiTensor

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "nki-coverage.md"
API: dict[str, Any] = json.loads((ROOT / "trnrt/nki/sim/nki_api_0_6.json").read_text(encoding="utf-8"))
MODULES: dict[str, ModuleType] = {"nki": nki, "nki.isa": nisa, "nki.language": nl}
SHORT = {"nki": "nki", "nki.isa": "nisa", "nki.language": "nl"}

MX = "MX formats are left out"
# What is left out, and why; calling it raises an error that says so.
LEFT_OUT = {
    "nisa.nc_matmul_mx": MX,
    "nisa.quantize_mx": MX,
    "NkiTensor.indirect": "tensor indirection (trn3) is not modelled: the reference leaves its index order open",
}
# Constants of the reference that stand for packed MX types.
PACKED = {"float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4", "float8_e8m0fnu"}


def files_that_use(short: str, name: str) -> list[str]:
    """The conformance tests (else the simulator's unit tests) that use ``short.name`` (for a method: ``.name(``)."""
    pattern = re.compile(rf"\.{name}\(" if short in ("NkiTensor", "kernel") else rf"\b{short}\.{name}\b")

    def using(folder: str) -> list[str]:
        files = [f for f in (ROOT / folder).glob("test_*.py") if f != Path(__file__)]
        return sorted(f.name for f in files if pattern.search(f.read_text(encoding="utf-8")))

    return using("tests/conformance") or using("tests/nki")


def functions() -> list[tuple[str, str, Any]]:
    """(short module, name, what we have) of every function, and of every method of NkiTensor."""
    found: list[tuple[str, str, Any]] = []
    for module, description in API["modules"].items():
        found += [(SHORT[module], name, getattr(MODULES[module], name, None)) for name in description["functions"]]
    methods = API["modules"]["nki.language"]["classes"]["NkiTensor"]["methods"]
    found += [("NkiTensor", name, getattr(NkiTensor, name, None)) for name in methods if not name.startswith("__")]
    found.append(("kernel", "with_schedule", getattr(Kernel, "with_schedule", None)))  # in the SDK's guides only
    return found


def row(short: str, name: str, ours: Any) -> str:
    """One line of the table."""
    full = f"{short}.{name}"
    if full in LEFT_OUT:
        return f"| `{full}` | left out | {LEFT_OUT[full]} |"
    files = ", ".join(f"`{file}`" for file in files_that_use(short, name))
    return f"| `{full}` | {'done' if ours is not None else 'missing'} | {files} |"


def page() -> str:
    """docs/nki-coverage.md."""
    lines = [
        "# What the simulator has of NKI 0.6",
        "",
        "Generated from the API's signatures and the tests. Collectives are left out as a whole.",
        "",
        "| function | state | tests, or why not |",
        "|---|---|---|",
        *(row(*function) for function in functions()),
    ]
    return "\n".join(lines) + "\n"


def test_the_table_is_generated() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(("short", "name", "ours"), [pytest.param(*f, id=f"{f[0]}.{f[1]}") for f in functions()])
def test_every_function_is_there_and_tested(short: str, name: str, ours: Any) -> None:
    if f"{short}.{name}" not in LEFT_OUT:
        assert ours is not None, "missing"
        assert files_that_use(short, name), "no test uses it"


@pytest.mark.parametrize("module", MODULES)
def test_every_class_and_constant_is_there(module: str) -> None:
    description = API["modules"][module]
    constants = {text.split(":")[0].strip() for text in description["constants"]} - PACKED
    wanted = constants | set(description["classes"])
    assert sorted(name for name in wanted if not hasattr(MODULES[module], name)) == []


@pytest.mark.parametrize("module", ["nki.isa", "nki.language"])
def test_signatures_are_the_documented_ones(module: str) -> None:
    """Names, order, and which arguments have defaults."""
    wrong = []
    for name, parameters in API["modules"][module]["functions"].items():
        ours = getattr(MODULES[module], name, None)
        if ours is None or f"{SHORT[module]}.{name}" in LEFT_OUT:
            continue
        signature = inspect.signature(ours)
        have = [(p.name, p.default is not inspect.Parameter.empty) for p in signature.parameters.values()]
        want = [(parameter[0].lstrip("*"), len(parameter) > 1) for parameter in parameters]
        if have != want:
            wrong.append(f"{name}: {have} instead of {want}")
    assert wrong == []
