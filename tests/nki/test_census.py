"""What AWS's own kernels use, against the check and the API: a census of nki-library, made by
``benchmarks/nki_library/census.py``. It holds counts and names only.

Each construct that the library's kernels use passes the check at both levels; each name of `nki` is there, or left out
with a reason, or a fault of the library.
"""

from __future__ import annotations

import importlib
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from trnrt.nki.installing import install_briefly
from trnrt.nki.level import Level
from trnrt.nki.sim.subset import check_source

CENSUS = json.loads((Path(__file__).parents[1] / "data" / "nki_library_census.json").read_text(encoding="utf-8"))
HEAD = """\
from dataclasses import dataclass
from enum import Enum

import nki
import nki.isa as nisa
import nki.language as nl

class Kind(Enum):
    one = 1

@dataclass
class Config(nl.NKIObject):
    size: int = 1

    @staticmethod
    def two():
        return 2

class Plain(nl.NKIObject):
    size = 1

"""

# A statement with the construct, in a kernel of the arguments a and b.
USES: dict[str, str] = {
    ".append()": "x = []\nx.append(a)",
    ".clear()": "x = []\nx.clear()",
    ".copy()": "x = []\ny = x.copy()",
    ".get()": "x = {'a': a}\nx.get('a')",
    ".keys()": "x = {'a': a}\nx.keys()",
    ".lower()": "b.lower()",
    ".pop()": "x = [a]\nx.pop()",
    "@dataclass": "Config()",
    "@jit": "pass",
    "@staticmethod": "Config.two()",
    "AnnAssign": "x: int = 1",
    "Assert": "assert a.size, 'empty'",
    "Assign": "x = 1",
    "Attribute": "a.shape",
    "AugAssign": "x = 1\nx += 2",
    "BinOp": "x = 1 + 2",
    "BoolOp": "x = a and b",
    "Break": "for i in range(2):\n    break",
    "Call": "len(a.shape)",
    "ClassDef": "Plain()",
    "Compare": "x = 1 < 2",
    "Constant": "x = 1",
    "Continue": "for i in range(2):\n    continue",
    "Dict": "x = {'a': a}",
    "Eq": "x = a.size == 1",
    "Eq None": "x = b == None",
    "Expr": "print(a)",
    "For": "for i in range(2):\n    print(i)",
    "FormattedValue": "x = f'{a}'",
    "FunctionDef": "pass",
    "Gt": "x = a.size > 1",
    "GtE": "x = a.size >= 1",
    "If": "if a.size:\n    print(a)\nelse:\n    print(b)",
    "IfExp": "x = a if a.size else b",
    "In": "x = 1 in (1, 2)",
    "Is None": "x = b is None",
    "IsNot None": "x = b is not None",
    "JoinedStr": "x = f'{a}'",
    "List": "x = [1, 2]",
    "Lt": "x = a.size < 1",
    "LtE": "x = a.size <= 1",
    "Name": "print(a)",
    "NotEq": "x = a.size != 1",
    "NotEq None": "x = b != None",
    "NotIn": "x = 1 not in (1, 2)",
    "Pass": "pass",
    "Return": "return a",
    "Slice": "x = a[0:2]",
    "Subscript": "x = a[0]",
    "Tuple": "x = (1, 2)",
    "UnaryOp": "x = -1",
    "While": "x = 3\nwhile x > 0:\n    x -= 1",
    "class(Enum)": "x = Kind.one",
    "class(NKIObject)": "Plain()",
    "divmod()": "x = divmod(3, 2)",
    "float()": "x = float(3)",
    "for over a value": "for x in a.shape:\n    print(x)",
    "for over nki.language.affine_range": "for i in nl.affine_range(2):\n    print(i)",
    "for over nki.language.sequential_range": "for i in nl.sequential_range(2):\n    print(i)",
    "for over nki.language.static_range": "for i in nl.static_range(2):\n    print(i)",
    "for over range": "for i in range(2):\n    print(i)",
    "int()": "x = int(3.5)",
    "isinstance()": "x = isinstance(b, int)",
    "len()": "x = len(a.shape)",
    "list()": "x = list(a.shape)",
    "max()": "x = max(1, 2)",
    "min()": "x = min(1, 2)",
    "print()": "print(a)",
    "range()": "for i in range(2):\n    print(i)",
    "str()": "x = str(3)",
    "tuple()": "x = tuple(a.shape)",
}
# Loops over names of the library itself, or that 0.7 removed; what the census finds by a method's name alone.
APART = {
    "for over ..utils.tiled_range.TiledRange",
    "for over dicti.keys",
    "for over nki.language.dynamic_range",
    "for over nki.language.range",
    "nested function",
}
# Names that the simulator lacks: collectives are left out; the library's own faults.
LACKING = {"nki.collectives": "left out", "nki.language.range": "does not exist in NKI"}


def test_every_construct_is_looked_at() -> None:
    assert set(CENSUS["constructs"]) == {*USES, *APART}


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("construct", USES)
def test_the_check_takes_what_the_library_uses(construct: str, level: Level) -> None:
    source = f"{HEAD}@nki.jit\ndef kernel(a, b=None):\n{textwrap.indent(USES[construct], '    ')}\n"
    assert check_source(source, "k.py", level=level) == []


@pytest.mark.parametrize("level", Level)
def test_every_name_is_there_or_refused_with_a_reason(level: Level) -> None:
    lacking = {}
    with install_briefly(level):
        for path in CENSUS["names"]:
            module, _, name = path.rpartition(".")
            try:
                has: Any = hasattr(importlib.import_module(module), name) or importlib.import_module(path)
            except ImportError as error:
                has, lacking[path] = None, str(error)
            if has is False:
                lacking[path] = ""
    wanted = dict(LACKING)
    if level is Level.nki_0_7:
        wanted["nki.language.dynamic_range"] = "Call nl.fori_loop"
    assert set(lacking) == set(wanted)
    for path, why in wanted.items():
        assert why in lacking[path]


def test_the_library_was_read() -> None:
    """It is no empty list; the counts are those that a reader of the library would get."""
    assert CENSUS["kernels"] == 54 and CENSUS["files"] == 173 and CENSUS["constructs"]["For"] > 800
    assert CENSUS["names"]["nki.isa.dma_copy"] > 400
    assert not {"Yield", "Lambda", "ListComp", "Try", "With", "Match"} & set(CENSUS["constructs"])
