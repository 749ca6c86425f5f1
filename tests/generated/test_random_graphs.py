"""Random graphs against onnxruntime, a fixed sample of them; and that wrong answers, crashes and refusals are found.

``tests/shared/random_graphs.py`` draws and runs them; to look into graph 123:
``python tests/shared/random_graphs.py --seed 123 --count 1``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import operator_table
import pytest
import random_graphs
from graphs import ending
from graphs.draft import Draft
from graphs.noise import Dropped, Moved, shifted
from graphs.refusals import LISTED, listed, matches
from graphs.shrinking import shrink
from graphs.trying import CRASH, REFUSED, RIGHT, UNLISTED, WRONG, Case, Verdict, judge, make_case, operators_of
from graphs.whole import DRAWS, ENDS, OPSETS, UNDRAWN, draw_graph, draw_input

import trnrt
from trnrt.errors import Blocker, InputError, UnsupportedModelError
from trnrt.importer.fused.rewriting import fused_operators
from trnrt.importer.reading.functions import EXPANDED
from trnrt.operators.record import records, supported_operators
from trnrt.planner.lowering.refusals import refusal
from trnrt.planner.parts.ends import CHOOSING

COUNT, PARTS = 240, 4


@pytest.mark.parametrize("part", range(PARTS))
def test_graphs(part: int, tmp_path: Path) -> None:
    """In a process of its own, as onnxruntime may die of a node that it should refuse."""
    size, report = COUNT // PARTS, tmp_path / "found.json"
    where = ["--json", str(report), "--failures", str(tmp_path)]
    command = [sys.executable, random_graphs.__file__, "--seed", str(part * size), "--count", str(size), *where]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["ends"][RIGHT] >= 0.9 * size and found["runs"] >= 1.3 * size


# -- what is drawn -------------------------------------------------------------------------------------


def test_a_graph_is_a_number() -> None:
    for seed in (3, 8):
        one, two = (make_case(seed) for _ in range(2))
        assert one.model.SerializeToString() == two.model.SerializeToString()
        for mine, theirs in zip(one.runs, two.runs, strict=True):
            assert all(np.array_equal(mine.feeds[name], theirs.feeds[name], equal_nan=True) for name in mine.feeds)


def test_every_operator_that_runs_is_drawn_or_has_a_reason() -> None:
    """Those that are lowered, rewritten or written out, and those that the host computes at the end of a model."""
    drawn = {name for _, names in DRAWS.values() for name in names.split()} | set(ENDS.split())
    known = {*supported_operators(), *fused_operators(), *EXPANDED, *(("", name) for name in CHOOSING)}
    assert drawn | set(UNDRAWN) == set(map(operator_table.titled, known)) | REWRITTEN
    assert not drawn & set(UNDRAWN)


# Refused in general: their forms that are drawn are rewritten when the model is read. test_random_quantised.py has the
# other operators of quantised graphs.
REWRITTEN = set(
    """AffineGrid DequantizeLinear DynamicQuantizeLinear MaxUnpool QuantizeLinear Scatter ScatterElements
    ScatterND""".split()  # noqa: SIM905
)


@pytest.mark.parametrize("draw", [*DRAWS, ending.draw_end], ids=lambda draw: draw.__name__)
def test_a_draw_draws_what_it_says(draw: Any) -> None:
    wanted, seen = set(ENDS.split() if draw is ending.draw_end else DRAWS[draw][1].split()), set()
    for seed in range(800):
        opset = OPSETS[seed % len(OPSETS)] if seed % 2 else max(OPSETS)
        draft = Draft(seed, opset, "float32", "float32", seed % 4 < 2, 1 + seed % 3)
        for _ in range(3):
            with suppress(Dropped):
                draw_input(draft)
        with suppress(Dropped):
            draw(draft)
        seen |= {".".join(filter(None, (node.proto.domain, node.proto.op_type))) for node in draft.nodes}
        if wanted <= seen:
            return
    assert wanted <= seen, wanted - seen


def test_what_the_sample_covers() -> None:
    """Open batches that are cut from the end, several opsets and ranks, values that are read twice, several outputs."""
    drafts = [draw_graph(seed)[0] for seed in range(300)]
    nodes = [(draft, node) for draft in drafts for node in draft.nodes]
    assert {draft.opset for draft in drafts} == set(OPSETS)
    assert {value.clean.ndim for draft in drafts for value in draft.values.values()} >= set(range(6))
    assert sum(max(draft.readers.values(), default=0) > 1 for draft in drafts) > 100
    assert sum(len(draft.outputs()) > 1 for draft in drafts) > 100
    cut = [node for draft, node in nodes if node.proto.op_type == "Slice" and draft.opened and cuts_rows(draft, node)]
    assert len(cut) >= 10


def cuts_rows(draft: Draft, node: Any) -> bool:
    """Whether a Slice changes the batch."""
    before, after = draft.shape(node.proto.input[0]), draft.shape(node.proto.output[0])
    return before[0] == draft.rows and after[0] != before[0]


def tiny_logarithms(dtype: str, size: float) -> Draft:
    """Log of numbers of a size, in a session of a dtype."""
    draft = Draft(0, 17, "float32", dtype, opened=False, rows=2)
    source = draft.input((2, 3), "float32", "truth")
    draft.values[source] = draft.rounding.given(np.ones((2, 3), np.float32))
    (tiny,) = draft.add("Mul", [source, draft.weight(np.array(size, np.float32))])
    draft.add("Log", [tiny])
    return draft


@pytest.mark.parametrize(("dtype", "size"), [("float16", 1e-26), ("float16", 1e-7), ("bfloat16", 1e-40)])
def test_what_a_dtype_holds_as_0_is_no_number_to_compare_with(dtype: str, size: float) -> None:
    with pytest.raises(Dropped, match="Log: rounding decides too much"):
        tiny_logarithms(dtype, size)
    assert len(tiny_logarithms("float32", size).nodes) == 2
    assert len(tiny_logarithms(dtype, 1e-2).nodes) == 2


@pytest.mark.parametrize("op", ["Sigmoid", "Softplus", "Elu", "Selu"])
def test_onnxruntimes_own_rounding_counts(op: str) -> None:
    """It computes exp(x) - 1, and has 0 for sigmoid(-24): what is left over is no scale for what comes of it."""
    draft = Draft(0, 22, "float32", "float32", opened=False, rows=2, lively=False)
    source = draft.input((2, 3), "float32", "truth")
    number = -24 if op in ("Sigmoid", "Softplus") else -1e-6
    draft.values[source] = draft.rounding.given(np.full((2, 3), number, np.float32))
    (made,) = draft.add(op, [source])
    assert (draft.values[made].distance > 2.0**-25).all()
    (norm,) = draft.add("ReduceL2", [made])
    with pytest.raises(Dropped, match="Div: "):
        draft.add("Div", [made, norm])


def test_a_classifiers_logistic_is_one_too() -> None:
    draft = Draft(0, 17, "float32", "float32", opened=False, rows=1)
    source = draft.input((1, 1), "float32", "normal")
    draft.values[source] = draft.rounding.given(np.array([[-18.3]], np.float32))
    settings: dict[str, Any] = {"coefficients": [1.0, 0.0], "intercepts": [0.0, 0.0], "classlabels_ints": [3, 4]}
    for transform, least in (("LOGISTIC", 2.0**-26), ("NONE", 0)):
        made = draft.add(
            "LinearClassifier", [source], outputs=2, domain="ai.onnx.ml", post_transform=transform, **settings
        )
        assert (draft.values[made[1]].distance >= least).all()


def test_moves_of_one_node_and_the_next_do_not_cancel() -> None:
    """The logarithm of a number beside 1 is off by a rounding of 1, in every element."""
    draft = Draft(0, 10, "float32", "float32", opened=False, rows=7)
    source = draft.input((7, 83, 1), "float32", "normal")
    draft.values[source] = draft.rounding.given((draft.array(source) / 100).astype(np.float32))
    (exponential,) = draft.add("Exp", [source])
    (made,) = draft.add("ReduceLogSum", [exponential], axes=[2])
    assert draft.values[made].distance.min() > 2.0**-24


def test_what_onnxruntime_takes_away_again_counts() -> None:
    """The normal of one pixel is 0: its InstanceNormalization leaves what rounding makes of pixel and mean."""
    draft = Draft(0, 19, "float32", "float32", opened=False, rows=1)
    source = draft.input((7, 1, 1), "float32", "normal")
    draft.values[source] = draft.rounding.given(np.full((7, 1, 1), 20.3, np.float32))
    parts = [draft.weight(np.array([number], np.float32)) for number in (-1.14, -0.7303333)]
    (made,) = draft.add("InstanceNormalization", [source, *parts], epsilon=0.5)
    assert (draft.values[made].distance > 2e-7).all()


def test_what_onnxruntime_leaves_of_a_window_before_counts() -> None:
    """It takes 300 squared from a sum again, and is wrong by 4e-4 about the 0.3 beside it; float64 says so."""
    draft = Draft(0, 19, "float32", "float32", opened=False, rows=1)
    source = draft.input((1, 2, 1, 1), "float32", "normal")
    numbers = np.array([290.3, 0.34383306], np.float32).reshape(1, 2, 1, 1)
    draft.values[source] = draft.rounding.given(numbers)
    (made,) = draft.add("LRN", [source], size=1, alpha=1e-3)
    exact = numbers.astype(np.float64)
    exact = exact / (1 + 1e-3 * exact**2) ** 0.75
    value = draft.values[made]
    assert value.distance[0, 1].item() > np.abs(value.clean - exact)[0, 1].item() > 1e-7


def test_operators_that_leave_nan_open_meet_none_of_other_inputs() -> None:
    """An input with gaps may have none when the graph is drawn, and some in another run."""
    draft = Draft(0, 17, "float32", "float32", opened=True, rows=1)
    source = draft.input(("N", 5), "float32", "gaps")
    draft.values[source] = draft.rounding.given(np.ones((1, 5), np.float32))
    draft.add("ReduceMax", [source], "moves", axes=[0])
    with pytest.raises(Dropped, match="ReduceMax of gaps"):
        draft.evaluate(9, 1)


def test_rounding_moves_small_numbers_to_0_at_most() -> None:
    numbers = np.array([0, 1e-26, -1e-26, 1e-5, -1e-5, 1, np.inf, np.nan], np.float32)
    down, up = (shifted(numbers, np.asarray(share), 2.0**-14) for share in (-(2.0**-9), 2.0**-9))
    step = 2.0**-23
    np.testing.assert_allclose(down, [0, 0, 0, 1e-5 - step, step - 1e-5, 1 - 2.0**-9, np.inf, np.nan], rtol=1e-6)
    np.testing.assert_allclose(up, [0, step, -step, 1e-5 + step, -1e-5 - step, 1 + 2.0**-9, np.inf, np.nan], rtol=1e-6)


def test_what_is_a_number_only_before_rounding_is_moved_without_limit() -> None:
    moved = Moved(np.array([1, np.nan, np.nan, 2.0]), [np.array([np.nan, np.nan, 1, 2.5])], exact=False)
    assert moved.distance.tolist() == [np.inf, 0, np.inf, 0.5]


@pytest.mark.parametrize("op", ["LinearRegressor", "LinearClassifier", "GroupNormalization"])
def test_constants_that_fit_no_other_rows_are_tried_with_none(op: str) -> None:
    """Their sizes follow the batch: onnxruntime reads past them, or repeats them, where the batch is another."""
    draft = Draft(0, 21, "float32", "float32", opened=True, rows=4)
    source = draft.input(("N", 2, 3), "float32", "normal")
    if op == "GroupNormalization":
        turned = draft.move("Transpose", [source], perm=[1, 0, 2])
        parts = [draft.weight(np.ones(4, np.float32)) for _ in range(2)]
        draft.add(op, [turned, *parts], num_groups=1)
    else:
        flat = draft.move("Reshape", [source, draft.fixed([6, -1])])
        settings = {"targets": 2} if op == "LinearRegressor" else {"classlabels_ints": [7, 8], "intercepts": [0.5, 1]}
        outputs = 1 if op == "LinearRegressor" else 2
        draft.add(op, [flat], outputs=outputs, domain="ai.onnx.ml", coefficients=[0.5] * 8, **settings)
    assert draft.evaluate(4, 1)
    for rows in (1, 3, 5):
        with pytest.raises(Dropped, match=f"{op}: .* for other"):
            draft.evaluate(rows, 1)


def test_nothing_but_zeros_is_dropped() -> None:
    draft = Draft(0, 17, "float32", "float32", opened=False, rows=2)
    source = draft.input((2, 3), "float32", "normal")
    draft.values[source] = draft.rounding.given(-np.ones((2, 3), np.float32))
    with pytest.raises(Dropped, match="Relu: nothing but zeros"):
        draft.add("Relu", [source])


# -- what is found -------------------------------------------------------------------------------------


def test_the_list_of_refusals_is_the_codes_own() -> None:
    """Each reason stands in the code, so that the list can't outlive it."""
    lowered = {".".join(filter(None, operator)): operator for operator in supported_operators()}
    known = {name: operator_table.messages(records()[o].lowering, o[1]) for name, o in lowered.items()}
    known |= {name: [refusal(ir.Node("", name, [], name="n")).reason] for _, name in EXPANDED}
    left_out = [reason for reason, _ in operator_table.left_out()]
    everywhere = [*operator_table.of_the_walk(), *left_out, *(words for found in known.values() for words in found)]
    for op, reason in LISTED:
        if op != "*" and op not in known:
            sources = [path.read_text(encoding="utf-8") for path in Path(trnrt.__file__ or "").parent.rglob("*.py")]
            parts = [part.strip(" ,:") for part in re.split("…|:", reason)]
            assert all(any(part in text for text in sources) for part in parts), reason
        else:
            assert any(is_said(reason, words) for words in (everywhere if op == "*" else known[op])), (op, reason)


def is_said(reason: str, words: str) -> bool:
    """Whether a reason of the list is what the code says, at times with a value in it."""
    return reason == words or matches(words, reason)


def test_reasons_of_the_list() -> None:
    assert listed("Relu", "arithmetic on double tensors")
    assert listed("ai.onnx.ml.Imputer", "its input has 3 numbers for 2 columns")
    assert not listed("Relu", "arithmetic on int64 tensors") and not listed("Slice", "it has 3 numbers for 2 columns")


def plain_cases() -> Iterator[Case]:
    """Cases that run as most do."""
    for seed in range(1000):
        with suppress(Dropped):
            case = make_case(seed)
            given = replace(case.setting, dtype="float32", target="trn2", effort=0, twice=False)
            if (case.setting.dtype, case.setting.float_type, case.setting.fallback) == ("float32", "float32", False):
                yield replace(case, setting=replace(given, buckets=None))


def test_small_mistakes_are_found() -> None:
    """An answer that is off by a thousandth of its largest element is wrong, in nearly all graphs."""
    found = 0
    cases = list(islice(plain_cases(), 40))
    for case in cases:
        for run in case.runs:
            for k, array in enumerate(run.expected):
                if array.dtype == np.float32 and array.size:
                    moved = array.copy()
                    moved.reshape(-1)[-1] += 1e-3 * max(1.0, float(np.nanmax(np.abs(array))))
                    run.expected[k] = moved
        found += judge(case).end == WRONG
    assert found >= 0.9 * len(cases), found


def spoiled(patch: pytest.MonkeyPatch, op: str, spoil: Any) -> None:
    """Have sessions of models with this operator do something else with their answers."""
    run = trnrt.InferenceSession.run

    def spoiling(self: trnrt.InferenceSession, *args: Any) -> list[Any]:
        model = onnx.load_from_string(self.serialized())
        answers = run(self, *args)
        return spoil(answers) if op in operators_of(model) else answers

    patch.setattr(trnrt.InferenceSession, "run", spoiling)


def raising(error: Exception) -> Any:
    def spoil(_: list[Any]) -> list[Any]:
        raise error

    return spoil


DOUBLES = Blocker("n", "Tanh", "arithmetic on double tensors")
REFUSAL = UnsupportedModelError("m", [DOUBLES, Blocker("n", "Tanh", "nobody likes it")])
LISTED_REFUSAL = UnsupportedModelError("m", [DOUBLES])


@pytest.mark.parametrize(
    ("spoil", "end", "words"),
    [
        (lambda answers: [np.zeros_like(array) + 7 for array in answers], WRONG, "wrong"),
        (lambda answers: [array[None] for array in answers], WRONG, "wrong"),
        (raising(IndexError("list index 3")), CRASH, "IndexError"),
        (raising(InputError("this is 3 long")), UNLISTED, "InputError: this is #long"),
        (raising(REFUSAL), UNLISTED, "Tanh"),
        (raising(LISTED_REFUSAL), REFUSED, "Tanh: arithmetic on double tensors"),
    ],
)
def test_what_goes_wrong_is_told_and_made_small(
    spoil: Any, end: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(monkeypatch, "Reshape", spoil)
    large = (case for case in plain_cases() if "Reshape" in operators_of(case.model) and len(case.model.graph.node) > 4)
    case = next(large)
    verdict = judge(case)
    assert verdict.end == end and words in verdict.signature
    smaller = shrink(case, verdict)
    if end != REFUSED:
        assert operators_of(smaller.model) == ["Reshape"] and len(smaller.runs) == 1


def test_the_program_counts_causes() -> None:
    verdicts = [Verdict(1, RIGHT), Verdict(2, WRONG, "wrong: Slice"), Verdict(3, WRONG, "wrong: Slice")]
    counts = random_graphs.summary(verdicts)
    assert counts["causes"] == [{"end": WRONG, "signature": "wrong: Slice", "count": 2, "graphs": [2, 3]}]
    assert not random_graphs.passed(counts)
    assert random_graphs.passed(random_graphs.summary([Verdict(1, RIGHT)] * 20 + [Verdict(2, REFUSED)]))
    assert not random_graphs.passed(random_graphs.summary([Verdict(1, RIGHT)] * 18 + [Verdict(2, REFUSED)]))
