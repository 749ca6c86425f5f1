"""An instruction is declared once: what its declaration must say, and who else may know it by its name."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from trnrt.nki import nisa
from trnrt.nki.machine import costs
from trnrt.nki.machine.program import Declaration, Engine, Rule
from trnrt.nki.machine.rules.allocation import ALLOCATION
from trnrt.nki.machine.rules.table import RULES
from trnrt.nki.sim import declaring
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.instructions import OPERATIONS

NKI = Path(declaring.__file__).parents[1]
FAMILIES = "trnrt.nki.sim.instructions."
# What programs hold besides what kernels call by `nisa`.
MARKERS = {"loop_begin", "loop_end", "capture", "print", "device_print", "scalar_arithmetic"}
# Tensors that tracing adds to the arguments of a signature.
ADDED = {"dma_compute": {f"src{i}" for i in range(16)}}
SCALARS = {"scalar_load", "scalar_store", "scalar_arithmetic"}
# Files that know an instruction by its name, and why. A facet of the declaration is better, where all could have it.
NAMED = {
    "bottleneck.py": {"nc_matmul"},  # advice on products
    "testing/writers.py": {"dma_copy", "tensor_copy"},  # copies, behind which the writer is looked for
    "machine/cores.py": {"sendrecv"},  # what it means involves both cores
    "machine/elision.py": {"dma_copy"},  # a pattern: loads that need no copy
    "machine/execute.py": {"loop_begin", "loop_end"},  # the structure of a program
    "machine/program.py": {"loop_begin", "loop_end"},
    "machine/timing/hazards.py": {"register_load", "register_move", "register_store", *SCALARS},
    "sim/scheduling.py": {"register_load", "register_move", "scalar_arithmetic", "scalar_load"},
    "machine/timing/issues.py": {"activation", "sendrecv"},  # the tables of functions; what moves data
    "machine/timing/rewriting.py": {"activation", "tensor_copy"},  # a pattern: copies
    "machine/timing/steps.py": {"nc_matmul"},  # products are counted
    "profiling.py": {"nc_matmul"},
    "machine/timing/tensor_engine.py": {"nc_matmul", "nc_transpose"},  # models of their own
    "machine/timing/transfers.py": {"dma_transpose"},
    "sim/psum.py": {"memset", "nc_matmul"},  # what PSUM accumulates on
}
# Names of `nl` and of Python that instructions share.
SHARED = {"reciprocal", "dropout", "print", "device_print"}

REQUIRED: dict[str, Any] = {
    "engines": (Engine.vector,),
    "writes": ("dst",),
    "reads": ("src",),
    "rules": (),
    "meaning": lambda instruction, arrays: lambda: None,
    "cycles": costs.streaming,
    "spreads": None,
}


def test_the_required_facets() -> None:
    required = {facet.name for facet in fields(Declaration) if facet.default is MISSING}
    assert required == set(REQUIRED)
    Declaration(**REQUIRED)


@pytest.mark.parametrize("facet", REQUIRED)
def test_a_facet_that_is_left_out_is_an_error(facet: str) -> None:
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{facet}'"):
        declare(**{name: value for name, value in REQUIRED.items() if name != facet})


def test_a_name_is_declared_once() -> None:
    def tensor_copy() -> Args:
        return {}

    with pytest.raises(ValueError, match="'tensor_copy' is declared twice"):
        declare(**REQUIRED)(tensor_copy)


def test_kernels_can_call_what_is_declared() -> None:
    assert {name for name in OPERATIONS if not hasattr(nisa, name)} == MARKERS


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - MARKERS))
def test_operands_are_arguments(name: str) -> None:
    """Each argument that a declaration names is one of the signature, or one that tracing adds."""
    operation, parameters = OPERATIONS[name], set(inspect.signature(getattr(nisa, name)).parameters)
    named = {*operation.tensors, *operation.numbers, *operation.optional, *operation.columns}
    assert named - parameters == ADDED.get(name, set())
    assert operation.partly | operation.indexed | operation.optional - operation.numbers <= set(operation.tensors)
    if "engine" in parameters:  # of dma_copy it is who triggers the transfer
        assert len(operation.engines) > 1 or name == "dma_copy"


def test_a_family_s_own_rules_stand_in_its_file() -> None:
    """And what several families obey stands in machine/rules: where a rule is to be found follows from who obeys it."""
    homes: dict[str, set[str]] = defaultdict(set)
    for operation in OPERATIONS.values():
        for rule in operation.rules:
            homes[rule.name].add(home(operation.meaning))
    shared = {name for name, families in homes.items() if len(families) > 1}
    assert all(home(RULES[name].check).startswith("trnrt.nki.machine.rules.") for name in shared)
    own = {name: families for name, families in homes.items() if name not in shared}
    elsewhere = {name for name, (family,) in own.items() if RULES[name] not in vars(sys.modules[family]).values()}
    assert {name for name in elsewhere if home(RULES[name].check) not in EVERYWHERE} == set()


# What an engine reaches, and what its registers take, stand together although one family alone obeys some of them.
EVERYWHERE = tuple(f"trnrt.nki.machine.rules.{name}" for name in ("access", "accumulating", "operands"))


def home(function: Any) -> str:
    return str(function.__module__)


def test_each_rule_binds_something() -> None:
    bound = {rule.name for operation in OPERATIONS.values() for rule in operation.rules}
    bound |= {rule.name for rule in ALLOCATION if isinstance(rule, Rule)}
    assert set(RULES) == bound


def test_who_knows_instructions_by_name() -> None:
    """But for `nisa`, which offers them, the functions of `nl`, which call them, and the rooms of the old names."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in NKI.rglob("*.py"):
        relative = path.relative_to(NKI).as_posix()
        if not relative.startswith(("sim/instructions/", "sim/lang/", "sim/isa.py", "legacy/", "porting/")):
            found[relative] |= strings(path) & (set(OPERATIONS) - SHARED)
    assert {path: names for path, names in found.items() if names} == NAMED


def strings(path: Path) -> set[str]:
    """The string constants of a file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_docs_show_a_real_declaration() -> None:
    page = (NKI.parents[1] / "docs" / "simulator.md").read_text(encoding="utf-8")
    section = page.split("## Adding an instruction\n")[1].split("\n## ")[0]
    shown = [line[4:] for line in section.splitlines() if line.startswith("    ") or not line]
    source = (NKI / "sim" / "instructions" / "elementwise.py").read_text(encoding="utf-8")
    assert "def _reciprocal(" in section
    assert "\n".join(shown).strip() in source
