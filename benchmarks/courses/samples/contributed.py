"""Drivers of contributed kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.courses.samples.cases import Pairs, draw, sample, upsample
from benchmarks.courses.samples.reference import read_quantised, rms_norm

QUANTISE = "contributed/neuron-team-kernels/rmsnorm_quant.py"


@sample("contributed/interpolate_bilinear_fwd.py", "interpolate_bilinear_2x_fwd")
def drive_bilinear(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A height of several chunks."""
    x = draw(rng, (2, 70, 28, 12))
    yield kernel(x), upsample(upsample(x.astype(np.float64), 2), 3)


@sample("contributed/interpolate_trilinear_fwd.py", "interpolate_trilinear_2x_fwd")
def drive_trilinear(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A depth of several chunks."""
    x = draw(rng, (1, 20, 10, 6, 5))
    yield kernel(x), upsample(upsample(upsample(x.astype(np.float64), 2), 3), 4)


@sample("contributed/maxpooling.py", "max_pooling_2d_stride_1", precision="exact")
def drive_max_pool(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Windows of 3 x 3, rows that don't fill the last tile."""
    x = draw(rng, (200, 40))
    yield kernel(x, 3), np.lib.stride_tricks.sliding_window_view(x, (3, 3)).max((2, 3))


@sample(QUANTISE, "compatible_rmsnorm_quant", precision="float8")
def drive_quantised_norm(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Rows that don't fill the last tile, on one core and as two shards; with a norm and without."""
    hidden, gamma = draw(rng, (1, 200, 1024), ml_dtypes.bfloat16), draw(rng, (1024,), ml_dtypes.bfloat16)
    yield read_quantised(kernel(hidden, gamma, 0.0, "RMSNormQuant")), rms_norm(hidden, gamma)
    yield read_quantised(kernel[2](hidden, gamma, 0.0, "QuantOnly")), hidden.astype(np.float64)


@sample(QUANTISE, "rmsnorm_quant", precision="float8")
def drive_written_norm(kernel: Any, rng: np.random.Generator) -> Pairs:
    """The kernel writes to its argument."""
    hidden, gamma = draw(rng, (1, 200, 1024), ml_dtypes.bfloat16), draw(rng, (1024,), ml_dtypes.bfloat16)
    out = np.zeros((1, 200, 1028), ml_dtypes.float8_e4m3)
    kernel(hidden, gamma, 0.0, out, "RMSNormQuant")
    yield read_quantised(out), rms_norm(hidden, gamma)


@sample(QUANTISE, "shard_rmsnorm_quant", precision="float8")
def drive_sharded_norm(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Two shards write to the kernel's argument."""
    hidden, gamma = draw(rng, (1, 200, 1024), ml_dtypes.bfloat16), draw(rng, (1024,), ml_dtypes.bfloat16)
    out = np.zeros((1, 200, 1028), ml_dtypes.float8_e4m3)
    kernel[2](hidden, gamma, 0.0, out, "RMSNormQuant")
    yield read_quantised(out), rms_norm(hidden, gamma)
