"""Models that ask for more than is good: each is planned, or refused by one of our errors, in little time and memory.

``tests/shared/hostile.py`` has the models; it plans them in a process of its own, under limits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import hostile
import pytest

# All others must be refused.
PLANNED = {
    "a_chain_of_2000_rows",
    "a_chain_of_3000",
    "a_chain_of_3999_transposes",
    "attribute_dilations",
    "attribute_epsilon",
    "attribute_lrn",
    "attribute_strides",
    "branches_20_deep",
    "everything_reads_one_value",
    "sums_that_double",
    "transposes_and_relus",
    *(f"name_{name}" for name in hostile.NAMES),
}
# What the error says, where it matters most that it is the right one.
SAYS = {
    "a_chain_of_100000": "the model has 100000 nodes; trnrt takes models of up to 20000",
    "a_sum_of_50000": "reads or makes 50000 tensors",
    "a_constant_of_an_exabyte": "4194304.0 TiB; trnrt takes up to 2.0 GiB",
    "a_concatenation_that_doubles_60_times": "trnrt takes up to 2.0 GiB",
    "an_expansion_that_ends_small": "Expand_0': a tensor of shape (1000000, 1000000)",
    "an_input_of_a_terabyte": "input node 'x': a tensor of shape (1048576, 1048576), 4.0 TiB",
    "an_input_of_100_dimensions": "a tensor of 100 dimensions; trnrt takes up to 32",
    "attribute_kernel": "kernel_shape (1000000000, 1000000000), and weights of shape (2, 2, 3, 3)",
    "attribute_pads": "trnrt takes up to 2.0 GiB",
    "attribute_group": "1000000000 groups",
    "attribute_pool_auto": "a window of (1000000000, 1000000000)",
    "attribute_split": "has 1 outputs and num_outputs=1000000000",
    "attribute_lrn_negative": "has the size -3",
    "no_opset": "doesn't say which operator sets it uses",
    "a_negative_opset": "version -7 of the operator set 'ai.onnx', and the first one is 1",
}
_CODES = {"UnsupportedModelError": 1, "ModelFileError": 2, "InputError": 2}


# The number of neighbouring cases that share a process.
TOGETHER = 40


@cache
def outcomes(first: int) -> dict[str, dict[str, Any]]:
    """Case -> what came of it, of those from number ``first`` on."""
    cases = list(hostile.CASES)[first : first + TOGETHER]
    ran = subprocess.run([sys.executable, hostile.__file__, *cases], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    return {outcome["case"]: outcome for outcome in found}


@pytest.mark.parametrize("case", hostile.CASES)
def test_a_hostile_model(case: str) -> None:
    number = list(hostile.CASES).index(case)
    found = outcomes(number - number % TOGETHER)[case]
    if case in PLANNED:
        assert found["end"] in ("planned", "ran"), found
        return
    assert found["end"] in _CODES, found
    assert found["code"] == _CODES[found["end"]]
    assert found["text"].replace("\n", " ").isprintable()
    assert len(found["text"]) < 2_000
    assert SAYS.get(case, "") in found["text"]


def test_the_tables_name_cases() -> None:
    assert set(hostile.CASES) >= PLANNED | set(SAYS)
