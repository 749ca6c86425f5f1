"""``trnrt buckets``: the batch sizes to compile for, given the expected batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trnrt.commands.opening import open_session, target_notes
from trnrt.commands.options import Reporting
from trnrt.commands.records import SessionOptions
from trnrt.commands.results import deliver
from trnrt.nki.machine.timing import Range
from trnrt.report.console import note, render, working
from trnrt.running.buckets import cover, parse_distribution
from trnrt.text import name_text, range_text


def choose(model: Path, options: SessionOptions, expected: str, most: int, reporting: Reporting) -> None:
    """Choose buckets; print the cost of each expected batch alone and in its bucket."""
    weights = parse_distribution(expected)
    session = open_session(model, options)
    with working("planning and timing each batch"):
        buckets = session.choose_buckets(weights, most)
        latency = {size: session.latency(size) for size in sorted({*weights, *buckets})}
    document = {
        "schema_version": 1,
        "model": session.name,
        "target": session.target,
        "dtype": session.dtype,
        **_weights_document(weights, buckets, latency),
        "notes": target_notes(session.target),
    }
    deliver(reporting, document, _text(document))
    note(*target_notes(session.target))


def _weights_document(
    weights: Mapping[int, float], buckets: tuple[int, ...], latency: Mapping[int, Range]
) -> dict[str, Any]:
    """Each batch in its bucket, and a batch's mean cost."""
    total = sum(weights.values())
    rows = []
    for size in sorted(weights):
        bucket = cover(size, buckets)[0].bucket
        rows.append(
            {
                "batch": size,
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
    return {"buckets": list(buckets), "expected_us": mean, "one_bucket_us": latency[buckets[-1]].us, "batches": rows}


def _text(document: Mapping[str, Any]) -> str:
    from trnrt.report.tables import plain_table

    rows = [
        (
            str(row["batch"]),
            f"{100 * row['weight']:.0f} %",
            range_text(Range(row["low_us"], row["predicted_us"], row["high_us"]), ""),
            str(row["bucket"]),
            f"{row['bucket_us']:,.1f}",
            str(row["padding"]) if row["padding"] else "",
        )
        for row in document["batches"]
    ]
    table = plain_table(("batch", "share", "alone, us", "bucket", "in it, us", "padding"), rows, right=range(6))
    chosen = ",".join(map(str, document["buckets"]))
    mean, one = document["expected_us"], document["one_bucket_us"]
    predicted = f"predicted {mean:,.1f} us a batch, {one:,.1f} with the largest bucket alone"
    return render([table, "", f"{name_text(document['model'])}: --buckets {chosen}; {predicted}"])
