"""2,000 mutations of the sample models: each is run, planned or refused; none crashes, hangs, or gives a wrong answer.

``tests/shared/fuzzing.py`` mutates and tries, in processes of their own: a crash in somebody's C++ takes that process
down, and says where. A mutation is a number; to look into number 123: ``python tests/shared/fuzzing.py 123 1``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import fuzzing
import pytest

COUNT = 2_000
PARTS = 4
# "known": its plan is that of an earlier mutation. "planned": it was not its turn to be run. "ran alone": onnxruntime
# doesn't run it. "overflows": numbers beyond float32 on the way, where the order of a sum decides what comes of it.
FINE = {
    "agrees",
    "known",
    "planned",
    "ran alone",
    "overflows",
    "ModelFileError",
    "InputError",
    "OptionError",
    "UnsupportedModelError",
}


def outcomes(first: int, count: int) -> dict[int, dict[str, Any]]:
    """Mutation -> what came of it. A process that dies is started again behind the mutation that it died of."""
    found: dict[int, dict[str, Any]] = {}
    place = first
    while place < first + count:
        command = [sys.executable, fuzzing.__file__, str(place), str(first + count - place)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        found |= {line["case"]: line for line in lines if "end" in line}
        last: dict[str, Any] = lines[-1] if lines else {"case": place, "stage": "start"}
        if "stage" in last:
            # In the other stage it was onnxruntime that died.
            end = "ran alone" if last["stage"] == "reference" else "crash"
            found[last["case"]] = {"case": last["case"], "end": end, "text": ran.stderr[-2000:]}
        place = last["case"] + 1
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_mutations(part: int) -> None:
    size = COUNT // PARTS
    found = outcomes(part * size, size)
    assert len(found) == size
    bad = [outcome for outcome in found.values() if outcome["end"] not in FINE]
    assert not bad, "\n".join(f"mutation {o['case']}: {o['end']}: {o.get('text', '')}" for o in bad[:5])
    ends = Counter(outcome["end"] for outcome in found.values())
    print(dict(ends))
    # The mutations are worth something only if many of them still run.
    assert ends["agrees"] >= size // 25
    assert ends["ModelFileError"] >= size // 4


def test_a_mutation_is_a_number() -> None:
    assert fuzzing.mutated(7) == fuzzing.mutated(7)
    assert len({fuzzing.mutated(seed) for seed in range(50)}) > 45
