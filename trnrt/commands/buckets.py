"""``trnrt buckets``: the batch sizes, or sequence lengths, to compile for, given the expected ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.opening import check_rows, open_session, target_notes
from trnrt.commands.options import Reporting
from trnrt.commands.records import SessionOptions
from trnrt.commands.results import deliver
from trnrt.nki.machine.timing import Range
from trnrt.report.console import note, render
from trnrt.report.progress import working
from trnrt.running.buckets import cover, parse_distribution
from trnrt.text import name_text, range_text

if TYPE_CHECKING:
    from trnrt.session import InferenceSession


_PLURALS = {"batch": "batches", "length": "lengths"}


def choose(model: Path, options: SessionOptions, expected: str, most: int, reporting: Reporting) -> None:
    """Choose buckets; print the cost of each expected batch alone and in its bucket."""
    weights = parse_distribution(expected)
    session = open_session(model, options)
    with working("planning and timing each batch"):
        buckets = session.choose_buckets(weights, most)
        latency = {size: session.latency(size) for size in sorted({*weights, *buckets})}
    document = _header(session) | _weights_document(weights, buckets, latency)
    deliver(reporting, document, _text(document, "batch", "--buckets"))
    note(*target_notes(session.target))


def choose_lengths(
    model: Path, options: SessionOptions, expected: str, rows: int, most: int, reporting: Reporting
) -> None:
    """Choose lengths; print the cost of ``rows`` rows of each expected length alone and in its bucket."""
    weights = parse_distribution(expected, "--expect-lengths", "lengths")
    session = open_session(model, options)
    check_rows(session, rows if rows != 1 else None, "--batch")
    with working("planning and timing each length"):
        lengths, latency = session.choose_lengths(weights, rows, most)
    document = _header(session) | {"rows": rows} | _weights_document(weights, lengths, latency, "length")
    deliver(reporting, document, _text(document, "length", "--lengths"))
    note(*target_notes(session.target))


def _header(session: InferenceSession) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "model": session.name,
        "target": session.target,
        "dtype": session.dtype,
        "notes": target_notes(session.target),
    }


def _weights_document(
    weights: Mapping[int, float], buckets: tuple[int, ...], latency: Mapping[int, Range], what: str = "batch"
) -> dict[str, Any]:
    """Each size in its bucket, and the mean cost of a run. ``what`` the sizes are of: "batch" or "length"."""
    total = sum(weights.values())
    rows = []
    for size in sorted(weights):
        bucket = cover(size, buckets)[0].bucket
        rows.append(
            {
                what: size,
                "weight": weights[size] / total,
                "predicted_us": latency[size].us,
                "low_us": latency[size].least_us,
                "high_us": latency[size].most_us,
                "bucket": bucket,
                "bucket_us": latency[bucket].us,
                "padding": bucket - size,
            }
        )
    mean = sum(row["weight"] * row["bucket_us"] for row in rows)
    one = latency[buckets[-1]].us
    return {"buckets": list(buckets), "expected_us": mean, "one_bucket_us": one, _PLURALS[what]: rows}


def _text(document: Mapping[str, Any], what: str, flag: str) -> str:
    from trnrt.report.tables import plain_table

    rows = [
        (
            str(row[what]),
            f"{100 * row['weight']:.0f} %",
            range_text(Range(row["low_us"], row["predicted_us"], row["high_us"]), ""),
            str(row["bucket"]),
            f"{row['bucket_us']:,.1f}",
            str(row["padding"]) if row["padding"] else "",
        )
        for row in document[_PLURALS[what]]
    ]
    table = plain_table((what, "share", "alone, us", "bucket", "in it, us", "padding"), rows, right=range(6))
    chosen = ",".join(map(str, document["buckets"]))
    mean, one = document["expected_us"], document["one_bucket_us"]
    predicted = f"predicted {mean:,.1f} us a batch, {one:,.1f} with the largest bucket alone"
    return render([table, "", f"{name_text(document['model'])}: {flag} {chosen}; {predicted}"])
