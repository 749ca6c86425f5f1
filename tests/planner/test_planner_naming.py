"""What a model calls things is data: no name becomes code, none is lost, and none is mistaken for another."""

from __future__ import annotations

import ast
import keyword
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planning import compare, drawn, modelled, onnxruntimes, planned, renamed

import trnrt
from trnrt.cache import KernelCache
from trnrt.importer import import_model
from trnrt.planner import Plan, PlanOptions, make_plan
from trnrt.planner.naming import Names, identifier, printable

ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=80)


@given(ANY_TEXT)
@example("")
@example("_")
@example("__import__")
@example("class")
@example("None")
@example("9")
@example("é")
@example("名前")
@example("x" * 500)
def test_any_name_gives_an_identifier(name: str) -> None:
    given_name = identifier(name)
    assert given_name.isidentifier() and given_name.isascii() and not keyword.iskeyword(given_name)
    assert len(given_name) <= 50 and not given_name.startswith("_")


@given(st.lists(st.tuples(ANY_TEXT, st.sampled_from(["", "w", "b"])), max_size=20))
@example([("a.w", ""), ("a", "w"), ("a_w", ""), ("A", "w"), ("a_w_2", "")])
def test_identifiers_are_unique_and_stable(wanted: list[tuple[str, str]]) -> None:
    names = Names({"nl", "nki", "t", "a"})
    first = [names.identifier(name, part) for name, part in wanted]
    assert [names.identifier(name, part) for name, part in wanted] == first
    assert len(set(first)) == len(set(wanted))
    assert not {"nl", "nki", "t", "a"} & set(first)
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in first)


@given(ANY_TEXT, st.integers(4, 120))
@example("\\" * 50, 40)
@example("\u202e" * 20, 99)
@example("\N{OLD PERSIAN SIGN A}" * 20, 99)
@example("a" * 96 + "\n\n\n", 100)
@example('"""', 100)
def test_printable_is_one_line_that_a_docstring_can_hold(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isascii() and shown.isprintable() and len(shown) <= limit
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        literal = ast.literal_eval("'''" + shown.replace("'", '"') + "\n'''")
    whole = text.replace("'", '"') + "\n"
    assert literal == whole or (literal.endswith("...\n") and whole.startswith(literal[:-4]))


NASTY = [
    'x"""\nimport os; os.system("touch {mark}")\n"""',
    "y'''\nimport os; os.system('touch {mark}')\n#",
    "a\rimport os",
    "b\x0cimport os\x0b\x1c\x85\u2028raise",
    "c\\",
    "c\\\n",
    "#",
    "{{__import__('os')}}",
    "{{0.__class__}}%s%n",
    "\u202e\u2066gnp.elif\u2069",
    "d\x00e\x1b[31m",
    "class",
    "conv2d",
    "linear_rows",
    "nl",
    "nki",
    "weights):\n    import os\ndef f(",
    "../../../etc/passwd",
    "名前 \U0001f600",
    "e" * 400 + "\n",
    "",
    " ",
    "f.w",
    "fc",
]
GRAPH = """(float[N,1,4,4] image) => (float[N,3] p, float[N,2,4,4] r, int64[N] label) {
    [n1] c = Conv<pads=[1,1,1,1]>(image, w, b)
    [n2] r = Relu(c)
    [n3] m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
    [n4] f = Flatten(m)
    [n5] g = Gemm(f, u, v)
    [n6] s = Add(g, k)
    [n7] p = Softmax(s)
    [n8] i = ArgMax<axis=1, keepdims=0>(p)
    [n9] label = Cast<to=7>(i) }"""


def net() -> onnx.ModelProto:
    constants = {"w": drawn(2, 1, 3, 3), "b": drawn(2), "u": drawn(8, 3), "v": drawn(3), "k": drawn(3)}
    return modelled(GRAPH, constants)


def parts(plan: Plan) -> ast.FunctionDef:
    """The kernel's function, after checking that the module has nothing else but a docstring and imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = ast.parse(plan.source)
        compile(plan.source, "module", "exec")
    docstring, *imports, function = module.body
    assert isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)
    assert isinstance(docstring.value.value, str)
    for statement in imports:
        assert isinstance(statement, ast.ImportFrom)
        assert statement.module == "trnrt.nki" or (statement.module or "").startswith("trnrt.kernels.")
    assert isinstance(function, ast.FunctionDef) and function.name == plan.entry
    assert [ast.unparse(decorator) for decorator in function.decorator_list] == ["nki.jit"]
    return function


def check_body(function: ast.FunctionDef) -> None:
    """Allocations, kernel calls and one return: no statement that a name could have brought."""
    *statements, last = function.body
    assert isinstance(last, ast.Return)
    for statement in statements:
        assert isinstance(statement, (ast.Assign, ast.Expr)), ast.unparse(statement)
        assert isinstance(statement.value, ast.Call), ast.unparse(statement)
        called = ast.unparse(statement.value.func)
        expected = {"nl.ndarray", "prefetch", "reserve"} if isinstance(statement, ast.Assign) else KERNELS
        assert called in expected, ast.unparse(statement)
    arguments = [argument.arg for argument in function.args.args]
    assert len(arguments) == len(set(arguments))


KERNELS = {
    "conv2d",
    "conv2d_stacked",
    "compute",
    "max_pool2d",
    "linear_rows",
    "linear_features",
    "softmax",
    "argmax",
    "warm_up",
}
VALUES = ["image", "c", "r", "m", "f", "g", "s", "p", "i", "label", "w", "b", "u", "v", "k"]
NODES = [f"n{index}" for index in range(1, 10)]


def runs(model: onnx.ModelProto, name: str, x_name: str) -> None:
    """Plan, look at the source, run: the answers are onnxruntime's."""
    feeds = {x_name: drawn(3, 1, 4, 4)}
    plan = make_plan(
        import_model(model.SerializeToString(), name=name), {x_name: (3, 1, 4, 4)}, PlanOptions("trn2", "float32")
    )
    check_body(parts(plan))
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False)
    got = session.run(None, feeds)
    # onnxruntime is asked under names that its own checks take.
    plain = onnxruntimes(net(), {"image": feeds[x_name]})
    for mine, theirs in zip(got, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_every_name_nasty(nasty: str, tmp_path: Path) -> None:
    """Each value and node has the name, with its old one behind and then in front, so that they differ."""
    mark = tmp_path / "mark"
    text = nasty.format(mark=mark)
    names = {old: f"{text}{old}" for old in [*VALUES, *NODES]}
    runs(renamed(net(), names), text, names["image"])
    runs(renamed(net(), {old: f"{old}{text}" for old in [*VALUES, *NODES]}), f"m{text}", f"image{text}")
    assert not mark.exists()


NEEDED = ["n1.w", "N1-W", "nl", "conv2d", "model", "weights_0", "biases_all", "weights_0_sb", "prefetch"]


@pytest.mark.parametrize("first", range(len(VALUES)))
def test_values_named_like_what_the_module_needs(first: int) -> None:
    """Weights of steps, kernels, modules and the entry keep their own identifiers, whichever value has such a name."""
    names = {VALUES[(first + number) % len(VALUES)]: name for number, name in enumerate(NEEDED)}
    runs(renamed(net(), names), "model", names.get("image", "image"))


@settings(max_examples=60)
@given(
    st.lists(ANY_TEXT.filter(bool), min_size=len(VALUES + NODES), max_size=len(VALUES + NODES), unique=True), ANY_TEXT
)
def test_any_names(drawn_names: list[str], model_name: str) -> None:
    names = dict(zip(VALUES + NODES, drawn_names, strict=True))
    runs(renamed(net(), names), model_name, names["image"])


@pytest.mark.parametrize("name", ["nl", "nki", "conv2d", "linear_rows", "image", "def", "", "a b/c", "n1.w", "x" * 300])
def test_models_named_like_what_the_module_needs(name: str, tmp_path: Path) -> None:
    """The file's name becomes the function's; a conv2d.onnx must not call itself."""
    folder = tmp_path / "models"
    folder.mkdir()
    path = folder / f"{name.replace('/', '_')[:100]}.onnx"
    path.write_bytes(net().SerializeToString())
    session = trnrt.InferenceSession(path)
    x = drawn(2, 1, 4, 4)
    for mine, theirs in zip(session.run(None, {"image": x}), onnxruntimes(net(), {"image": x}), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_cached_files_stay_in_the_cache(nasty: str, tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    path = cache.kernel(nasty, "pass\n")[0]
    assert path.parent == tmp_path / "cache" / "kernels"
    assert path.name.isascii() and path.name.replace(".", "_").isidentifier() and len(path.name) < 100
    assert cache.read(path) == b"pass\n"


def test_long_names_stay_apart() -> None:
    """Names that differ only behind what an identifier holds."""
    long = "a" * 300
    graph = "(float[N,4] p, float[N,4] q) => (float[N,4] y) { y = Add(p, q) }"
    model = renamed(modelled(graph), {"p": f"{long}1", "q": f"{long}2"})
    compare(model, {f"{long}1": drawn(2, 4), f"{long}2": drawn(2, 4, seed=1)})


def test_each_step_says_which_lines_call_it() -> None:
    plan = planned(net(), {"image": (3, 1, 4, 4)})
    lines = plan.source.split("\n")
    for step in plan.steps:
        first, last = step.lines
        call = "\n".join(lines[first - 1 : last]).strip()
        assert call.startswith(f"{step.kernel}(") and call.endswith(")")
        assert isinstance(ast.parse(call).body[0], ast.Expr)
        assert lines[first - 3].strip().startswith("# ")
