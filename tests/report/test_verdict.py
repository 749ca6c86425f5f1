"""The verdict on a profile: its shares are the profile's, and each gain is that of a plan that was predicted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from timelines import matmul_program, paced, profile_of

import trnrt
from trnrt.commands.members import Backend
from trnrt.commands.records import Planning, SessionOptions
from trnrt.commands.trying import LARGER, try_others
from trnrt.nki.bottleneck import Bottleneck, Place
from trnrt.nki.profiling import Profile
from trnrt.planner.plan import Plan
from trnrt.report.documents import prediction_document
from trnrt.report.page.graph import graph_data
from trnrt.report.profiles import profile_parts
from trnrt.report.verdict import Tried, Verdict, verdict_of
from trnrt.running.profiler import predicted_us_of, profile_plan
from trnrt.text import range_text

MODEL = Path(__file__).parents[2] / "models/digits_cnn.onnx"


@cache
def digits() -> tuple[Profile, Plan]:
    (plan,) = trnrt.InferenceSession(MODEL).partition(1).plans
    return profile_plan(plan), plan


def held(kind: str, us: float, *names: str, more: int = 0) -> Verdict:
    """The verdict on a kernel of 0.7 us and a launch of 7.4 us, in which ``kind`` holds ``us``."""
    places = tuple(Place(name, "", 0, us / len(names)) for name in names)
    profile = profile_of(paced(matmul_program()))
    profile = replace(profile, benchmark_us=profile.timeline.duration / 1e6 + 7.4)
    found = verdict_of(replace(profile, bottleneck=Bottleneck(kind, 0.5, us, 2, places, more, "sentence", "")))
    assert found is not None
    return found


def test_the_largest_holder_is_named_first() -> None:
    profile, _ = digits()
    found = verdict_of(profile)
    assert found is not None and profile.bottleneck is not None
    launch = next(part.time_us for part in profile.breakdown.parts if part.part == "launch")
    assert found.sentence.startswith(f"{range_text(profile.benchmark)} predicted: ")
    assert f"the launch, a fixed cost of each call, takes {100 * launch / profile.benchmark_us:.0f} %" in found.sentence
    assert f"{100 * profile.bottleneck.us / profile.benchmark_us:.0f} % of the time" in found.sentence
    assert found.sentence.index("the launch") < found.sentence.index("of the time")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("DMA data", "the DMA queues move data in conv3"),
        ("tensor engine", "the tensor engine multiplies matrices in conv3"),
        ("vector engine", "the vector engine works on elements in conv3"),
        ("scalar latency", "the scalar engine's instructions take their fixed times in conv3"),
    ],
)
def test_each_kind_has_its_words(kind: str, words: str) -> None:
    sentence = held(kind, 100.0, "conv3").sentence
    assert words in sentence and sentence.index(words) < sentence.index("the launch")


def test_weights_and_many_places_are_said() -> None:
    weights = held("DMA data", 100.0, "(weights brought ahead)", "a").sentence
    assert "the DMA queues load weights ahead of their steps; " in weights
    assert "in a and weights brought ahead" in held("DMA data", 100.0, "a", "(weights brought ahead)").sentence
    assert "in a, b and c" in held("DMA data", 100.0, "a", "b", "c").sentence
    assert "in a, b, c and 4 more" in held("DMA data", 100.0, "a", "b", "c", more=4).sentence


def test_lines_are_said_together() -> None:
    places = tuple(Place(f"line {line}", "k.py", line, 1.0) for line in (28, 31, 27))
    profile = profile_of(paced(matmul_program()))
    found = verdict_of(replace(profile, bottleneck=Bottleneck("DMA data", 0.5, 3.0, 3, places, 0, "sentence", "")))
    assert found is not None and "in lines 27, 28 and 31" in found.sentence


def test_a_gain_is_the_ratio_of_two_predictions() -> None:
    profile, _ = digits()
    found = verdict_of(profile, [Tried("--batch 8", profile.benchmark_us / 4), Tried("--dtype bfloat16", 99.0)])
    assert found is not None
    (advice,) = found.advice
    assert advice.flags == "--batch 8", "a slower plan is no advice"
    assert advice.gain == pytest.approx(4.0)
    assert "predicted 4.00 times faster per row" in advice.text


def test_without_other_plans_the_command_is_named() -> None:
    found = verdict_of(digits()[0])
    assert found is not None
    assert (found.advice[0].flags, found.advice[0].gain) == ("--batch 8", None)


def test_a_small_model_is_planned_again() -> None:
    session = trnrt.InferenceSession(MODEL)
    options = SessionOptions(planning=Planning())
    found = try_others(session, session.partition(1), MODEL, options, 1)
    assert [one.flags for one in found] == ["--dtype bfloat16", f"--batch {LARGER}"]
    (larger,) = session.partition(LARGER).plans
    assert found[1].us_per_row == predicted_us_of(larger) / LARGER
    (narrow,) = trnrt.InferenceSession(MODEL, dtype="bfloat16").partition(1).plans
    assert found[0].us_per_row == predicted_us_of(narrow)
    assert try_others(session, session.partition(1), MODEL, replace(options, backend=Backend.NEURON), 1) == []


def test_the_terminal_and_json_say_the_same() -> None:
    profile, _ = digits()
    tried = [Tried("--batch 8", profile.benchmark_us / 4)]
    found = verdict_of(profile, tried)
    assert found is not None
    assert prediction_document(profile, tried)["verdict"] == found.document
    lines = [str(part.text) for part in profile_parts(profile, "digits", tried)[:4] if hasattr(part, "text")]
    assert lines[1:3] == [found.sentence, f"  try {found.advice[0].text}"]


def test_a_kernel_without_instructions_has_no_verdict() -> None:
    assert verdict_of(profile_of(paced(matmul_program()), bottleneck=None)) is None
    assert prediction_document(profile_of(paced(matmul_program()), bottleneck=None))["verdict"] is None


def test_the_graph_has_every_node_once_and_edges_go_on() -> None:
    profile, plan = digits()
    data = graph_data(plan, profile)
    boxes = data["boxes"]
    steps = [box for box in boxes if box["kind"] == "step"]
    nodes = [name for box in steps for name, _ in box["nodes"]] + [name for name, _, _ in data["outside"]]
    assert sorted(nodes) == sorted(node.name for node in plan.nodes)
    assert [(box["name"], profile.steps[box["step"]].name) for box in steps] == [(s.name, s.name) for s in plan.steps]
    assert data["edges"] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert all(boxes[first]["layer"] < boxes[second]["layer"] for first, second in data["edges"])
    assert len({(box["layer"], box["order"]) for box in boxes}) == len(boxes)
    assert [box["name"] for box in boxes if box["kind"] != "step"] == ["image", "logits"]
