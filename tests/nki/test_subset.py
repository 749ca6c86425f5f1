"""The NKI language check, row by row of its table, and the API check against the data of NKI 0.6."""

from __future__ import annotations

import ast
import sys
import textwrap

import pytest

from trnrt.nki.level import Level
from trnrt.nki.sim.subset import RULES, check_api, check_source, load_api

pytestmark = pytest.mark.usefixtures("level_0_6")  # most rules are its own; test_level.py has those of 0.7

IMPORTS = """\
import math
from dataclasses import dataclass
from enum import Enum, IntEnum

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

"""


def kernel(body: str, signature: str = "a, b") -> str:
    """A file with one kernel of this body."""
    return module(f"@nki.jit\ndef kernel({signature}):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")


def module(text: str) -> str:
    return IMPORTS + textwrap.dedent(text)


# For each rule: a file that breaks it, and one that does the same without.
CASES: dict[str, tuple[str, str]] = {
    "comprehension": (
        kernel("x = [i + 1 for i in range(4)]"),
        kernel("x = []\nfor i in range(4):\n    x.append(i + 1)"),
    ),
    "lambda": (
        kernel("f = lambda x: x"),
        module("def same(x):\n    return x\n\n@nki.jit\ndef kernel(a):\n    f = same\n    return f(a)\n"),
    ),
    "walrus": (
        kernel("if (n := a.shape[0]) > 1:\n    print(n)"),
        kernel("n = a.shape[0]\nif n > 1:\n    print(n)"),
    ),
    "yield": (kernel("yield a"), kernel("return (a, b)")),
    "set": (
        kernel("return a.dtype in {nl.float32, nl.bfloat16}"),
        kernel("return a.dtype in (nl.float32, nl.bfloat16)"),
    ),
    "starred": (kernel("print(*a.shape)"), kernel("print(a.shape[0], a.shape[1])")),
    "keyword-expansion": (
        kernel("options = {'dst': a, 'src': b}\nnisa.tensor_copy(**options)"),
        kernel("nisa.tensor_copy(dst=a, src=b)"),
    ),
    "is": (kernel("if a.flag is True:\n    return b"), kernel("if a is not None and a.flag == True:\n    return b")),
    "in-chain": (kernel("return 1 in (1, 2) in ((1, 2),)"), kernel("return 0 < a.shape[0] <= 128")),
    "matmul-operator": (kernel("return a @ b"), kernel("nisa.nc_matmul(dst=a, stationary=b, moving=b)")),
    "dict-key": (kernel("d = {1: a}"), kernel("d = {'a': a}\nd['b'] = b")),
    "format-spec": (kernel("print(f'{a.size:4d}')"), kernel("print(f'{a.size} {b.size=} {b!r}')")),
    "string-operation": (kernel("print('size %d' % a.size)"), kernel("print('size ' + str(a.size))")),
    "container-method": (
        kernel("x = []\nx.insert(0, a)"),
        kernel("x = []\nx.append(a)\nx[0] = b\nd = {}\nd.get('a', 1)\nreturn a.insert(0, 1)"),
    ),
    "large-integer": (kernel("return 0x80000000"), kernel("return (0x7FFFFFFF, -0x7FFFFFFF, 4294967296.0)")),
    "constant": (kernel("x = 1j"), kernel("x = (None, True, 1, 1.0, 'one')")),
    "ellipsis": (kernel("x = ..."), kernel("x = a[...]\ny = a[0, ..., :]")),
    "builtin": (
        kernel("for pair in enumerate(a):\n    print(pair)"),
        kernel("for i in range(len(a)):\n    print(a[i], abs(i), isinstance(i, int), divmod(i, 2))"),
    ),
    "min-max": (kernel("return min(1, 2, 3)"), kernel("return min(1, max(2, 3), ) + min((1, 2, 3))")),
    "numpy": (kernel("return np.zeros((2, 2), np.float32)"), kernel("return -np.inf")),
    "math": (kernel("return math.exp(1.0)"), kernel("return math.ceil(a.size / 3) * math.sqrt(math.pi)")),
    "raise": (kernel("raise ValueError('no')"), kernel("assert False, 'no'")),
    "try": (kernel("try:\n    x = a\nfinally:\n    x = b"), kernel("x = a if a.size else b")),
    "del": (kernel("del a"), kernel("d = {'a': a}\nd.pop('a')")),
    "match": (
        kernel("match a.size:\n    case 1:\n        return b"),
        kernel("if a.size == 1:\n    return b\nelif a.size == 2:\n    return a"),
    ),
    "import": (kernel("import functools"), module("import functools\n\n@nki.jit\ndef kernel(a):\n    pass\n")),
    "global": (
        module("limit = 1\n\n@nki.jit\ndef kernel(a):\n    global limit\n"),
        module("limit = 1\n\n@nki.jit\ndef kernel(a):\n    return limit\n"),
    ),
    "nonlocal": (
        module("def make():\n    n = 1\n    @nki.jit\n    def kernel(a):\n        nonlocal n\n"),
        module("def make():\n    n = 1\n    @nki.jit\n    def kernel(a):\n        n = 2\n"),
    ),
    "async": (kernel("async with nl.no_reorder():\n    pass"), kernel("with nl.no_reorder():\n    pass")),
    "type-statement": (kernel("type Pair = tuple[int, int]"), kernel("pair: tuple[int, int] = (1, 2)")),
    "nested-class": (
        kernel("class Config:\n    size = 1"),
        module("class Config(nl.NKIObject):\n    size = 1\n\n@nki.jit\ndef kernel(a):\n    return Config().size\n"),
    ),
    "nested-function": (
        kernel("def body(i):\n    print(a)\nbody(1)"),
        kernel("def body(i):\n    nisa.tensor_copy(dst=a, src=b)\nnl.fori_loop(0, 4, body)"),
    ),
    "for-target": (
        kernel("for x, y in ((1, 2), (3, 4)):\n    print(x, y)"),
        kernel("for pair in ((1, 2), (3, 4)):\n    x, y = pair\n    print(x, y)"),
    ),
    "loop-else": (
        kernel("while a.size:\n    break\nelse:\n    return b"),
        kernel("while a.size:\n    break\nreturn b"),
    ),
    "assign-target": (kernel("a.x, a.y = 1, 2"), kernel("x = y = 1\n(x, y), z = (1, 2), 3\na.x = x\na.y += y")),
    "with": (kernel("with open_block(a) as c:\n    print(c)"), kernel("with nl.no_reorder():\n    print(a)")),
    "dynamic-exit": (
        kernel("for i in nl.dynamic_range(4):\n    if a.size:\n        break"),
        kernel(
            "for i in nl.dynamic_range(4):\n    for j in range(4):\n        break\nfor i in range(4):\n    continue"
        ),
    ),
    "dynamic-in-order": (
        kernel("with nl.no_reorder():\n    for i in nl.dynamic_range(4):\n        print(a)"),
        kernel("for i in nl.dynamic_range(4):\n    with nl.no_reorder():\n        print(a)"),
    ),
    "fori-return": (
        kernel("def body(i):\n    return a\nnl.fori_loop(0, 4, body_fun=body)"),
        kernel("def body(i):\n    if a.size:\n        return\n    print(a)\nnl.fori_loop(0, 4, body_fun=body)"),
    ),
    "while-return": (
        kernel("def body(r):\n    nisa.register_load(r, a)\nnl.while_loop(b, body)"),
        kernel("def body(r):\n    nisa.register_load(r, a)\n    return r\nnl.while_loop(b, body)"),
    ),
    "while-register": (
        kernel("r = nisa.register_alloc(a)\nwhile r:\n    nisa.register_load(r, a)"),
        kernel("r = nisa.register_alloc(a)\nn = 3\nwhile n:\n    n = n - 1\nwhile a:\n    r = b"),
    ),
    "jit-config": (
        module("@nki.jit(compile_config=CONFIG)\ndef kernel(a):\n    pass\n"),
        module("@nki.jit(debug_kernel=True)\ndef kernel(a):\n    pass\n"),
    ),
    "varargs": (kernel("print(rest)", "a, *rest"), kernel("print(rest)", "a, rest=()")),
    "kwargs": (kernel("print(rest)", "a, **rest"), kernel("print(rest)", "a, rest=None")),
    "bare-star": (kernel("pass", "a, *, scale=1.0"), kernel("pass", "a, /, scale=1.0")),
    "decorator": (
        module("@nki.jit\n@np.vectorize\ndef kernel(a):\n    pass\n"),
        module("@nki.jit()\ndef kernel(a):\n    pass\n\n@nki.jit\ndef other(a):\n    pass\n"),
    ),
    "platform-target": (
        module("@nki.jit(platform_target='trn2')\ndef kernel(a):\n    pass\n"),
        module("@nki.jit(debug_kernel=True)\ndef kernel(a):\n    pass\n"),
    ),
    "closure": (
        module("def make(n):\n    @nki.jit\n    def kernel(a):\n        return n\n    return kernel\n"),
        module("N = 1\n\ndef make(n):\n    @nki.jit\n    def kernel(a, n):\n        return n + N\n    return kernel\n"),
    ),
    "old-namespace": (
        "import neuronxcc.nki as nki\n\n@nki.jit\ndef kernel(a):\n    pass\n",
        module("import neuronxcc.nki.typing as nt\n\n@nki.jit\ndef kernel(a: nt.tensor):\n    pass\n"),
    ),
    "module-state": (
        module("seen = []\n\n@nki.jit\ndef kernel(a):\n    seen.append(a)\n"),
        module("SIZES = [1, 2]\n\n@nki.jit\ndef kernel(a):\n    seen = []\n    seen.append(SIZES[0])\n"),
    ),
    "list-argument": (
        module("@nki.jit\ndef kernel(a, stride):\n    pass\n\nnki.simulate(kernel)(0, stride=[1, 1])\n"),
        module("@nki.jit\ndef kernel(a, stride=(1, 1)):\n    pass\n\nnki.simulate(kernel)(0, stride=(1, 2))\n"),
    ),
    "class-base": (
        module("class C:\n    x: int = 1\n\n@nki.jit\ndef kernel(a):\n    return C()\n"),
        module("class C(nl.NKIObject):\n    x: int = 1\n\n@nki.jit\ndef kernel(a):\n    return C()\n"),
    ),
    "class-keyword": (
        module("class C(nl.NKIObject, metaclass=type):\n    x = 1\n\n@nki.jit\ndef kernel(a):\n    return C()\n"),
        module("class C(Enum):\n    x = 1\n\n@nki.jit\ndef kernel(a):\n    return C.x\n"),
    ),
    "class-body": (
        module("class C(nl.NKIObject):\n    if True:\n        x = 1\n\n@nki.jit\ndef kernel(a):\n    return C()\n"),
        module(
            "class C(nl.NKIObject):\n    'Doc.'\n    x: int\n    y = 1\n    def f(self):\n        pass\n"
            "\n@nki.jit\ndef kernel(a):\n    return C()\n"
        ),
    ),
    "class-decorator": (
        module("@np.vectorize\nclass C(nl.NKIObject):\n    x = 1\n\n@nki.jit\ndef kernel(a):\n    return C()\n"),
        module("@dataclass(frozen=True)\nclass C(nl.NKIObject):\n    x: int\n\n@nki.jit\ndef kernel(a):\n    C(1)\n"),
    ),
}

# The node types that the compiler takes as they are, or that a rule looks into.
ACCEPTED = {
    "Return",
    "AugAssign",
    "Expr",
    "Pass",
    "Break",
    "Continue",
    "Assert",
    "If",
    "BoolOp",
    "UnaryOp",
    "IfExp",
    "JoinedStr",
    "Subscript",
    "List",
    "Tuple",
    "Slice",
}


LEVELS_OF = {rule.id: rule.levels for rule in RULES}


def rules_broken(source: str, *, all_functions: bool = False, level: Level | None = None) -> set[str]:
    return {finding.rule for finding in check_source(source, "k.py", all_functions=all_functions, level=level)}


def test_every_rule_has_its_cases() -> None:
    ids = [rule.id for rule in RULES]
    assert sorted(ids) == sorted(CASES)
    assert len(set(ids)) == len(ids)
    assert all(rule.message and rule.instead and rule.source for rule in RULES)


@pytest.mark.parametrize("rule", CASES)
def test_rule_finds_what_breaks_it(rule: str) -> None:
    if rule == "type-statement" and sys.version_info < (3, 12):
        assert rules_broken(CASES[rule][0]) == {"syntax"}
    else:
        for level in Level:
            assert rules_broken(CASES[rule][0], level=level) == ({rule} if level in LEVELS_OF[rule] else set())


@pytest.mark.parametrize("rule", CASES)
def test_rule_accepts_what_says_the_same(rule: str) -> None:
    for level in Level:
        assert check_source(CASES[rule][1], "k.py", level=level) == []


def test_every_kind_of_statement_and_expression_is_decided() -> None:
    """A Python release that adds a node type must add it to the table, or to what is accepted."""
    kinds = {k.__name__ for base in (ast.stmt, ast.expr) for k in base.__subclasses__() if k.__module__ == "ast"}
    looked_at = {name for rule in RULES for name in rule.nodes.split()}
    assert kinds - looked_at - ACCEPTED == set()


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("comprehension", kernel("return tuple(i for i in range(3))")),
        ("comprehension", kernel("pass", "a, n={i: i for i in range(3)}")),
        ("lambda", module("f = lambda x: x\n\n@nki.jit\ndef kernel(a):\n    return f(a)\n")),
        ("async", module("@nki.jit\nasync def kernel(a):\n    pass\n")),
        ("is", kernel("return a is None is None")),
        ("is", kernel("return None is a")),
        ("starred", kernel("first, *rest = a.shape")),
        ("starred", kernel("return (*a.shape, 1)")),
        ("matmul-operator", kernel("a @= b")),
        ("dict-key", kernel("d = {**a}")),
        ("dict-key", kernel("d = {a: 1}")),
        ("string-operation", kernel("return ', '.join(a)")),
        ("string-operation", kernel("return f'{a}'.upper()")),
        ("container-method", kernel("x = [0] * 4\nx += [1]\nx.sort()")),
        ("container-method", kernel("x = list(a.shape)\nreturn x.count(1)")),
        ("container-method", kernel("x: list[int] = []\nx.pop(0)")),
        ("container-method", kernel("d = {'a': 1}\nd.update({'b': 2})")),
        ("container-method", kernel("d = dict()\nd.popitem()")),
        ("container-method", kernel("name = f'{a}'\nreturn name.upper()")),
        ("container-method", kernel("return str(a).split()")),
        ("container-method", kernel("x = (1, 2)\nreturn x.index(2)")),
        ("container-method", kernel("x = []\ndef body(i):\n    x.insert(0, i)\nnl.fori_loop(0, 4, body)")),
        ("container-method", module("SIZES = (1, 2)\n\n@nki.jit\ndef kernel(a):\n    return SIZES.index(a)\n")),
        ("large-integer", module("MASK = (1, -2147483648)\n\n@nki.jit\ndef kernel(a):\n    return MASK[0]\n")),
        ("constant", kernel("return b'abc'")),
        ("builtin", kernel("return sorted(a)")),
        ("builtin", kernel("return getattr(nl, a)")),
        ("min-max", kernel("return max(a, key=len)")),
        ("numpy", kernel("return np.float32")),
        ("numpy", module("from numpy import zeros\n\n@nki.jit\ndef kernel(a):\n    return zeros(1)\n")),
        ("math", module("from math import ceil\n\n@nki.jit\ndef kernel(a):\n    return ceil(1.5)\n")),
        ("with", kernel("with nl.no_reorder() as block:\n    pass")),
        ("with", kernel("with nl.no_reorder(), nl.no_reorder():\n    pass")),
        ("assign-target", kernel("[x, y] = a.shape")),
        ("assign-target", kernel("a.x = a.y = 1")),
        ("assign-target", kernel("a.x: int")),
        ("dynamic-exit", kernel("for i in nl.dynamic_range(4):\n    for j in range(4):\n        return a")),
        ("dynamic-in-order", kernel("def body(i):\n    pass\nwith nl.no_reorder():\n    nl.fori_loop(0, 4, body)")),
        ("nested-function", kernel("def body(i):\n    pass\nbody(0)\nnl.fori_loop(0, 4, body)")),
        ("decorator", module("@nki.jit\n@nki.compiler.skip\ndef kernel(a):\n    pass\n")),
        ("module-state", module("class C(Enum):\n    x = 1\n\n@nki.jit\ndef kernel(a):\n    C.y = a\n")),
        ("module-state", module("t = {}\n\n@nki.jit\ndef kernel(a):\n    t['a'] = a\n")),
        (
            "module-state",
            module("n = 1\n\ndef host():\n    global n\n    n = 2\n\n@nki.jit\ndef kernel(a):\n    return n\n"),
        ),
        ("list-argument", kernel("pass", "a, stride=[1, 1]")),
        ("list-argument", module("@nki.jit\ndef kernel(a):\n    pass\n\ndef host():\n    kernel[2]([1, 2])\n")),
        ("list-argument", module("def kernel(a):\n    pass\n\nnki.jit(kernel)([1])\n")),
        ("class-base", module("class C(IntEnum):\n    x = 1\n\n@nki.jit\ndef kernel(a):\n    return C.x\n")),
        (
            "class-base",
            module("class C(nl.NKIObject, Enum):\n    x = 1\n\n@nki.jit\ndef kernel(a):\n    return C.x\n"),
        ),
        (
            "decorator",
            module(
                "class C(nl.NKIObject):\n    @property\n    def x(self):\n        return 1\n"
                "\n@nki.jit\ndef kernel(a):\n    return C().x\n"
            ),
        ),
    ],
)
def test_more_that_is_refused(rule: str, source: str) -> None:
    assert rules_broken(source) == {rule}


@pytest.mark.parametrize(
    "source",
    [
        kernel("x: list[set[int]] = []", "a: 'np.ndarray', b: np.ndarray = None"),
        kernel("return a if a is None else (b is not None)"),
        kernel("print(f'{a.shape[0]=}')"),
        kernel("if a.size == 1: ..."),
        kernel("x = []\nif a.size:\n    x = a\nx.insert(0, 1)"),
        kernel("for x in []:\n    x.sort()\n(y, z) = a\ny.insert(0, 1)"),
        kernel("x = []\nx = b.copy(a)\nx.count(1)\na.index(0)\nb.update(1)", "a, b"),
        kernel("x = {'a': [1]}\nx['a'].insert(0, 2)\nlist = a\ny = list(b)\ny.insert(0, 1)"),
        module("A, B = make(), make()\n\n@nki.jit\ndef kernel(a):\n    return A.index(a)\n"),
        kernel("sum = 1\nreturn sum"),
        kernel("for i in nl.static_range(4):\n    if i == 2:\n        continue\n    break"),
        kernel("while a:\n    nisa.register_load(a, b)"),
        module("LIMITS = {nl.float8_e4m3: 240.0}\n\n@nki.jit\ndef kernel(a):\n    return LIMITS.get(a.dtype)\n"),
        module("SIZES = [2 * i for i in range(4)]\n\n@nki.jit\ndef kernel(a):\n    return SIZES[0]\n"),
        module(
            "@dataclass\nclass C(nl.NKIObject):\n    x: int = 1\n"
            "    @staticmethod\n    def make(x):\n        return C(x)\n"
            "    def move(self, n):\n        self.x = self.x + n\n\n@nki.jit\ndef kernel(a):\n    C.make(1).move(2)\n"
        ),
        module(
            "def helper(a, op):\n    op(a)\n\ndef twice(a):\n    pass\n\n"
            "@nki.jit\ndef kernel(a):\n    helper(a, twice)\n"
        ),
    ],
)
def test_more_that_is_accepted(source: str) -> None:
    assert check_source(source, "k.py") == []


def test_only_what_kernels_reach_is_checked() -> None:
    source = module("""
        def host():
            return [x for x in np.arange(3)]

        def helper(a):
            raise ValueError

        def chosen(a):
            del a

        TABLE = {"chosen": chosen}

        class Tile(nl.NKIObject):
            def load(self):
                try:
                    pass
                finally:
                    pass

        class Host:
            pass

        @nki.jit
        def kernel(a):
            helper(a)
            TABLE["chosen"](a)
            return Tile()
    """)
    assert rules_broken(source) == {"raise", "del", "try"}
    assert rules_broken(source, all_functions=True) == {"raise", "del", "try", "comprehension", "class-base"}


def test_a_file_without_kernels_is_checked_only_when_asked() -> None:
    source = module("def conv(dst, src):\n    raise ValueError\n")
    assert check_source(source, "k.py") == []
    assert rules_broken(source, all_functions=True) == {"raise"}


def test_the_seam_of_trnrt_is_known() -> None:
    source = "from trnrt.nki import nki, nl\n\n@nki.jit\ndef kernel(a):\n    with nl.no_reorder():\n        raise a\n"
    assert rules_broken(source) == {"raise"}
    assert rules_broken(source.replace("nl.no_reorder", "nl.other")) == {"raise", "with"}


def test_extra_names_are_built_in() -> None:
    source = kernel("return sum(a)")
    assert rules_broken(source) == {"builtin"}
    assert check_source(source, "k.py", extra_names={"sum"}) == []


def test_a_finding_names_its_place_and_the_way_out() -> None:
    (finding,) = check_source("import nki\n\n\n@nki.jit\ndef kernel(a):\n    x = lambda y: y\n", "dir/k.py")
    assert (finding.file, finding.line, finding.column, finding.rule) == ("dir/k.py", 6, 9, "lambda")
    assert str(finding) == "dir/k.py:6:9: lambda is not NKI [lambda]. Define a function at module level"


def test_findings_come_in_the_order_of_the_file() -> None:
    source = module("@nki.jit\ndef kernel(a):\n    helper(a)\n    raise a\n\ndef helper(a):\n    del a\n")
    assert [finding.rule for finding in check_source(source, "k.py")] == ["raise", "del"]


@pytest.mark.parametrize("source", ["def f(:\n", "x = 1\0", "\tx = 1\n  y"])
def test_what_is_not_python_is_one_finding(source: str) -> None:
    for findings in (check_source(source, "k.py"), check_api(source, "k.py", load_api())):
        assert [finding.rule for finding in findings] == ["syntax"]


def test_deep_expressions_and_odd_escapes_are_no_trouble() -> None:
    source = kernel("x = " + " + ".join(["a"] * 500) + "\ny = '\\d'")
    assert check_source(source, "k.py") == []


# The API


def test_the_data_says_which_release_it_is() -> None:
    api = load_api()
    assert (api.nki_version, api.neuron_sdk) == ("0.6.0", "2.32.0")
    assert set(api.modules) == {"nki", "nki.isa", "nki.language"}
    assert [p.name for p in api.signature("nki.isa.tensor_copy") or ()] == ["dst", "src", "engine", "name"]
    assert api.signature("nki.isa.engine") is None
    assert "psum_num_banks" in api.modules["nki.language"].classes["_TileSize"].members


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("api-name", "nl.arange(4)"),
        ("api-name", "nl.float64"),
        ("api-name", "nki.benchmark"),
        ("api-name", "nisa.engine.tensorr"),
        ("api-name", "nl.tile_size.pmaxx"),
        ("api-name", "nl.NkiTensor.flatten"),
        ("api-name", "from nki.language import mgrid"),
        ("api-argument", "nisa.tensor_copy(dst=1, src=2, dtype=nl.float32)"),
        ("api-argument", "nisa.tensor_copy(1, 2, dst=3)"),
        ("api-argument", "nl.ndarray((1, 1), nl.float32, mask=1)"),
        ("api-argument", "nki.simulate(1, target='trn2')"),
        ("api-positional", "nisa.tensor_copy(1, 2, 3, 4, 5)"),
        ("api-positional", "nl.program_ndim(0)"),
        ("api-missing", "nisa.tensor_copy(1)"),
        ("api-missing", "nl.ndarray(dtype=nl.float32)"),
        ("api-missing", "from nki.isa import memset as fill\nfill(1)"),
    ],
)
def test_api_check_finds(rule: str, code: str) -> None:
    findings = check_api(module(code + "\n"), "k.py", load_api())
    assert [finding.rule for finding in findings] == [rule]
    assert findings[0].instead


@pytest.mark.parametrize(
    "code",
    [
        "nisa.tensor_copy(1, src=2, engine=nisa.engine.vector)",
        "nisa.tensor_copy(*args)\nnisa.tensor_copy(1, **options)",
        "nl.ndarray((nl.tile_size.pmax, 512), nl.float32, buffer=nl.psum)",
        "nl.tile_size.sbuf_fmax_bytes + nisa.nc_version.gen3.value",
        "nisa.get_nc_version() >= nisa.nc_version.gen3",
        "nki.jit(mode='auto')",
        "nl.NKIObject(x=1)",
        "nki.language.exp(1)\nnki.isa.memset(1, 0)",
        "import nki.collectives as ncc\nncc.all_reduce(1)",
        "from nki.isa.constants import oob_mode\noob_mode.anything",
        "from nki.isa import dma_engine\ndma_engine.gpsimd_dma",
        "def f(nl):\n    return nl.arange(4)",
        "nl.float32.itemsize",
    ],
)
def test_api_check_accepts(code: str) -> None:
    assert check_api(module(code + "\n"), "k.py", load_api()) == []


def test_api_check_follows_the_imports() -> None:
    for imports in ("from trnrt.nki import nl as n", "import nki.language as n", "from nki import language as n"):
        (finding,) = check_api(f"{imports}\nn.exq(1)\n", "k.py", load_api())
        assert (finding.line, finding.column, finding.rule) == (2, 1, "api-name")
        assert finding.message == "nki.language.exq does not exist in NKI 0.6.0"
        assert "exp" in finding.instead


def test_every_function_of_the_api_takes_its_own_arguments() -> None:
    """Called with all of its parameters by name, each function passes its own check."""
    api = load_api()
    for path, entries in api.modules.items():
        for name, parameters in entries.functions.items():
            arguments = ", ".join(f"{p.name}=0" for p in parameters if not p.variadic)
            code = f"import {path} as m\nm.{name}({arguments})\n"
            assert check_api(code, "k.py", api) == [], code
