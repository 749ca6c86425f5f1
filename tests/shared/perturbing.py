"""Plans with wrong weights: a weight may share an argument of the kernel with others. And inputs that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import trnrt
from trnrt.planner import Plan

Array = NDArray[Any]

# Wrong weights: (model, step, weight of the plan); one element of it is moved by half of the largest.
WRONG = [
    ("digits_cnn", "node_conv2d", "node_conv2d_w"),
    ("digits_cnn", "node_conv2d_1", "node_conv2d_1_b"),
    ("digits_cnn", "node_linear", "node_linear_w"),
    ("digits_ffnn", "node_linear_1", "node_linear_1_w"),
    ("residual", "conv_4", "conv_4_w"),
    ("residual", "conv_9", "conv_9_b"),
    ("residual", "gemm_14", "gemm_14_w"),
    ("grouped", "conv_5", "conv_5_w"),
    ("mixing", "layernormalization_0", "layernormalization_0_scale"),
    ("mixing", "matmul_5", "matmul_5_w"),
    ("pointwise", "mul_0", "mul_0_c1"),
    ("pointwise", "convtranspose_3", "convtranspose_3_w"),
]


def with_weight(plan: Plan, weight: str, change: Callable[[Array], None]) -> Plan:
    """The plan with a weight, by its name, that ``change`` has changed in place."""
    part = plan.parts.get(weight)
    argument = weight if part is None else part.argument
    array = plan.weights[argument].copy()
    change(array if part is None else part.view(array))
    return replace(plan, weights=plan.weights | {argument: array})


def shifted(plan: Plan, weight: str, by: float) -> Plan:
    """The plan with all of a weight moved by a number."""

    def change(array: Array) -> None:
        array += array.dtype.type(by)

    return with_weight(plan, weight, change)


def wronged(plan: Plan, weight: str, seed: int = 0) -> Plan:
    """The plan with one element of a weight moved."""

    def move(array: Array) -> None:
        places = np.argwhere(array)
        place = tuple(places[np.random.default_rng(seed).integers(len(places))])
        array[place] += array.dtype.type(0.5 * np.abs(array).max())

    return with_weight(plan, weight, move)


def rows_for(session: trnrt.InferenceSession, seed: int = 0) -> dict[str, Array]:
    """Normal inputs of both signs: 5 rows, or as many as the model fixes."""
    random = np.random.default_rng(seed)
    rows = {} if isinstance(session.model.batch, int) else {"batch": 5}
    return {n: random.standard_normal(a.shape).astype(a.dtype) for n, a in session.random_inputs(**rows).items()}
