"""Before a model takes requests, each of its buckets is compiled, and its answer compared with onnxruntime's.

A bundle (``trnrt compile -o DIR``) brings onnxruntime's answers along. What ``compile`` has checked on the simulator
need not run again there: only the first bucket does, to see that this machine computes the same. A device runs all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trnrt.nki.machine.timing import Range
from trnrt.session import InferenceSession
from trnrt.validate import Noise, open_onnxruntime
from trnrt.validate.bundling import golden_inputs, read_golden, run_golden
from trnrt.validate.golden import Golden, make_golden

Array = NDArray[Any]


class Prover:
    """Compiles and checks the buckets of one session. ``path``: the model's file; a golden input may lie beside it.

    ``others``: the sessions of further instances; each is checked in the same way.
    """

    first: Golden
    """The golden input of the first bucket, with the expected answer."""
    example: Mapping[str, Array]
    """Our answer to it."""

    def __init__(self, session: InferenceSession, path: Path, others: Sequence[InferenceSession] = ()) -> None:
        self._session, self._path, self._others, self._has_first = session, path, others, False

    def prove(self, rows: int, length: int) -> tuple[Mapping[str, Array], Range | None]:
        """Compile a bucket and check it; returns its golden input and its predicted latency, if it has one.

        BackendError if an output is too far from onnxruntime's.
        """
        session = self._session
        golden = self._golden(rows, length)
        self._prove_others(golden)
        if self._has_first and self._is_proven(rows, length):
            return golden.feeds, session.load(golden.feeds)
        outputs = run_golden(session, golden.feeds)
        golden.check(outputs)
        if not self._has_first:
            self.first, self.example, self._has_first = golden, outputs, True
        return golden.feeds, session.last_run.predicted

    def _prove_others(self, golden: Golden) -> None:
        """Compile and check a bucket in the other sessions. A simulator computes the same in all of them: the first
        bucket is enough there."""
        for session in self._others:
            if self._has_first and session.backend == "simulator":
                session.load(golden.feeds)
            else:
                golden.check(run_golden(session, golden.feeds))

    def _golden(self, rows: int, length: int) -> Golden:
        session, bundle = self._session, self._session.bundle
        found = None if bundle is None else read_golden(session, bundle, (rows, length), lambda: self._noise)
        if found is not None:
            return found
        return make_golden(session, self._reference, golden_inputs(session, self._path, rows, length), self._noise)

    def _is_proven(self, rows: int, length: int) -> bool:
        """True if these plans gave right answers on the simulator already, and are to run there."""
        bundle = self._session.bundle
        checked = bundle is not None and bundle.is_current and (rows, length) in bundle.checked
        return checked and self._session.backend == "simulator"

    @cached_property
    def _reference(self) -> Any:
        return open_onnxruntime(self._session)

    @cached_property
    def _noise(self) -> Noise:
        return Noise(self._session)
