"""The labs' cases of a tree: each kernel, its arguments, and that tree's predictions for trn1 and trn2.

``make_kernels`` runs this in its own process, where ``trnrt`` is another checkout's: use only features of that
checkout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The commit's own: its labs are inside the package.
from trnrt.bench.labs.table import CASES  # type: ignore[import-not-found]

from benchmarks.baseline.library import TARGETS
from trnrt.errors import TrnrtError
from trnrt.nki import profile

if TYPE_CHECKING:
    from benchmarks.labs.cases import Case


def describe_case(case: Case, target: str) -> dict[str, Any]:
    """A case as JSON: all that is needed to time it again on ``target``, its own or another."""
    document: dict[str, Any] = {
        "kind": "lab" if target == case.target else "lab elsewhere",
        "name": case.name,
        "target": target,
        "dtype": case.dtype,
        "refused": [],
        "on_cpu": [],
        "crossings_us": 0.0,
    }
    try:
        found = profile(case.kernel, *case.specs(), target=target, **case.options)
    except TrnrtError as error:
        return document | {"refused": [str(error)], "parts": []}
    part = {
        "module": str(case.kernel.__module__).removeprefix("trnrt."),
        "entry": case.kernel.__name__,
        "inputs": [[list(spec.shape), case.dtype] for spec in case.specs()],
        "weights": [],
        "results": [],
        "options": dict(case.options),
        "old_us": {"benchmark": found.benchmark_us, "profiler": found.profiler_us},
    }
    return document | {"parts": [part]}


def main() -> None:
    """Write the cases to the file named on the command line."""
    # A lab may have a case for each target: it is no other case on either.
    wanted = {(case.name, case.dtype, case.target): case for case in CASES}
    for case in CASES:
        for target in TARGETS:
            wanted.setdefault((case.name, case.dtype, target), case)
    cases = [describe_case(case, target) for (_, _, target), case in wanted.items()]
    Path(sys.argv[1]).write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
