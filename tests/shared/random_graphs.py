"""Random graphs against onnxruntime: each is right, or refused with a reason of the list.

    python tests/shared/random_graphs.py --seed 0 --count 10000 -j 2 --json found.json

``--quantised``: quantised graphs, which must give the very integers that numpy does.

A graph is a number. Each that fails is made small and written as ``graph_<number>.onnx`` with its inputs and the
expected outputs (``.npz``); failures of one cause are counted together. Exit code 1 says that some graph failed, or
that too many were refused.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from graphs.noise import Dropped
from graphs.quantised_trying import try_quantised, write_quantised
from graphs.shrinking import shrink
from graphs.trying import CRASH, FAILURES, NOTHING, REFUSED, RIGHT, WRONG, Case, Verdict, judge, make_case, operators_of

from trnrt.inputs.npz import pack_npz

MOST_REFUSED = 0.05
FAILED = Path(tempfile.gettempdir()) / "random_graphs"


def try_quantised_graph(seed: int, folder: Path | None, begun: Callable[[], None] = lambda: None) -> Verdict:
    """Draw quantised graph ``seed`` and run it; what fails is written."""
    begun()
    verdict, graph = try_quantised(seed)
    if verdict.end in FAILURES and folder is not None and graph is not None:
        write_quantised(graph, folder / f"quantised_{seed}")
    return verdict


def try_graph(seed: int, folder: Path | None, begun: Callable[[], None] = lambda: None) -> Verdict:
    """Draw graph ``seed`` and run it; what fails is made small and written. ``begun`` is called before trnrt runs."""
    try:
        case = make_case(seed)
    except Dropped as reason:
        return Verdict(seed, NOTHING, str(reason))
    begun()
    verdict = judge(case)
    operators = operators_of(case.model)
    if verdict.end in FAILURES:
        smaller = shrink(case, verdict)
        if verdict.end == WRONG:
            verdict.signature += f": {', '.join(operators_of(smaller.model))}"
        verdict.text = f"{described(smaller)}\n{verdict.text}"
        if folder is not None:
            write(smaller, folder / f"graph_{seed}")
    verdict.seed, verdict.runs, verdict.operators = seed, len(case.runs), operators
    verdict.dropped = dict(case.draft.dropped)
    return verdict


def described(case: Case) -> str:
    """The model as text, and how it was run."""
    return f"{onnx.printer.to_text(case.model)[:3000]}\nrows {[run.rows for run in case.runs]}, {case.setting}"


def write(case: Case, stem: Path) -> None:
    """The model, and inputs and outputs of its first run."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model, f"{stem}.onnx")
    run = case.runs[0]
    outputs = {f"expected_{k}": np.asarray(array) for k, array in enumerate(run.expected)}
    arrays = {name: array for name, array in (run.feeds | outputs).items() if array.dtype != object}
    with Path(f"{stem}.npz").open("wb") as file:
        pack_npz(file, arrays)


# -- processes ---------------------------------------------------------------------------------------


def work(pipe: Connection, folder: Path | None, quantised: bool) -> None:
    """Try the graphs whose numbers come in. None says that onnxruntime has done its part."""
    attempt = try_quantised_graph if quantised else try_graph
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            pipe.send(attempt(pipe.recv(), folder, lambda: pipe.send(None)))


def started(folder: Path | None, quantised: bool) -> Connection:
    """A process that waits for numbers."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=work, args=(theirs, folder, quantised), daemon=True).start()
    theirs.close()
    return ours


def verdicts(seeds: Iterable[int], processes: int, folder: Path | None, quantised: bool = False) -> Iterator[Verdict]:
    """The verdicts, as they come. A process that dies is a crash, unless onnxruntime was at work; another follows."""
    left = iter(seeds)
    busy: dict[Connection, Verdict] = {}

    def give(pipe: Connection) -> None:
        seed = next(left, None)
        if seed is not None:
            pipe.send(seed)
            busy[pipe] = Verdict(seed, NOTHING, "onnxruntime died")

    for _ in range(processes):
        give(started(folder, quantised))
    while busy:
        for pipe in wait(list(busy)):
            assert isinstance(pipe, Connection)
            ended = busy.pop(pipe)
            try:
                verdict = pipe.recv()
            except (EOFError, ConnectionResetError):
                yield ended
                give(started(folder, quantised))
                continue
            if verdict is None:
                busy[pipe] = Verdict(ended.seed, CRASH, "the process died")
                continue
            yield verdict
            give(pipe)


# -- the program -------------------------------------------------------------------------------------


def summary(found: list[Verdict]) -> dict[str, Any]:
    """The counts, and failures by cause."""
    ends = Counter(verdict.end for verdict in found)
    tried = len(found) - ends[NOTHING]
    causes: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in found:
        if verdict.end != RIGHT:
            causes.setdefault((verdict.end, verdict.signature), []).append(verdict)
    ordered = sorted(causes.items(), key=lambda item: -len(item[1]))
    return {
        "graphs": tried,
        "runs": sum(verdict.runs for verdict in found),
        "ends": dict(ends),
        "refused_share": ends[REFUSED] / max(1, tried),
        "causes": [
            {"end": end, "signature": words, "count": len(all_), "graphs": [v.seed for v in all_][:20]}
            for (end, words), all_ in ordered
        ],
        "operators": dict(Counter(op for verdict in found for op in verdict.operators).most_common()),
        "dropped": dict(sum((Counter(verdict.dropped) for verdict in found), Counter[str]()).most_common()),
    }


def passed(counts: dict[str, Any]) -> bool:
    """Nothing wrong, no crash, no refusal but those of the list, and few of them."""
    return not any(counts["ends"].get(end) for end in FAILURES) and counts["refused_share"] <= MOST_REFUSED


def show(counts: dict[str, Any], found: list[Verdict]) -> None:
    """Print what was found: each cause, with the text of its first graph where that failed."""
    print(f"{counts['graphs']} graphs, {counts['runs']} runs: {counts['ends']}; refused {counts['refused_share']:.1%}")
    texts = {verdict.seed: verdict.text for verdict in found if verdict.end in FAILURES}
    for cause in counts["causes"]:
        print(f"{cause['count']:5} {cause['end']}: {cause['signature']} (graphs {cause['graphs'][:5]})")
        if cause["end"] in FAILURES:
            print("      " + texts[cause["graphs"][0]].replace("\n", "\n      "))


def counted(made: Iterable[Verdict], total: int) -> list[Verdict]:
    """All of them, with a bar that grows on a terminal."""
    if not sys.stderr.isatty():
        return list(made)
    from rich.progress import track

    return list(track(made, description="graphs", total=total))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random graphs against onnxruntime.")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first graph")
    parser.add_argument("--count", type=int, default=200, help="how many graphs")
    parser.add_argument("--quantised", action="store_true", help="quantised graphs, against integers of numpy")
    parser.add_argument("-j", "--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was found")
    parser.add_argument("--failures", type=Path, default=FAILED, help=f"where graphs that fail are written ({FAILED})")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    seeds = range(given.seed, given.seed + given.count)
    found = counted(verdicts(seeds, given.processes, given.failures, given.quantised), given.count)
    counts = summary(found)
    show(counts, found)
    print(f"{time.monotonic() - start:.0f} s; failed graphs are in {given.failures}")
    if given.json:
        bad = [asdict(verdict) for verdict in found if verdict.end in FAILURES]
        given.json.write_text(json.dumps({**counts, "failed": bad}, indent=1), encoding="utf-8")
    return 0 if passed(counts) else 1


if __name__ == "__main__":
    sys.exit(main())
