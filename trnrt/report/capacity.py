"""``trnrt plan``'s output: tables for a terminal, and the JSON document."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING

from rich.text import Text

from trnrt.capacity.assumptions import WORKERS, assumptions
from trnrt.capacity.queueing import FINAL_SAMPLES
from trnrt.nki.machine.targets import get_target, overlay_of, place_of
from trnrt.nki.machine.timing import WIDEST
from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.tables import plain_table
from trnrt.text import count_text, escape_text, list_text, name_text, range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.capacity.assumptions import Host
    from trnrt.capacity.choosing import Candidate
    from trnrt.capacity.instances import Fleet
    from trnrt.capacity.planning import Answer, End
    from trnrt.capacity.queueing import Waiting
    from trnrt.report.layout import Grid

_BAR = 36
MEDIAN_ERROR, WORST_ERROR = 2.6, 74.0
"""Percent: the timing model's errors over the published figures in docs/timing.md."""
MEASURED_P50, MEASURED_P99 = (1.0, 1.3), (0.8, 2.8)
"""The least and the largest ratio of measured to expected, with a stand-in for the device: see docs/scale.md."""


def capacity_document(answer: Answer) -> Document:
    """``plan``: times in microseconds, rates in requests per second; ``chosen`` is null if nothing is in time.

    A candidate's ``carries`` is for one core; its ``waiting`` is null if that is 0. ``curve`` is for one core. An
    instance's ``price`` and its costs in dollars are null if the price file doesn't have it.
    """
    question, chosen = answer.question, answer.chosen
    return {
        "schema_version": SCHEMA_VERSION,
        "model": question.model,
        "target": question.target,
        "dtype": question.dtype,
        "asked": asdict(question.demand),
        "mergeable": question.served.mergeable,
        "predicted_us": {str(size): time for size, time in question.served.predicted_us.items()},
        "low_us": {str(size): found.least_us for size, found in question.ranges.items()},
        "high_us": {str(size): found.most_us for size, found in question.ranges.items()},
        "least_us": answer.least_us,
        "candidates": [_candidate(candidate, question.demand.rps) for candidate in answer.candidates],
        "chosen": None if chosen is None else _candidate(chosen, question.demand.rps),
        "instances": [_fleet(fleet, answer) for fleet in answer.fleets],
        "ends": {end.name: _end(end, answer) for end in answer.ends},
        "curve": [{"rate": rate} | _waiting(waiting) for rate, waiting in answer.curve],
        "assumed": asdict(question.host) | {"samples": FINAL_SAMPLES},
        "sources": {name: source for name, (_, source) in assumptions().items()},
        "notes": trust_notes(question.target),
    }


def _candidate(candidate: Candidate, rps: float) -> Document:
    waiting = candidate.waiting
    return {
        "max_batch": candidate.max_batch,
        "carries": candidate.carries,
        "limited_by": candidate.limited_by,
        "alone_us": candidate.worker.alone_us,
        "device_rate": candidate.worker.device_rate,
        "host_rate": candidate.worker.host_rate if math.isfinite(candidate.worker.host_rate) else None,
        "cores": candidate.cores if waiting else None,
        "load": candidate.load(rps) if waiting else None,
        "waiting": None if waiting is None else _waiting(waiting),
    }


def _end(end: End, answer: Answer) -> Document:
    """The choice if the device takes this end of its ranges."""
    chosen = None if end.chosen is None else _candidate(end.chosen, answer.question.demand.rps)
    return {"chosen": chosen, "instances": [_fleet(fleet, answer) for fleet in end.fleets]}


def _waiting(waiting: Waiting) -> Document:
    return {name: value if math.isfinite(value) else None for name, value in asdict(waiting).items()}


def _fleet(fleet: Fleet, answer: Answer) -> Document:
    price = answer.question.prices.get(fleet.instance.name)
    return asdict(fleet.instance) | {
        "count": fleet.count,
        "for_cores": fleet.for_cores,
        "for_host": fleet.for_host,
        "limited_by": fleet.limited_by,
        "price": None if price is None else asdict(price),
        "usd_per_hour": fleet.usd_per_hour,
        "usd_per_million_requests": answer.usd_per_million(fleet),
    }


def capacity_parts(answer: Answer) -> list[RenderableType]:
    """The answer, then its candidates and the assumptions."""
    demand, question = answer.question.demand, answer.question
    asked = (
        f"{name_text(question.model)} in {question.dtype} on {question.target}: {rate_text(demand.rps)} requests/s of "
    )
    asked += f"{count_text(demand.rows, 'row')}, 99 % answered within {time_text(demand.p99_us)}"
    parts: list[RenderableType] = [
        Text(asked, "bold"),
        Text(verdict(answer)),
        *server_line(answer),
        *cost_lines(answer),
    ]
    parts += [*end_lines(answer), *uncertain_lines(answer), "", candidates_table(answer), ""]
    if answer.chosen is not None:
        parts += [instances_table(answer), "", *curve_lines(answer), ""]
    return [*parts, "Assumed:", *(Text(f"  {line}") for line in assumed_lines(answer))]


def verdict(answer: Answer) -> str:
    """The answer in one line; ``server_line`` continues it if there is a solution."""
    chosen, demand = answer.chosen, answer.question.demand
    if chosen is None or chosen.waiting is None:
        least = min((candidate.worker for candidate in answer.candidates), key=lambda worker: worker.alone_us)
        device, host = least.device_us[0], least.alone_us - least.device_us[0]
        pause = f" ({time_text(least.alone_us + least.cold_us)} after a pause)" if least.cold_us else ""
        return (
            f"not possible: even without a queue a request takes {time_text(least.alone_us)}{pause}: "
            f"{time_text(host)} on the host (--host-us) and {time_text(device)} on the device, with transfers"
        )
    fleet = answer.fleets[0]
    servers, _ = _servers(chosen, fleet)
    expected = f"{time_text(chosen.waiting.p99_us)} (+- {time_text(chosen.waiting.p99_error)})"
    return (
        f"{count_text(chosen.cores, 'core')}, batches of {chosen.max_batch} at most: expected p99 {expected}, load "
        f"{100 * chosen.load(demand.rps):.0f} %; {fleet.count:,} x {fleet.instance.name}, each runs"
        f"{f' {servers} x' if servers > 1 else ''}:"
    )


def server_line(answer: Answer) -> list[RenderableType]:
    """The command line of the planned server, to copy: it is never wrapped."""
    from rich.console import Group

    chosen = answer.chosen
    if chosen is None:
        return []
    _, workers = _servers(chosen, answer.fleets[0])
    sizes = ("--workers", str(workers), "--max-batch", str(chosen.max_batch))
    command = escape_text(shlex.join((*answer.question.serve, *sizes)))
    return [Group(Text(f"    {command}", no_wrap=True, overflow="ignore"))]  # print() itself would wrap a bare text


def cost_lines(answer: Answer) -> list[Text]:
    """The cost of the chosen instances, and where their price is from; empty without prices."""
    if not answer.fleets or answer.fleets[0].usd_per_hour is None:
        return []
    fleet = answer.fleets[0]
    price = answer.question.prices[fleet.instance.name]
    each = f" ({usd_text(price.usd_per_hour)} each)" if fleet.count > 1 else ""
    cost = f"{usd_text(fleet.usd_per_hour)} an hour{each}, {usd_text(answer.usd_per_million(fleet))} a million requests"
    source = f"the price in {name_text(price.region)} on {price.date}, {name_text(price.page)}"
    return [Text(f"{cost} at this rate: {source}")]


def end_lines(answer: Answer) -> list[Text]:
    """The cores and instances for the ends of the predicted ranges; the answer itself uses the headlines."""
    names = {"low": "least", "high": "most"}
    lines = []
    for end in answer.ends:
        needs = "not possible"
        if end.chosen is not None:
            fleet = f"{end.fleets[0].count:,} x {end.fleets[0].instance.name}"
            cost = end.fleets[0].usd_per_hour
            fleet += "" if cost is None else f", {usd_text(cost)} an hour"
            needs = f"{count_text(end.chosen.cores, 'core')}, batches of {end.chosen.max_batch} at most, {fleet}"
        lines.append(Text(f"if the device takes the {names[end.name]} of its range: {needs}"))
    wide = [str(size) for size, found in answer.question.ranges.items() if found.too_wide]
    if wide:
        limit = f"its most is above {WIDEST:g} times its least"
        lines.append(Text(f"Uncertain: the range of batch {list_text(wide)} is too wide to plan with ({limit})"))
    return lines


def uncertain_lines(answer: Answer) -> list[Text]:
    """A warning if another sample of arrivals might need another number of cores."""
    chosen, limit = answer.chosen, answer.question.demand.p99_us
    if chosen is None or chosen.waiting is None or chosen.waiting.p99_us + chosen.waiting.p99_error <= limit:
        return []
    return [Text("Uncertain: --p99 is within the standard error; other arrivals may need more cores")]


def _servers(chosen: Candidate, fleet: Fleet) -> tuple[int, int]:
    """The number of servers per instance, and of workers per server."""
    workers = math.ceil(chosen.cores / fleet.count)
    servers = math.ceil(workers / WORKERS)
    return servers, math.ceil(workers / servers)


def candidates_table(answer: Answer) -> Grid:
    """A line for each batch limit; the chosen one is marked. It fits 80 columns."""
    rps, predicted = answer.question.demand.rps, answer.question.served.predicted_us
    columns = ("", "max", "device us", "carries/s", "limit", "cores", "load", "batch", "mean ms", "p50", "p99")
    lines = []
    for candidate in answer.candidates:
        waiting, most = candidate.waiting, candidate.max_batch
        first = (">" if candidate is answer.chosen else "", str(most), f"{predicted[most]:,.1f}")
        if waiting is None:
            lines.append((*first, "0", f"{time_text(candidate.worker.alone_us)} alone", *[""] * 6))
            continue
        carried = (f"{candidate.carries:,.0f}", candidate.limited_by, f"{candidate.cores:,}")
        times = (f"{value / 1e3:.3g}" for value in (waiting.mean_us, waiting.p50_us, waiting.p99_us))
        lines.append((*first, *carried, f"{100 * candidate.load(rps):.0f} %", f"{waiting.batch:.1f}", *times))
    return plain_table(columns, lines, right=(1, 2, 3, 5, 6, 7, 8, 9, 10))


def instances_table(answer: Answer) -> Grid:
    """A line for each instance type. The mark is at the cheapest one, or without prices at the fewest rented cores."""
    costs = ("$ an hour", "$ a million") if answer.question.prices else ()
    lines = [
        (
            "" if number else ">",
            f"{fleet.count:,}",
            fleet.instance.name,
            str(fleet.instance.cores),
            str(fleet.instance.vcpus),
            f"{fleet.instance.memory_gib:,} GiB",
            fleet.limited_by,
            f"{fleet.rented_cores:,}",
            *((usd_text(fleet.usd_per_hour), usd_text(answer.usd_per_million(fleet))) if costs else ()),
        )
        for number, fleet in enumerate(answer.fleets)
    ]
    columns = ("", "number", "type", "cores", "vCPUs", "memory", "limit", "cores in all", *costs)
    return plain_table(columns, lines, right=(1, 3, 4, 5, 7, 8, 9))


def curve_lines(answer: Answer) -> list[Text]:
    """One core's p99 by its rate, as bars: a full bar is the requested p99."""
    chosen, limit = answer.chosen, answer.question.demand.p99_us
    if chosen is None or chosen.waiting is None:
        return []
    planned = (answer.question.demand.rps / chosen.cores, chosen.waiting)
    lines = [Text(f"One core's p99 by its rate, with --max-batch {chosen.max_batch}:")]
    for rate, waiting in sorted([*answer.curve, planned], key=lambda point: point[0]):
        share = waiting.p99_us / limit
        bar = "#" * max(1, round(_BAR * share)) if share <= 1 else "#" * _BAR + ">"
        load = 100 * rate / chosen.worker.saturation
        line = f"{rate:>10,.0f}/s {load:>4.0f} % {time_text(waiting.p99_us):>9}  {bar:<{_BAR + 1}}"
        lines.append(Text(f"{line}{'  planned' if waiting is planned[1] else ''}".rstrip()))
    return lines


def _merging(answer: Answer) -> str:
    """How the server makes batches of requests."""
    if answer.question.served.mergeable:
        return "waiting requests form a batch once the core is free, up to the limit, padded to the next bucket"
    return "each request is a batch by itself, as the model's rows depend on each other, or it has no batch"


def assumed_lines(answer: Answer) -> list[str]:
    """The assumptions, a line each."""
    host, demand = answer.question.host, answer.question.demand
    link = host.link
    stream = "Poisson" if demand.burst == 1 else f"gaps that vary by {demand.burst:g} of their mean"
    fleet = [f"{best.instance.name}: {best.instance.source}" for best in answer.fleets[:1]]
    return [
        f"arrivals at each core: {stream}. Workers of `trnrt serve` accept connections at random, and clients have "
        "many; an uneven spread is not included",
        f"one worker per core, with the server's rules: {_merging(answer)}. Requests arrive in one piece: "
        "--max-delay-ms delays none",
        f"the device: predicted{_predicted_line(answer)}. To it and back: {link.gbps:g} GB/s and {link.latency_us:g} "
        f"us each way, assumed ({place_of(answer.question.target)})",
        _host_line(host),
        f"cores and vCPUs are loaded to at most {100 * demand.utilisation:g} % (--utilisation); there is no spare "
        f"instance; a server has at most {WORKERS} workers, so more cores take several",
        f"with a stand-in for the device, measured p99 was {MEASURED_P99[0]:g} to {MEASURED_P99[1]:g} times the "
        f"expected one, and p50 {MEASURED_P50[0]:g} to {MEASURED_P50[1]:g} times (docs/scale.md)",
        f"{FINAL_SAMPLES:,} simulated arrivals, hence the standard error of p99 (+-); no network, TLS or proxies",
        *fleet,
    ]


def _predicted_line(answer: Answer) -> str:
    """The latency of the chosen batch, with its range."""
    chosen, ranges = answer.chosen, answer.question.ranges
    if chosen is None or chosen.max_batch not in ranges:
        return ""
    return f", a batch of {chosen.max_batch} {range_text(ranges[chosen.max_batch])}; the plan is made for the headline"


def _host_line(host: Host) -> str:
    if not (host.batch_us or host.read_us_per_mb or host.merge_us_per_mb):
        return f"the host: {host.request_us:g} us per request (--host-us), on one vCPU per worker"
    return (
        f"the host: {host.request_us:g} us per request, {host.read_us_per_mb:g} us per MB of its input, "
        f"{host.batch_us:g} us per batch and {host.merge_us_per_mb:g} us per merged MB, and up to {host.cold_us:g} us "
        "more after a pause, on one vCPU per worker; "
        "measured on another machine (trnrt/capacity/assumptions.toml; --host-us)"
    )


def trust_notes(target: str) -> list[str]:
    """Notes on how far to trust the answer."""
    found, overlay = get_target(target), overlay_of(target)
    if overlay is not None:
        trust = f"none of this ran on a device; the timing model has {overlay.describe()}"
    elif found.timing.compared:
        trust = (
            f"none of this ran on a device: the timing model is {MEDIAN_ERROR:g} % off published "
            f"figures in the median and {WORST_ERROR:g} % at worst (docs/timing.md)"
        )
    else:
        trust = f"none of this ran on a device, and {target}'s model was never compared with a measurement"
    return [trust, found.note] if found.note else [trust]


def rate_text(rate: float) -> str:
    """A rate for people: never as 1e+06."""
    return f"{rate:,.0f}" if rate >= 1e4 else f"{rate:,g}"


def usd_text(dollars: float | None) -> str:
    """An amount for people: cents, and three digits of smaller ones; a dash if it isn't known."""
    if dollars is None:
        return "-"
    whole, _, cents = f"{Decimal(f'{dollars:.3g}'):f}".partition(".")
    return f"${dollars:,.2f}" if dollars >= 1 else f"${whole}.{cents:0<2}"


def time_text(microseconds: float) -> str:
    """A duration for people: three digits and a unit."""
    if not math.isfinite(microseconds):
        return "never"
    if microseconds < 999.5:
        return f"{microseconds:.3g} us"
    if microseconds < 999_500:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds / 1e6:,.3g} s"
