"""A ``Direct`` case as a kernel module, which the routes to a NeuronCore take like a model's."""

from __future__ import annotations

import numpy as np

from trnrt.neuron.selftest.cases import Array, Direct
from trnrt.planner.plan import DeviceTensor, Plan

_MODULE = '''\
"""The self-test's case {case}."""

from {module} import {kernel}
from trnrt.nki import nki


@nki.jit
def {entry}({parameters}):
    return {kernel}({arguments})
'''


def plan_case(case: Direct, target: str, expected: Array) -> Plan:
    """A plan of one kernel without weights: the case's, whose options are constants in the module.

    ``expected``: an array of the result's shape. Kernels that call other kernels are in public code for NKI 0.3 to 0.6
    (nki-library, experimental/transformer/attention_block_tkg.py at d2ad3a57), and nki.compiler's page of 2.33.1 says
    what becomes of the inner one's configuration.
    """
    module, kernel = case.place
    entry, names = f"self_test_{case.name}", [f"x{k}" for k in range(len(case.shapes))]
    source = _MODULE.format(
        case=case.name,
        module=module,
        kernel=kernel,
        entry=entry,
        parameters=", ".join(names),
        arguments=", ".join([*names, *map(repr, case.options)]),
    )
    inputs = [DeviceTensor(name, shape, case.dtype) for name, shape in zip(names, case.shapes, strict=True)]
    return Plan(
        name=entry,
        entry=entry,
        target=target,
        dtype=case.dtype,
        batch=None,
        inputs=tuple(inputs),
        weights={},
        results=(DeviceTensor("result", np.shape(expected), case.result_dtype),),
        outputs=(),
        host=(),
        constants={},
        steps=(),
        nodes=(),
        notes=(),
        source=source,
    )
