"""A model's worker in ``trnrt serve``: service times from predicted latencies and the host's times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trnrt.capacity.assumptions import QUEUE, Host
from trnrt.capacity.queueing import Worker
from trnrt.running.buckets import cover


@dataclass(frozen=True)
class Served:
    """A model's microseconds on the device by bucket, and bytes per row.

    A client sends ``row_sent``; ``row_in`` go to the device, ``row_out`` come back. ``mergeable``: requests may share
    a batch. A model whose rows depend on each other has a single bucket, the rows of a request.
    """

    predicted_us: Mapping[int, float]
    row_sent: int
    row_in: int
    row_out: int
    mergeable: bool

    def device_us(self, rows: int, most: int, host: Host) -> float:
        """Microseconds for ``rows`` rows on the device with transfers, in the buckets up to ``most``."""
        buckets = sorted(size for size in self.predicted_us if size <= most) or sorted(self.predicted_us)[:1]
        return sum(
            self.predicted_us[part.bucket]
            + host.link.transfer_us(part.bucket * self.row_in)
            + host.link.transfer_us(part.bucket * self.row_out)
            for part in cover(rows, buckets)
        )

    def worker(self, most: int, rows: int, host: Host) -> Worker:
        """The worker for requests of ``rows`` rows, merged up to ``most`` rows.

        Reading and half of the rest come before the queue. A request of more than ``most`` rows is a batch by itself.
        """
        megabytes = rows * self.row_sent / 1e6
        count = max(1, most // rows) if self.mergeable else 1
        # Only the next request shows the server that it does not fit the spare rows (``Queue.choose``).
        spare = self.mergeable and count * rows < most
        merging = [0.0, *(n * megabytes * host.merge_us_per_mb for n in range(2, count + 1))]
        return Worker(
            tuple(self.device_us(n * rows, most, host) for n in range(1, count + 1)),
            tuple(host.batch_us + merged for merged in merging),
            in_us=host.request_us / 2 + megabytes * host.read_us_per_mb,
            out_us=host.request_us / 2,
            queue=QUEUE,
            full=count + spare,
            cold_us=host.cold_us,
            cooling_us=host.cooling_us,
        )

    def cpu_us(self, rows: int, batch: float, host: Host) -> float:
        """CPU time per request of a host that is never cold, in batches of ``batch`` requests on average."""
        megabytes = rows * self.row_sent / 1e6
        merging = megabytes * host.merge_us_per_mb if batch > 1 else 0.0
        return host.request_us + megabytes * host.read_us_per_mb + host.batch_us / batch + merging
