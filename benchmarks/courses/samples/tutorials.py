"""Drivers of the tutorials' kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.courses.samples.cases import Array, Pairs, draw, sample, softmax

FOLDER = "src/nki_samples/tutorials"


@sample(f"{FOLDER}/average_pool2d/average_pool2d_nki_kernels.py", "tensor_avgpool_kernel")
def drive_average_pool(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Windows of 2 x 2 and 3 x 3."""
    for channels, height, width, size in ((5, 6, 8, 2), (128, 9, 12, 3)):
        x = draw(rng, (channels, height, width))
        windows = x.reshape(channels, height // size, size, width // size, size)
        yield kernel(x, size), windows.mean((2, 4), dtype=np.float64)


@sample(f"{FOLDER}/fused_mamba/mamba_nki_kernels.py", "mamba_v1", "mamba_v2", "mamba_v3")
def drive_mamba(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A recurrence of 3 states over 1024 steps: x[t] = exp(delta A) x[t-1] + delta u B, y = sum of C x."""
    channels, steps, states = 256, 1024, 3
    delta, u = rng.uniform(0, 0.2, (2, 1, channels, steps)).astype(np.float32)
    a = rng.uniform(-2, -0.5, (channels, states)).astype(np.float32)
    b, c = draw(rng, (2, 1, states, steps))
    state, expected = np.zeros((channels, states)), np.empty((1, channels, steps))
    for t in range(steps):
        step = delta[0, :, t, None].astype(np.float64)
        state = np.exp(step * a) * state + step * u[0, :, t, None] * b[0, :, t]
        expected[0, :, t] = state @ c[0, :, t]
    yield kernel(delta, u, a, b, c), expected


@sample(
    f"{FOLDER}/layernorm/layernorm_nki_kernel.py",
    "nki_layernorm_kernel_v1",
    "nki_layernorm_kernel_v2",
)
def drive_layernorm(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Rows that don't fill the last tile."""
    for rows, columns in ((300, 512), (128, 1024)):
        x, gamma, beta = draw(rng, (rows, columns)), draw(rng, (columns,)), draw(rng, (columns,))
        wide = x.astype(np.float64)
        normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
        yield kernel(x, 1e-5, gamma, beta), normal * gamma + beta


@sample(f"{FOLDER}/rmsnorm/rmsnorm_nki_kernels.py", "nki_rmsnorm_kernel")
def drive_rmsnorm(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Rows that don't fill the last tile."""
    for rows, columns in ((250, 512), (128, 96)):
        x, gamma = draw(rng, (rows, columns)), draw(rng, (columns,))
        yield kernel(x, gamma), x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True)) * gamma


@sample(f"{FOLDER}/softmax/softmax_nki_kernels.py", "nki_softmax_kernel")
def drive_softmax(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Rows that don't fill the last tile."""
    x = 8 * draw(rng, (200, 300))
    yield kernel(x), softmax(x.astype(np.float64))


@sample(f"{FOLDER}/transpose2d/transpose2d_nki_kernels.py", "tensor_transpose2D_kernel_", precision="exact")
def drive_transpose(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A matrix in each row."""
    for rows, height, width in ((5, 3, 4), (128, 16, 20)):
        x = draw(rng, (rows, height * width))
        turned = x.reshape(rows, height, width).swapaxes(1, 2).reshape(rows, -1)
        yield kernel(x, (height, width)), turned


@sample(f"{FOLDER}/tensor_addition/tensor_addition_nki_kernels.py", "nki_tensor_add", precision="exact")
@sample(f"{FOLDER}/tensor_addition/spmd_tensor_addition_nki_kernels.py", "nki_tensor_add", precision="exact")
@sample(
    f"{FOLDER}/tensor_addition/spmd_multiple_nc_tensor_addition_nki_kernels.py", "nki_tensor_add_nc2", precision="exact"
)
def drive_addition(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A launch grid of 4 x 2."""
    a, b = draw(rng, (2, 512, 1024))
    yield kernel(a, b), a + b


@sample(f"{FOLDER}/matrix_multiplication/matrix_multiplication_nki_kernels.py", "nki_matmul_basic_")
def drive_basic_product(kernel: Any, rng: np.random.Generator) -> Pairs:
    """64 x 128 by 128 x 512."""
    yield _product(kernel, draw(rng, (128, 64)), draw(rng, (128, 512)))


@sample(
    f"{FOLDER}/matrix_multiplication/matrix_multiplication_nki_kernels.py",
    "nki_matmul_tiled_",
    "nki_matmul_hoist_load_",
    "nki_matmul_block_free_dimension_",
)
def drive_product(kernel: Any, rng: np.random.Generator) -> Pairs:
    """256 x 384 by 384 x 1024."""
    yield _product(kernel, draw(rng, (384, 256)), draw(rng, (384, 1024)))


@sample(f"{FOLDER}/matrix_multiplication/matrix_multiplication_nki_kernels.py", "nki_matmul_fully_optimized_")
def drive_blocked_product(kernel: Any, rng: np.random.Generator) -> Pairs:
    """512 x 512 by 512 x 1024, in blocks of its own and of the kernel's."""
    sizes = {"TILES_IN_BLOCK_M": 2, "TILES_IN_BLOCK_N": 1, "TILES_IN_BLOCK_K": 2}
    yield _product(lambda *operands: kernel(*operands, **sizes), draw(rng, (512, 512)), draw(rng, (512, 1024)))
    yield _product(kernel, draw(rng, (1024, 2048)), draw(rng, (1024, 1024)))


def _product(kernel: Any, lhs_t: Array, rhs: Array) -> tuple[Any, Array]:
    return kernel(lhs_t, rhs), lhs_t.T.astype(np.float64) @ rhs


@sample(f"{FOLDER}/rotary/rotary_nki_kernels.py", "nki_apply_rotary_embedding")
def drive_rotary(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Two sequences, three heads, positions that don't fill the last tile."""
    batch, heads, length, size = 2, 3, 200, 64
    q, k = draw(rng, (2, batch, heads, length, size))
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, size, 2) / size))
    angles = np.broadcast_to(np.concatenate([angles, angles], -1), (batch, length, size))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    found = kernel[batch, heads](q, k, cos, sin)
    for number, x in enumerate((q, k)):
        turned = np.concatenate([-x[..., size // 2 :], x[..., : size // 2]], -1)
        yield found[number], x * cos[:, None].astype(np.float64) + turned * sin[:, None]
