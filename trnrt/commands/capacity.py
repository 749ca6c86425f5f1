"""``trnrt plan``: the capacity that a rate of requests needs, from predicted latencies; nothing is run."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.opening import SessionOptions, fixed_batch, open_session
from trnrt.commands.options import EFFORT, DType, Reporting
from trnrt.errors import OptionError, UnsupportedModelError
from trnrt.report.console import note, render, say, working
from trnrt.report.documents import as_text
from trnrt.report.files import check_writable, write_text
from trnrt.running.buckets import DEFAULT_BUCKETS

if TYPE_CHECKING:
    from trnrt.capacity.assumptions import Host
    from trnrt.capacity.workers import Served
    from trnrt.nki.machine.timing import Range
    from trnrt.planner.parts.partition import Partition
    from trnrt.session import InferenceSession

_UNITS_US = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_DURATION = re.compile(r"\s*(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})\s*(us|µs|ms|s)\s*", re.ASCII)


@dataclass(frozen=True)
class CapacityRequest:
    """What the user asks for; None where a default is to be taken.

    ``p99`` is a duration as text, ``most`` the rows of a batch at most, ``host_us`` what the host takes for a request,
    ``instance`` the name of one.
    """

    rps: float
    p99: str
    rows: int
    most: int | None
    burst: float
    host_us: float | None
    utilisation: float | None
    instance: str | None
    reporting: Reporting


def read_duration(text: str) -> float:
    """``20ms``, ``0.02s`` or ``20000us`` as microseconds; OptionError for what is no duration, or not above 0."""
    found = _DURATION.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        raise OptionError(f"{text!r} is no duration above 0", hint="a number and its unit: 20ms, 0.02s or 20000us")
    return float(found[1]) * _UNITS_US[found[2]]


def plan_capacity(model: Path, options: SessionOptions, request: CapacityRequest) -> bool:
    """Print what the rate needs; tell whether it can be answered in time at all."""
    from trnrt.capacity.assumptions import default_utilisation, host
    from trnrt.capacity.choosing import Demand
    from trnrt.capacity.instances import find_instances
    from trnrt.capacity.planning import Question, answer
    from trnrt.report.capacity import capacity_document, capacity_parts, trust_text

    utilisation = default_utilisation() if request.utilisation is None else request.utilisation
    demand = Demand(request.rps, read_duration(request.p99), request.rows, request.burst, utilisation)
    if request.reporting.json_out is not None:
        check_writable(request.reporting.json_out)
    session = open_session(model, options)
    known = find_instances(session.target, request.instance)
    assumed = host(session.target, request.host_us)
    served, ranges, limits = _predict_served(session, request, assumed, demand.p99_us)
    with working("playing through the queue"):
        command = serve_command(model, options)
        question = Question(session.name, session.target, session.dtype, command, demand, assumed, served, ranges)
        found = answer(question, limits, known)
    document = as_text(capacity_document(found))
    say(document if request.reporting.as_json else render(capacity_parts(found)))
    if request.reporting.json_out is not None:
        write_text(request.reporting.json_out, document)
    if options.effort != EFFORT:
        note(f"--effort {options.effort}: a server on a NeuronCore plans with --effort {EFFORT}, and takes other times")
    note(trust_text(session.target))
    return found.chosen is not None


def serve_command(model: Path, options: SessionOptions) -> tuple[str, ...]:
    """The words of a command line that serves the model as it was opened; the workers and the batch are left to say."""
    words = ["trnrt", "serve", str(model)]
    if options.target is not None:
        words += ["--target", options.target]
    if options.dtype != DType.FLOAT32.value:
        words += ["--dtype", options.dtype]
    if options.fallback is not None:
        words += ["--fallback", options.fallback]
    for name, sizes in options.shapes.items():
        words += ["--shape", (f"{name}=" if name else "") + "x".join(map(str, sizes))]
    return tuple(words)


def _predict_served(
    session: InferenceSession, request: CapacityRequest, host: Host, p99_us: float
) -> tuple[Served, dict[int, Range], list[int]]:
    """What the timing model says of each bucket, with the ranges, and the limits of a batch that are worth a look."""
    from trnrt.capacity.workers import Served
    from trnrt.planner.parts.partition import fallback_notes

    rows = request.rows
    if session.model.batch is None and rows != 1:
        raise OptionError(f"--rows {rows}: the model has no batch, so that a request has one row", hint="leave it out")
    sizes = _sizes(session, request)
    mergeable = sizes is not None
    predicted: dict[int, Range] = {}
    notes: list[str] = []
    for size in sizes or [rows]:
        with working(f"predicting a batch of {size}"):
            partition = session.partition(size, cached=True)
            predicted[size] = session.latency(size, partition)
            notes += [text for text in fallback_notes(partition) if len(predicted) == 1]
        headlines = {one: found.us for one, found in predicted.items()}
        served = Served(headlines, row_sent(session, size), *row_bytes(partition, size), mergeable)
        if size >= rows and served.device_us(size, size, host) + host.batch_us + host.request_us > p99_us:
            break  # a batch of that many would be late by itself: larger ones are none the better
    for text in notes:
        note(text)
    return served, predicted, [size for size in predicted if size >= min(rows, max(predicted))]


def _sizes(session: InferenceSession, request: CapacityRequest) -> list[int] | None:
    """The sizes that the server would compile, and there is no way to tell it others; None where requests can't share
    a batch."""
    from trnrt.capacity.assumptions import DEFAULT_MOST

    fixed = fixed_batch(session)
    if session.model.batch is None or session.mixing(session.random_inputs(max(2, fixed or 2))) is not None:
        if fixed is not None and request.rows != fixed:
            told = f"--rows {request.rows}: the model takes {fixed} rows at a time, which depend on each other"
            raise OptionError(told, hint=f"say --rows {fixed}")
        return None
    if fixed is not None:
        if request.most is not None:
            note(f"the model's batch is fixed at {fixed}: the server fills it up, and knows no other")
        return [fixed]
    most = request.most or DEFAULT_MOST
    return [*(size for size in DEFAULT_BUCKETS if size < most), most]


def row_sent(session: InferenceSession, rows: int) -> int:
    """Bytes of a row as a client sends them, in the model's own dtypes."""
    from trnrt.inputs.drawing import as_numpy

    shapes = session.shapes_for(rows)
    sizes = [math.prod(shapes[info.name]) * as_numpy(info.dtype).itemsize for info in session.model.inputs]
    return -(-sum(sizes) // rows)


def row_bytes(partition: Partition, rows: int) -> tuple[int, int]:
    """Bytes that a row takes to the device and back; those between the parts of a model are in its crossings."""
    from trnrt.nki.machine.dtypes import as_dtype

    if not partition.plans:
        raise UnsupportedModelError(partition.name, list(partition.blockers))
    first, last = partition.plans[0].inputs, partition.plans[-1].results
    taken, given = (sum(math.prod(t.shape) * as_dtype(t.dtype).numpy.itemsize for t in side) for side in (first, last))
    return -(-taken // rows), -(-given // rows)
