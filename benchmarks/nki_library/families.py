"""The nki-library tests to run, and their known failures, each with the evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass

REPOSITORY = "https://github.com/aws-neuron/nki-library"
BRANCH = "2.29_release"
COMMIT = "ddbca35eaa3a3b5201b530c2015fdb24f7aba2c7"

_TESTS = "test/integration/nkilib"
FAMILIES: dict[str, str] = {
    "cumsum": f"{_TESTS}/core/cumsum/test_cumsum.py",
    "rope": f"{_TESTS}/core/embeddings/test_rope.py",
    "rope_hf": f"{_TESTS}/core/embeddings/test_rope_hf.py",
    "cascaded_max": f"{_TESTS}/core/max/test_cascaded_max.py",
    "cascaded_max_utils": f"{_TESTS}/core/max/test_cascaded_max_utils.py",
    "router_topk": f"{_TESTS}/core/router_topk/test_router_topk.py",
    "layernorm_tkg": f"{_TESTS}/core/subkernels/test_layernorm_tkg.py",
    "rmsnorm_tkg": f"{_TESTS}/core/subkernels/test_rmsnorm_tkg.py",
    "indexed_flatten": f"{_TESTS}/core/subkernels/test_indexed_flatten.py",
    "cross_partition_copy": f"{_TESTS}/core/utils/test_cross_partition_copy.py",
    "tp_broadcast": f"{_TESTS}/core/utils/test_tp_broadcast.py",
    "conv1d": f"{_TESTS}/experimental/conv/test_conv1d.py",
    "depthwise_conv1d": f"{_TESTS}/experimental/conv/test_depthwise_conv1d.py",
    "dynamic_shapes": f"{_TESTS}/experimental/dynamic_shapes/test_dynamic_elementwise_add.py",
    "attention_tkg": f"{_TESTS}/core/attention/test_attention_tkg.py",
}
# These tests have caches of up to 262,144 positions. Some need more than 20 GB of memory. Only --slow runs them.
SLOW = "test_attn_tkg_slow"


@dataclass(frozen=True)
class KnownFailure:
    """A family's tests that fail for a known reason: ids match ``tests``, error messages match ``says``."""

    family: str
    tests: str
    says: str
    why: str

    def explains(self, family: str, test: str, message: str) -> bool:
        return (
            family == self.family
            and re.search(self.tests, test) is not None
            and re.search(self.says, message) is not None
        )


KNOWN: tuple[KnownFailure, ...] = (
    KnownFailure(
        "rope",
        r"test_rope_(manual|sweep)\[",
        r"SBUF is full: tile \[\d+x[\dx]+\] bfloat16 \(\S*embeddings/rope\.py:(21[5-9]|220) in RoPE_sbuf\)",
        "RoPE_sbuf (core/embeddings/rope.py, lines 215 to 220) holds five tiles of half the head's partitions beside "
        "its input and output: 328 to 393 KB a partition where trn2 has 213 KB usable. AWS's compiler spills, the "
        "simulator doesn't; with --no-capacity the tests pass",
    ),
    KnownFailure(
        "cascaded_max_utils",
        r"test_folded_load_store_dst_batch\[lnc-2_",
        r"Validation failed for \['output_tensor'\]",
        "the test's kernel races (test_cascaded_max_utils.py, lines 83 to 88): on two cores each writes zeros to every "
        "row of the shared output, and its own rows after that, with no nisa.core_barrier between; the simulator runs "
        "core 1 after core 0, whose rows end as zeros",
    ),
    KnownFailure(
        "router_topk",
        r"test_router_topk_sweep\[\d+-8192-128-8-sigmoid-",
        r"Validation failed for \['expert_index'\]",
        "a tie that float32 does not hold: of the library's seeded inputs, token 205's eighth and ninth logits are "
        "0.5032329 (expert 53) and 0.5032327 (21) in float64, 1.6e-7 apart, sums of 8192 products. The one index of "
        "6,240 that differs depends on the order of a float32 sum, which is torch's in the reference",
    ),
)


def reason(family: str, test: str, message: str) -> str | None:
    """The known reason for a failure; None if unknown."""
    return next((known.why for known in KNOWN if known.explains(family, test, message)), None)
