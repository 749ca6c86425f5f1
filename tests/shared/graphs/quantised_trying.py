"""What trnrt makes of a random quantised graph: every integer, and every float, must be equal."""

from __future__ import annotations

import random
import traceback
import warnings
from pathlib import Path

import numpy as np
import onnx

from graphs.noise import Array, Dropped
from graphs.quantised import draw_quantised
from graphs.quantised_draft import Quantised, quantised_model
from graphs.trying import CRASH, NOTHING, REFUSED, RIGHT, WRONG, Verdict, generalised, operators_of
from trnrt.inputs.npz import pack_npz

TARGETS = ("trn1", "trn2", "trn2", "trn2", "trn3")


def try_quantised(seed: int) -> tuple[Verdict, Quantised | None]:
    """Draw quantised graph ``seed`` and run it."""
    try:
        graph = draw_quantised(seed)
    except Dropped as reason:
        return Verdict(seed, NOTHING, str(reason)), None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = judge_quantised(graph)
    model = quantised_model(graph)
    verdict.seed, verdict.operators = seed, operators_of(model)
    if verdict.end not in (RIGHT, NOTHING):
        verdict.text = f"{onnx.printer.to_text(model)[:3000]}\n{verdict.text}"
    return verdict, graph


def judge_quantised(graph: Quantised) -> Verdict:
    """Run a graph on some target: all its rows, and at times some of them, where rows are independent."""
    from trnrt import InferenceSession
    from trnrt.errors import UnsupportedModelError

    chosen = random.Random(graph.seed)
    counts = [graph.rows]
    if graph.rows > 1 and graph.form != "dynamic" and chosen.random() < 0.4:
        counts.append(chosen.randint(1, graph.rows - 1))
    model, target = quantised_model(graph).SerializeToString(), chosen.choice(TARGETS)
    try:
        session = InferenceSession(model, target=target, effort=int(chosen.random() < 0.1), cache=False)
        for rows in counts:
            answers = session.run(list(graph.outputs), {name: array[:rows] for name, array in graph.feeds.items()})
            for (name, expected), got in zip(graph.outputs.items(), answers, strict=True):
                if text := find_difference(name, got, expected[:rows]):
                    return Verdict(graph.seed, WRONG, f"wrong: {graph.form}", f"{target}: {text}", rows=rows)
    except UnsupportedModelError as error:
        return Verdict(graph.seed, REFUSED, generalised(str(error))[:200], str(error))
    except Exception as error:  # of any kind: that is what is looked for
        text = "".join(traceback.format_exception(error))[-3000:]
        return Verdict(graph.seed, CRASH, f"{type(error).__name__}: {generalised(str(error))[:100]}", text)
    return Verdict(graph.seed, RIGHT, runs=len(counts))


def find_difference(name: str, got: Array, expected: Array) -> str:
    """In words, how an answer differs; nothing if it doesn't."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{name} is {got.dtype} {got.shape}, not {expected.dtype} {expected.shape}"
    wrong = np.argwhere(got != expected)
    if not len(wrong):
        return ""
    place = tuple(int(k) for k in wrong[0])
    return f"{name}: {len(wrong)} of {got.size} elements; at {place} {got[place]}, not {expected[place]}"


def write_quantised(graph: Quantised, stem: Path) -> None:
    """The model, with its inputs and what must come out."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(quantised_model(graph), f"{stem}.onnx")
    expected = {f"expected_{k}": array for k, array in enumerate(graph.outputs.values())}
    with Path(f"{stem}.npz").open("wb") as file:
        pack_npz(file, graph.feeds | expected)
