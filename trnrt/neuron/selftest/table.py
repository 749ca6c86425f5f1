"""All cases of the self-test by name."""

from __future__ import annotations

from trnrt.neuron.selftest.cases import DIRECT, SAMPLES, SMALL, Case
from trnrt.neuron.selftest.probing import PROBES

PROBED = tuple(case for probe in PROBES for case in probe.cases())
_ALL: tuple[Case, ...] = (*SMALL, *DIRECT, *PROBED, *SAMPLES)
CASES = {case.name: case for case in _ALL}
