"""The SDK's list of errors (SDK 2.26.1, nki/api/nki.errors.rst): each is refused, or docs/legacy.md says why not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from old_kernels import nl, numbers, run

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy import compiler as ncc
from trnrt.nki.legacy import isa as nisa
from trnrt.nki.legacy.launching import jit

PAGE = Path(__file__).parents[3] / "docs" / "legacy.md"

NOT_REFUSED = """
    err_activation_bias_invalid_type err_annotation_shape_mismatch err_bias_tensor_must_be_specified_in_allocation
    err_cannot_update_immutable_parameter err_copy_dynamic_indirect_indices_not_natively_supported
    err_leading_dimension_of_tensor_must_be_partition err_local_variable_used_out_of_scope
    err_mutable_parameter_not_returned err_num_partition_mismatch err_shared_hbm_must_in_kernel_level
    err_transpose_on_tensor_engine_not_allowed_in_allocated_kernel err_unexpected_output_dependencies
    err_unsupported_expression_in_mask err_while_loop_requires_unconditional_entry
"""

F32 = np.float32


def outside(*shape: int) -> Any:
    """A tensor in HBM."""
    return nl.ndarray(shape, F32, buffer=nl.hbm)


def choose(condition: Any) -> int:
    return 1 if condition else 0


@jit
def inner(x: Any) -> Any:
    return nl.load(x)


def indices(x: Any) -> Any:
    return nl.copy(x[:, 0:1], dtype=nl.int32)


@jit
def unwritten(x: Any) -> Any:
    return outside(8, 6)


# Each with a tile x of 8 x 6 in SBUF, and a part of the message.
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "err_1d_arange_not_supported": (lambda x: nl.exp(x[nl.arange(8), 0]), r"nl\.arange of one dimension"),
    "err_activation_scale_invalid_type": (
        lambda x: nisa.activation(op=nl.exp, data=x, scale=nisa.memset((8, 1), 1.2, dtype=np.float16)),
        "scale is float16; it must be float32",
    ),
    "err_activation_scale_scalar_or_vector": (lambda x: nisa.activation(op=nl.exp, data=x, scale=x), "scale"),
    "err_ambiguous_tensor_truth_value": (lambda x: not (x > 0), "no Python condition can test them"),
    "err_cannot_assign_to_index": (lambda x: nl.mgrid[0:1, 0:8].x.__setitem__((0, 5), 1024), "can't be assigned to"),
    "err_control_flow_condition_depending_on_arange": (
        lambda x: choose(nl.arange(8)[None, :] + 512 > 2048),
        "is no Python condition",
    ),
    "err_dynamic_control_flow_not_supported": (lambda x: choose(x[0:1, 0:1]), "no Python condition can test them"),
    "err_exceed_max_supported_dimension": (lambda x: nl.transpose(x.reshape((8, 2, 3))), "it must have 2"),
    "err_failed_to_infer_tile_from_local_tensor": (
        lambda x: nl.add(nl.zeros((4, nl.par_dim(8), 8), F32), 32),
        "has 1 block dimensions",
    ),
    "err_hbm_tensor_with_init_value_not_supported": (
        lambda x: nl.full((3, 128, 512), 1.0, F32, buffer=nl.shared_hbm),
        "no instruction fills HBM",
    ),
    "err_indirect_indices_are_not_supported_with_nki_api": (
        lambda x: nl.load_transpose2d(outside(20, 6)[indices(x), nl.arange(6)[None, :]]),
        "src has indices that only the device knows",
    ),
    "err_indirect_indices_free_dim": (
        lambda x: nl.load(outside(8, 20)[nl.arange(8)[:, None], indices(x)]),
        "select rows of a tensor in HBM, along its dimension 0",
    ),
    "err_nested_kernel_with_spmd_grid": (lambda x: inner[4, 4](outside(8, 6)), "inside another kernel"),
    "err_num_partition_exceed_arch_limit": (lambda x: nl.zeros((256, 1024), F32, buffer=nl.sbuf), "256 partitions"),
    "err_size_of_dimension_exceed_arch_limit": (lambda x: nl.transpose(nl.zeros((128, 512), F32)), "512"),
    "err_store_dst_shape_smaller_than_other_shape": (
        lambda x: nl.zeros((8, 1), F32).__setitem__(..., x),
        r"a tile of shape \(8, 6\) is assigned to one of shape \(8, 1\)",
    ),
    "err_tensor_access_out_of_bound": (
        lambda x: nl.store(outside(8, 4000)[nl.mgrid[0:8, 0:512].p, 3584 + nl.mgrid[0:8, 0:512].x], value=0),
        "indices 3584 to 4095 of dimension 1 leave",
    ),
    "err_tensor_creation_on_scratchpad_with_init_value_not_supported": (
        lambda x: nl.full((3, nl.par_dim(8), 6), 1.0, F32, buffer=ncc.sbuf.mod_alloc(base_addr=0)),
        "only unwritten ones have addresses",
    ),
    "err_unsupported_memory": (lambda x: nl.exp(outside(4, 4)), "x is in HBM"),
    "err_unsupported_mixing_basic_advanced_tensor_indexing": (
        lambda x: nl.exp(x[nl.arange(8)[:, None], :]),
        "are slices and index expressions at once",
    ),
}
# Those that concern the whole kernel.
OF_KERNELS: dict[str, tuple[Callable[[], Any], str]] = {
    "err_nki_api_outside_of_nki_kernel": (lambda: nl.zeros((4, 4), F32), "outside a kernel"),
    "err_tensor_output_not_written_to": (lambda: unwritten(numbers(0, 8, 6)), "nothing is written to it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_refused(name: str) -> None:
    use, says = REFUSED[name]
    with pytest.raises(KernelError, match=says):
        run(use, numbers(0, 8, 6))


@pytest.mark.parametrize("name", OF_KERNELS)
def test_mistakes_of_kernels_are_refused(name: str) -> None:
    use, says = OF_KERNELS[name]
    with pytest.raises(KernelError, match=says):
        use()


def test_the_page_lists_them() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## The SDK's list of errors\n")[1].split("\n## ")[0]
    refused, _, left = section.partition("Not refused:")
    assert set(re.findall(r"`(err_\w+)`", refused)) == {*REFUSED, *OF_KERNELS}
    assert set(re.findall(r"`(err_\w+)`", left)) == set(NOT_REFUSED.split())
