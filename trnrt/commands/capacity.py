"""``trnrt plan``: the capacity that a rate of requests needs, from predicted latencies; nothing is run."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.opening import fixed_batch, open_session
from trnrt.commands.options import EFFORT, Reporting
from trnrt.commands.records import CapacityDemand, Planning, SessionOptions
from trnrt.commands.repeating import planning_flags
from trnrt.commands.results import deliver
from trnrt.errors import OptionError, UnsupportedModelError
from trnrt.report.console import note, render
from trnrt.report.files import check_writable
from trnrt.report.progress import working
from trnrt.running.buckets import DEFAULT_BUCKETS

if TYPE_CHECKING:
    from trnrt.capacity.assumptions import Host
    from trnrt.capacity.workers import Served
    from trnrt.nki.machine.timing import Range
    from trnrt.planner.parts.partition import Partition
    from trnrt.session import InferenceSession

_UNITS_US = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_DURATION = re.compile(r"\s*(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})\s*(us|µs|ms|s)\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[\d.]+\s*", re.ASCII)


def read_duration(text: str) -> float:
    """``20ms``, ``0.02s`` or ``20000us`` as microseconds; OptionError unless it is a duration above 0."""
    found = _DURATION.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        wrong = "has no unit" if _NUMBER.fullmatch(text) else "is no duration above 0"
        raise OptionError(f"{text!r} {wrong}", hint="give a number and its unit: 20ms, 0.02s or 20000us")
    return float(found[1]) * _UNITS_US[found[2]]


def plan_capacity(model: Path, options: SessionOptions, asked: CapacityDemand, reporting: Reporting) -> bool:
    """Print the cores and instances for the rate; return whether it can be answered in time at all."""
    from trnrt.capacity.assumptions import default_utilisation, host
    from trnrt.capacity.choosing import Demand
    from trnrt.capacity.instances import find_instances
    from trnrt.capacity.planning import Question, answer
    from trnrt.capacity.prices import check_priced, read_prices
    from trnrt.report.capacity import capacity_document, capacity_parts, trust_notes

    utilisation = default_utilisation() if asked.utilisation is None else asked.utilisation
    demand = Demand(asked.rps, read_duration(asked.p99), asked.rows, asked.burst, utilisation)
    if reporting.json_out is not None:
        check_writable(reporting.json_out)
    session = open_session(model, options)
    known = find_instances(session.target, asked.instance)
    prices = {} if asked.prices is None else read_prices(asked.prices)
    if prices:
        check_priced(prices, known)
    assumed = host(session.target, asked.host_us)
    served, ranges, limits = _predict_served(session, asked, assumed, demand.p99_us)
    with working("playing through the queue"):
        command = serve_command(model, options.planning)
        question = Question(
            session.name, session.target, session.dtype, command, demand, assumed, served, ranges, prices
        )
        found = answer(question, limits, known)
    deliver(reporting, capacity_document(found), render(capacity_parts(found)))
    if options.effort != EFFORT:
        note(f"--effort {options.effort}: a server on a NeuronCore plans with --effort {EFFORT}, so its times differ")
    note(*trust_notes(session.target))
    return found.chosen is not None


def serve_command(model: Path, planning: Planning) -> tuple[str, ...]:
    """The command line that serves the model as it was opened, without its workers and its batch."""
    return ("trnrt", "serve", str(model), *planning_flags(planning))


def _predict_served(
    session: InferenceSession, asked: CapacityDemand, host: Host, p99_us: float
) -> tuple[Served, dict[int, Range], list[int]]:
    """The predicted latency of each bucket, the ranges, and the batch limits to consider."""
    from trnrt.capacity.workers import Served
    from trnrt.planner.parts.partition import fallback_notes

    rows = asked.rows
    if session.model.batch is None and rows != 1:
        raise OptionError(f"--rows {rows}: the model has no batch, so a request has one row", hint="leave --rows out")
    sizes = _sizes(session, asked)
    mergeable = sizes is not None
    predicted: dict[int, Range] = {}
    notes: list[str] = []
    tried = sizes or [rows]
    for at, size in enumerate(tried, 1):
        with working(f"predicting a batch of {size} ({at} of {len(tried)} at most)"):
            partition = session.partition(size, cached=True)
            predicted[size] = session.latency(size, partition)
            notes += [text for text in fallback_notes(partition) if len(predicted) == 1]
        headlines = {one: found.us for one, found in predicted.items()}
        served = Served(headlines, row_sent(session, size), *row_bytes(partition, size), mergeable)
        if size >= rows and served.device_us(size, size, host) + host.batch_us + host.request_us > p99_us:
            break  # such a batch is late by itself, and so are larger ones
    note(*notes)
    return served, predicted, [size for size in predicted if size >= min(rows, max(predicted))]


def _sizes(session: InferenceSession, asked: CapacityDemand) -> list[int] | None:
    """The batch sizes that the server compiles; None if requests can't share a batch."""
    from trnrt.capacity.assumptions import DEFAULT_MOST

    fixed = fixed_batch(session)
    if session.model.batch is None:
        return None
    if (mixes := session.mixing(session.blank_inputs(max(2, fixed or 2)))) is not None:
        if fixed is not None and asked.rows != fixed:
            reason = f"--rows {asked.rows}: the model takes {fixed} rows at a time, which depend on each other"
            raise OptionError(reason, hint=f"use --rows {fixed}")
        note(f"requests are not merged: the rows of a batch are not independent, {mixes}")
        return None
    if fixed is not None:
        if asked.max_batch is not None:
            note(f"the model's batch is fixed at {fixed}: the server pads every batch to it")
        return [fixed]
    most = asked.max_batch or DEFAULT_MOST
    return [*(size for size in DEFAULT_BUCKETS if size < most), most]


def row_sent(session: InferenceSession, rows: int) -> int:
    """Bytes of a row as a client sends them, in the model's own dtypes."""
    from trnrt.inputs.drawing import as_numpy

    shapes = session.shapes_for(rows)
    sizes = [math.prod(shapes[info.name]) * as_numpy(info.dtype).itemsize for info in session.model.inputs]
    return -(-sum(sizes) // rows)


def row_bytes(partition: Partition, rows: int) -> tuple[int, int]:
    """Bytes of a row to the device and back; bytes between a model's parts are in its crossings."""
    from trnrt.nki.machine.dtypes import as_dtype

    if not partition.plans:
        raise UnsupportedModelError(partition.name, list(partition.blockers))
    first, last = partition.plans[0].inputs, partition.plans[-1].results
    taken, given = (sum(math.prod(t.shape) * as_dtype(t.dtype).numpy.itemsize for t in side) for side in (first, last))
    return -(-taken // rows), -(-given // rows)
