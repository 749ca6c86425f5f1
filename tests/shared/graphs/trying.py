"""What trnrt makes of a graph: right, wrong, a crash, or refused with a reason."""

from __future__ import annotations

import re
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from graphs.draft import SMALLEST, Draft, modelled
from graphs.noise import NOISE, Array, Dropped, Moved, session_of
from graphs.refusals import listed
from graphs.whole import Setting, draw_graph

RIGHT, WRONG, CRASH, REFUSED, UNLISTED, NOTHING = "right", "wrong", "crash", "refused", "not listed", "nothing"
FAILURES = (WRONG, CRASH, UNLISTED)
OTHER_ROWS = (1, 2, 3, 4, 5, 6, 7, 9)
TRIES = 3
# Of what rounding moves an element by, as the nodes are run again (see ``noise``); and of the noise, of an element and
# of the largest one of its tensor.
TIMES_MOVED, OF_ELEMENT, OF_LARGEST = 32, 8, 4


@dataclass
class Run:
    """The inputs of one run, what must come out, how far each output may be off, and every value in between."""

    rows: int
    feeds: dict[str, Array]
    expected: list[Any]
    tolerances: list[Array | None]
    values: dict[str, Moved]


@dataclass
class Case:
    """A model with its runs."""

    model: onnx.ModelProto
    setting: Setting
    runs: list[Run]
    draft: Draft
    outputs: list[str]


@dataclass
class Verdict:
    """What became of a graph. ``signature`` is the same for failures of one cause, more or less."""

    seed: int
    end: str
    signature: str = ""
    text: str = ""
    runs: int = 0
    rows: int = 0
    operators: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)


def make_case(seed: int) -> Case:
    """Graph ``seed`` with its runs. Dropped where nothing could be drawn, or onnxruntime refuses the whole."""
    draft, given = draw_graph(seed)
    if not draft.nodes:
        raise Dropped("no node was drawn")
    outputs = draft.outputs()
    model = modelled(draft, [node.proto for node in draft.nodes], draft.inputs, outputs)
    return Case(model, given, runs_of(draft, model, given, outputs), draft, outputs)


def runs_of(draft: Draft, model: onnx.ModelProto, given: Setting, outputs: Sequence[str]) -> list[Run]:
    """A run of the rows that the graph was drawn with; where the batch is open, of others, else of two batches."""
    session = session_of(model)
    counts = [given.rows]
    if given.opened:
        counts += draft.random.sample(OTHER_ROWS, 2) + [0] * draft.chance(0.08)
    runs = [run_of(draft, session, rows, outputs) for rows in dict.fromkeys(counts)]
    known = [run for run in runs if run is not None]
    if runs[0] is None or not known:
        raise Dropped("no inputs were found that can be compared")
    if states_batch(model, given.rows):
        other = run_of(draft, session, given.rows + len(OTHER_ROWS), outputs)
        known += [] if other is None else [joined(known[0], other)]
    return known


def run_of(
    draft: Draft, session: onnxruntime.InferenceSession, rows: int, outputs: Sequence[str], attempts: int = TRIES
) -> Run | None:
    """A run with inputs that can be compared; None where none were found, or onnxruntime does not take so many rows."""
    read = {info.name for info in session.get_inputs()}
    for attempt in range(attempts):
        try:
            values = draft.evaluate(rows, draft.seed + attempt)
            feeds = {given.name: values[given.name].clean for given in draft.inputs if given.name in read}
            expected = session.run(None, feeds)
        except Dropped as reason:
            draft.dropped[f"with other inputs: {reason}"] += 1
        except Exception:  # of any kind: it is onnxruntime that does not want it
            draft.dropped["onnxruntime does not run the whole"] += 1
        else:
            tolerances = [tolerance(values[name], draft.rounding_dtype()) for name in outputs]
            return Run(rows, feeds, expected, tolerances, values)
    return None


def states_batch(model: onnx.ModelProto, rows: int) -> bool:
    """Whether all inputs and outputs say that dimension 0 is ``rows``: then trnrt takes several batches at once."""
    infos = (*model.graph.input, *model.graph.output)
    shapes = [[dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in infos]
    return all(shape[:1] == [rows] for shape in shapes) and all(len(shape) > 1 for shape in shapes)


def joined(one: Run, two: Run) -> Run:
    """Two batches as one input."""
    feeds = {name: np.concatenate([array, two.feeds[name]]) for name, array in one.feeds.items()}
    expected = [np.concatenate(pair) for pair in zip(one.expected, two.expected, strict=True)]
    tolerances = [
        None if mine is None or theirs is None else np.concatenate([mine, theirs])
        for mine, theirs in zip(one.tolerances, two.tolerances, strict=True)
    ]
    return Run(one.rows + two.rows, feeds, expected, tolerances, {})


def tolerance(value: Moved, dtype: str) -> Array | None:
    """How far each element may be off; None where it must be equal.

    32 times what rounding moved it by, and some units of rounding of it and of the largest element.
    """
    clean = value.clean
    if clean.dtype.kind != "f":
        return None
    size = np.abs(np.where(np.isfinite(clean), clean, 0).astype(np.float64))
    noise = max(NOISE[dtype], NOISE[str(clean.dtype)])
    largest = size.max(initial=SMALLEST)
    found: Array = TIMES_MOVED * value.distance + noise * (OF_ELEMENT * size + OF_LARGEST * largest)
    return found


def operators_of(model: onnx.ModelProto) -> list[str]:
    """The operators of a model, each once, in the order of its nodes; Constant is none."""
    names = [".".join(filter(None, (node.domain, node.op_type))) for node in model.graph.node]
    return [name for name in dict.fromkeys(names) if name != "Constant"]


def judge(case: Case) -> Verdict:
    """Run a case."""
    from trnrt.errors import KernelError, TrnrtError, UnsupportedModelError

    run = case.runs[0]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            session = session_for(case, folder)
            for run in case.runs:
                answers = session.run(None, run.feeds)
                wrong = difference(case, run, answers)
                if wrong:
                    return Verdict(0, WRONG, "wrong", wrong, rows=run.rows)
                if case.setting.twice and not same(session_for(case, folder).run(None, run.feeds), answers):
                    return Verdict(0, WRONG, "wrong from the cache", "", rows=run.rows)
        except KernelError as error:
            return crashed(error, run)
        except UnsupportedModelError as error:
            reasons = [(blocker.op, blocker.reason) for blocker in error.blockers]
            return refused(reasons, run)
        except TrnrtError as error:
            return refused([(type(error).__name__, str(error))], run)
        except Exception as error:  # of any kind: that is what is looked for
            return crashed(error, run)
    return Verdict(0, RIGHT)


def session_for(case: Case, folder: str) -> Any:
    """A session as the graph's setting says."""
    from trnrt import InferenceSession

    given = case.setting
    return InferenceSession(
        case.model.SerializeToString(),
        target=given.target,
        dtype=given.dtype,
        effort=given.effort,
        buckets=given.buckets,
        fallback="onnxruntime" if given.fallback else None,
        cache=given.twice,
        cache_dir=Path(folder),
    )


def crashed(error: Exception, run: Run) -> Verdict:
    """Where and how."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "trnrt" in f.filename or "kernels" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
    words = generalised(str(error).split("\n")[0])[:100]
    text = "".join(traceback.format_exception(error))[-3000:]
    return Verdict(0, CRASH, f"{type(error).__name__} in {place}: {words}", text, rows=run.rows)


def refused(reasons: list[tuple[str, str]], run: Run) -> Verdict:
    """Whether every reason is one of the list."""
    strange = [(op, reason) for op, reason in reasons if not listed(op, reason)]
    op, reason = (strange or reasons)[0]
    end = UNLISTED if strange else REFUSED
    return Verdict(0, end, f"{op}: {generalised(reason)}"[:200], reason, rows=run.rows)


def generalised(text: str) -> str:
    """Without numbers and names."""
    return re.sub(r"'[^']*'", "…", re.sub(r"-?\d[\d., ]*", "#", text))


def difference(case: Case, run: Run, answers: Sequence[Any]) -> str:
    """In words, how an answer differs from onnxruntime's; nothing where none does."""
    names = [info.name for info in case.model.graph.output]
    for name, mine, theirs, allowed in zip(names, answers, run.expected, run.tolerances, strict=True):
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        if mine.shape != theirs.shape or mine.dtype.kind != theirs.dtype.kind:
            return f"{name} is {mine.dtype} {mine.shape}, not {theirs.dtype} {theirs.shape}"
        if allowed is None:
            if not np.array_equal(mine, theirs):
                return f"{name}: {mine.reshape(-1)[:6]}, not {theirs.reshape(-1)[:6]}"
            continue
        if mine.dtype != theirs.dtype:
            return f"{name} is {mine.dtype}, not {theirs.dtype}"
        with np.errstate(all="ignore"):
            apart = np.abs(mine.astype(np.float64) - theirs.astype(np.float64))
            wrong = ~((apart <= allowed) | (mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))
        if wrong.any():
            place = tuple(int(k) for k in np.argwhere(wrong)[0])
            return (
                f"{name} {mine.shape}: {int(wrong.sum())} of {mine.size} elements; at {place} "
                f"{mine[place]:.8g}, not {theirs[place]:.8g}, allowed is {allowed[place]:.2g}"
            )
    return ""


def same(mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Bit for bit; texts are compared as texts."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(mine, theirs, strict=True)]
    return all(a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes() for a, b in pairs)
