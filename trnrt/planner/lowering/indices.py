"""Indices that a search makes (TopK, ArgMax, ArgMin): whether steps read them, and how these keep them exact.

A search stores places as uint32. Look-ups take them as they are; other steps read a copy in float32, which represents
all places up to 2^24. In a session of 16 bits, what is computed of them is float32, too, while it is of an integer
type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from trnrt.planner.lowering.blocked import Blocked
from trnrt.planner.steps import Step

# Boundary nodes carry final indices, and look labels up by them, at this input.
_BOUNDARY = {
    **dict.fromkeys(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"), 0),
    "ArrayFeatureExtractor": 1,
    "LabelEncoder": 0,
}


def is_final(value: ir.Value) -> bool:
    """True if only boundary nodes read an index, and what they make of it: the host computes these."""
    return all(
        _BOUNDARY.get(node.op_type) == position and all(map(is_final, node.outputs)) for node, position in value.uses()
    )


def keep_exact(step: Step, wide: Collection[str], nodes: Sequence[ir.Node], dtype: str) -> bool:
    """Let a step in a session of 16 bits read whole numbers in float32, which are ``wide``; True if its result is wide,
    too. Blocks a step whose kernel can't."""
    if dtype == "float32" or not any(source.value in wide for source in step.sources):
        return False
    made = nodes[-1].outputs[0].dtype if nodes else None
    if not step.read_wide(whole=made is None or made.is_integer()):
        raise Blocked(f"computed indices, which {dtype} does not represent", "use --dtype float32")
    return step.dtype == "float32"
