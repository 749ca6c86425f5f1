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
import operator_table
import pytest
import random_graphs
from graphs.draft import Draft
from graphs.noise import Dropped
from graphs.refusals import LISTED, listed, matches
from graphs.shrinking import shrink
from graphs.trying import CRASH, REFUSED, RIGHT, UNLISTED, WRONG, Case, Verdict, judge, make_case, operators_of
from graphs.whole import DRAWS, OPSETS, UNDRAWN, draw_graph, draw_input

import trnrt
from trnrt.errors import Blocker, InputError, UnsupportedModelError
from trnrt.planner import ops as ops
from trnrt.planner.lowering import _REGISTRY, supported_operators

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


def test_every_operator_that_is_lowered_is_drawn_or_has_a_reason() -> None:
    drawn = {name for _, names in DRAWS.values() for name in names.split()}
    lowered = {".".join(filter(None, operator)) for operator in supported_operators()}
    assert drawn | set(UNDRAWN) == lowered and not drawn & set(UNDRAWN)


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_a_draw_draws_what_it_says(draw: Any) -> None:
    wanted, seen = set(DRAWS[draw][1].split()), set()
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


# -- what is found -------------------------------------------------------------------------------------


def test_the_list_of_refusals_is_the_codes_own() -> None:
    """Each reason stands in the code, so that the list can't outlive it."""
    lowered = {".".join(filter(None, operator)): operator for operator in supported_operators()}
    known = {name: operator_table.messages(_REGISTRY[operator], operator[1]) for name, operator in lowered.items()}
    everywhere = [*operator_table.of_the_walk(), *(words for messages in known.values() for words in messages)]
    for op, reason in LISTED:
        if op == "InputError":
            sources = [path.read_text(encoding="utf-8") for path in Path(trnrt.__file__ or "").parent.glob("*.py")]
            assert any(all(part.strip(" ,:") in text for part in re.split("…|:", reason)) for text in sources), reason
        else:
            assert any(is_said(reason, words) for words in (everywhere if op == "*" else known[op])), (op, reason)


def is_said(reason: str, words: str) -> bool:
    """Whether a reason of the list is what the code says, at times with a value in it."""
    return reason == words or matches(words, reason)


def test_reasons_of_the_list() -> None:
    assert listed("Relu", "arithmetic on double tensors") and listed("Resize", "mode=cubic")
    assert not listed("Relu", "arithmetic on int64 tensors") and not listed("Slice", "mode=cubic")


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


REFUSAL = UnsupportedModelError("m", [Blocker("n", "Tanh", "mode=cubic"), Blocker("n", "Tanh", "nobody likes it")])
CUBIC = UnsupportedModelError("m", [Blocker("n", "Resize", "mode=cubic")])


@pytest.mark.parametrize(
    ("spoil", "end", "words"),
    [
        (lambda answers: [np.zeros_like(array) + 7 for array in answers], WRONG, "wrong"),
        (lambda answers: [array[None] for array in answers], WRONG, "wrong"),
        (raising(IndexError("list index 3")), CRASH, "IndexError"),
        (raising(InputError("this is 3 long")), UNLISTED, "InputError: this is #long"),
        (raising(REFUSAL), UNLISTED, "Tanh"),
        (raising(CUBIC), REFUSED, "Resize: mode=cubic"),
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
