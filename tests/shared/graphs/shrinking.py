"""A graph that fails, as small as it can be made: one run, one output, few nodes, the usual session if that does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx

from graphs.draft import Input, modelled
from graphs.noise import session_of
from graphs.trying import FAILURES, Case, Run, Verdict, judge, tolerance

Nodes = list[onnx.NodeProto]
PLAIN = {"dtype": "float32", "target": "trn2", "effort": 0, "fallback": False, "twice": False, "buckets": None}


def shrink(case: Case, verdict: Verdict) -> Case:
    """A smaller case that fails in the same way."""
    for run in case.runs:
        if run.rows == verdict.rows:
            case = kept(case, replace_case(case, runs=[run]), verdict)
    if len(case.runs) == 1 and case.runs[0].values:
        for smaller in (early_outputs, late_nodes, without_nodes):
            case = next((found for found in smaller(case) if fails(found, verdict)), case)
    for name, value in PLAIN.items():
        plainer = replace(case.setting, **{name: value})  # type: ignore[arg-type]
        case = kept(case, replace_case(case, setting=plainer), verdict)
    return case


def replace_case(case: Case, **changes: object) -> Case:
    return replace(case, **changes)  # type: ignore[arg-type]


def kept(case: Case, other: Case, verdict: Verdict) -> Case:
    return other if fails(other, verdict) else case


def fails(case: Case, verdict: Verdict) -> bool:
    """Whether a case fails as the verdict says."""
    found = judge(case)
    return found.end in FAILURES and (found.end, found.signature) == (verdict.end, verdict.signature)


def early_outputs(case: Case) -> Iterator[Case]:
    """What makes one value, for each value from the first to the last."""
    nodes = protos(case)
    for position, node in enumerate(nodes):
        for name in node.output:
            made = cut(case, needed(nodes[: position + 1], [name]), [name])
            if made is not None:
                yield made


def late_nodes(case: Case) -> Iterator[Case]:
    """The last nodes only, from one on: what others make becomes an input."""
    nodes = protos(case)
    for count in range(1, len(nodes)):
        made = cut(case, needed(nodes[-count:], case.outputs), case.outputs)
        if made is not None:
            yield made


def without_nodes(case: Case) -> Iterator[Case]:
    """Without one node or another: the fewest that are left first."""
    nodes = protos(case)
    for position in range(len(nodes)):
        made = cut(case, needed(nodes[:position] + nodes[position + 1 :], case.outputs), case.outputs)
        if made is not None:
            yield made


def protos(case: Case) -> Nodes:
    return [node for node in case.model.graph.node if node.op_type != "Constant"]


def needed(nodes: Nodes, outputs: Sequence[str]) -> Nodes:
    """Those that the outputs need."""
    wanted, found = set(outputs), []
    for node in reversed(nodes):
        if wanted & set(node.output):
            wanted |= set(node.input)
            found.append(node)
    return found[::-1]


def cut(case: Case, nodes: Nodes, outputs: Sequence[str]) -> Case | None:
    """These nodes as a case; what no node of them makes is an input. None where onnxruntime does not run that."""
    (run,) = case.runs
    made = {name for node in nodes for name in node.output}
    if not nodes or not set(outputs) <= made:
        return None
    names = dict.fromkeys(n for node in nodes for n in node.input if n and n not in made)
    inputs = [as_input(case, run, name) for name in names if name not in case.draft.constants]
    feeds = {given.name: run.values[given.name].clean for given in inputs}
    model = modelled(case.draft, nodes, inputs, outputs)
    try:
        expected = session_of(model).run(None, feeds)
    except Exception:  # of any kind: a model that onnxruntime does not run tells nothing
        return None
    tolerances = [tolerance(run.values[name], case.draft.rounding_dtype()) for name in outputs]
    smaller = Run(run.rows, feeds, expected, tolerances, run.values)
    return replace(case, model=model, runs=[smaller], outputs=list(outputs))


def as_input(case: Case, run: Run, name: str) -> Input:
    """A value as an input: as it is declared, or with the batch open where its first dimension is the batch's size."""
    for given in case.draft.inputs:
        if given.name == name:
            return given
    array = run.values[name].clean
    shape: tuple[int | str, ...] = tuple(array.shape)
    if case.setting.opened and shape and shape[0] == run.rows:
        shape = ("N", *shape[1:])
    return Input(name, shape, str(array.dtype), "normal")
