"""How much of NKI 0.6 and 0.7 there is: every name of the API is there and tested, or left out with a reason.

``UPDATE_DOCS=1 pytest tests/conformance/test_coverage.py`` writes docs/nki-coverage.md anew.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trnrt.nki import nisa, nki, nl
from trnrt.nki.level import Level
from trnrt.nki.sim import compiler
from trnrt.nki.sim.kernel import Kernel
from trnrt.nki.sim.lang.left_out import GRIDS, WIDE
from trnrt.nki.sim.subset_api import load_api
from trnrt.nki.sim.tensor import NkiTensor

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "nki-coverage.md"
APIS = {level: load_api(level) for level in Level}
MODULES: dict[str, ModuleType] = {"nki": nki, "nki.compiler": compiler, "nki.isa": nisa, "nki.language": nl}
SHORT = {"nki": "nki", "nki.compiler": "nki.compiler", "nki.isa": "nisa", "nki.language": "nl"}

MX = "MX formats are left out"
# What is left out, and why; calling it raises an error that says so.
LEFT_OUT = {
    "nisa.nc_matmul_mx": MX,
    "nisa.quantize_mx": MX,
    "NkiTensor.indirect": "tensor indirection (trn3) is not modelled: the reference leaves its index order open",
    "nl.alloc_blocks": GRIDS,
    "nl.alloc_tiles": GRIDS,
    "nl.blocks": GRIDS,
    "nl.tiles": GRIDS,
    "nl.NkiGrid": GRIDS,
    "nl.NkiBlockGrid": GRIDS,
    "nl.NkiTileGrid": GRIDS,
    "nl.int64": WIDE,
    "nl.uint64": WIDE,
}
# Classes that kernels make objects of.
RECORDS = {"CompileConfig", "SpecializationConfig", "NkiScalar"}
# Constants of the reference that stand for packed MX types.
PACKED = {"float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4", "float8_e8m0fnu"}


def files_that_use(short: str, name: str) -> list[str]:
    """The conformance tests (else the simulator's unit tests) that use ``short.name`` (for a method: ``.name(``)."""
    pattern = re.compile(rf"\.{name}\(" if short in ("NkiTensor", "kernel") else rf"\b{re.escape(short)}\.{name}\b")

    def using(folder: str) -> list[str]:
        files = [f for f in (ROOT / folder).glob("test_*.py") if f != Path(__file__)]
        return sorted(f.name for f in files if pattern.search(f.read_text(encoding="utf-8")))

    return using("tests/conformance") or using("tests/nki")


def functions() -> list[tuple[str, str, Any]]:
    """(short module, name, what we have) of all functions, methods of NkiTensor, and names that 0.7 added."""
    found: list[tuple[str, str, Any]] = []
    old, new = APIS[Level.nki_0_6].modules, APIS[Level.nki_0_7].modules
    for module, after in new.items():
        before = old.get(module)
        added = sorted(after.names() - before.names()) if before else sorted(after.names())
        names = [*(before.functions if before else ()), *added]
        found += [(SHORT[module], name, getattr(MODULES[module], name, None)) for name in names]
    cls = new["nki.language"].classes["NkiTensor"]
    methods = [*cls.methods, *(name for name, text in cls.members.items() if text == "property")]
    found += [("NkiTensor", name, getattr(NkiTensor, name, None)) for name in methods if not name.startswith("__")]
    found.append(("kernel", "with_schedule", getattr(Kernel, "with_schedule", None)))  # in the SDK's guides only
    return found


def versions(short: str, name: str) -> str:
    """The releases that have a name: ``0.6, 0.7``, with a word on what a release deprecates or changed."""
    path = next((module for module, known in SHORT.items() if known == short), None)
    if path is None:
        return ", ".join(Level)
    having = [level for level, api in APIS.items() if path in api.modules and name in api.modules[path].names()]
    before, after = (APIS[level].signature(f"{path}.{name}") for level in Level)
    words = [" (deprecated)" if f"{path}.{name}" in APIS[level].deprecated else "" for level in having]
    if before is not None and after is not None and before != after:
        words[-1] = " (more arguments)"
    return ", ".join(f"{level}{word}" for level, word in zip(having, words, strict=True))


def row(short: str, name: str, ours: Any) -> str:
    """One line of the table."""
    full = f"{short}.{name}"
    if full in LEFT_OUT:
        return f"| `{full}` | {versions(short, name)} | left out | {LEFT_OUT[full]} |"
    files = ", ".join(f"`{file}`" for file in files_that_use(short, name))
    return f"| `{full}` | {versions(short, name)} | {'done' if ours is not None else 'missing'} | {files} |"


def page() -> str:
    """docs/nki-coverage.md."""
    lines = [
        "# What the simulator has of NKI 0.6 and 0.7",
        "",
        "The simulator has every function of NKI 0.6 and 0.7 listed here, except those marked *left out*. It has no",
        "collectives. `trnrt nki check --nki 0.6` finds names that 0.7 added; `--nki 0.7` (the default) finds names",
        "that 0.7 removed or deprecates. The table is generated from the API's signatures and the tests.",
        "",
        "| function | NKI | state | tests, or why not |",
        "|---|---|---|---|",
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


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("module", MODULES)
def test_every_class_and_constant_is_there(module: str, level: Level) -> None:
    if module not in APIS[level].modules:
        return
    description = APIS[level].modules[module]
    wanted = {*description.constants, *description.classes} - PACKED
    assert sorted(name for name in wanted if not hasattr(MODULES[module], name)) == []


@pytest.mark.parametrize("module", ["nki.compiler", "nki.isa", "nki.language"])
def test_signatures_are_the_documented_ones(module: str) -> None:
    """Names, order, which arguments have defaults, and which are taken by name only."""
    wrong = []
    description = APIS[Level.nki_0_7].modules[module]
    functions = {**APIS[Level.nki_0_6].modules[module].functions} if module != "nki.compiler" else {}
    functions |= description.functions
    functions |= {name: cls.methods["__init__"][1:] for name, cls in description.classes.items() if name in RECORDS}
    for name, parameters in functions.items():
        ours = getattr(MODULES[module], name, None)
        if ours is None or f"{SHORT[module]}.{name}" in {"nisa.nc_matmul_mx", "nisa.quantize_mx"}:
            continue
        signature = inspect.signature(ours)
        have = [
            (p.name, p.default is not inspect.Parameter.empty, p.kind is inspect.Parameter.KEYWORD_ONLY)
            for p in signature.parameters.values()
        ]
        want = [(p.name.lstrip("*"), p.default is not None, p.by_name) for p in parameters]
        if have != want:
            wrong.append(f"{name}: {have} instead of {want}")
    assert wrong == []
