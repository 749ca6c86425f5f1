"""Drivers of attention kernels."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks.courses.samples.cases import Array, Pairs, draw, sample, softmax

TUTORIAL = "src/nki_samples/tutorials/attention_fwd_performance/attention_kernels.py"
REFERENCE = "src/nki_samples/reference/attention.py"


@sample(TUTORIAL, "attn_fwd_v1", "attn_fwd_v2")
def drive_small(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A sequence of 128."""
    yield _columns(kernel, rng, 128)


@sample(TUTORIAL, "attn_fwd_v3")
def drive_whole(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A sequence of 512: all of q k.T is in PSUM at once, which a longer one doesn't fit; AWS's compiler spills it."""
    yield _columns(kernel, rng, 512)


@sample(TUTORIAL, *(f"attn_fwd_v{n}" for n in range(4, 7)))
def drive_tiled(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A sequence of 1024, in float32."""
    yield _columns(kernel, rng, 1024)


@sample(TUTORIAL, *(f"attn_fwd_v{n}" for n in ("7", "8", "8a", "9", "10", "11")), precision="bfloat16")
def drive_half(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A sequence of 4096: the kernels' addresses are for that length."""
    yield _columns(kernel, rng, 4096)


def _columns(kernel: Any, rng: np.random.Generator, length: int) -> tuple[Any, Array]:
    """Heads on partitions: q, k, v are (128, length), the result (length, 128)."""
    q, k, v = draw(rng, (3, 128, length))
    scores = softmax(q.T.astype(np.float64) @ k)
    return kernel(q, k, v), scores @ v.T


@sample(
    "src/nki_samples/tutorials/sd_attention/sd_attention_nki_kernels.py",
    "fused_self_attn_for_SD_small_head_size",
    precision="bfloat16",
)
def drive_diffusion(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A sequence of 384, with and without a causal mask."""
    q, k, v = draw(rng, (3, 384, 64))
    for causal in (False, True):
        yield kernel(q, k, v, use_causal_mask=causal), attention(q * 0.125, k, v, causal=causal)


@sample(REFERENCE, "fused_self_attn_for_SD_small_head_size", precision="bfloat16")
def drive_batched_diffusion(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Two sequences of 256; q is (batch, head, length), k and v are (batch, length, head)."""
    q, k, v = draw(rng, (2, 64, 256)), draw(rng, (2, 256, 64)), draw(rng, (2, 256, 64))
    yield kernel[2](q, k, v), attention(q.swapaxes(1, 2) * 0.125, k, v)


@sample(
    "src/nki_samples/reference/allocated_attention.py",
    "allocated_fused_self_attn_for_SD_small_head_size",
    precision="bfloat16",
)
def drive_allocated(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A sequence of 1024; all but v have the head on partitions."""
    q, k, v = draw(rng, (1, 128, 1024)), draw(rng, (1, 128, 1024)), draw(rng, (1, 1024, 128))
    expected = attention(q.swapaxes(1, 2) * 0.125, k.swapaxes(1, 2), v)
    yield kernel[1](q, k, v), expected.swapaxes(1, 2)


@sample(REFERENCE, "flash_fwd", precision="bfloat16")
def drive_flash(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Two heads of q for one of k, causal and with a sliding window; also the logarithm of the sums for training."""
    q, k, v = draw(rng, (1, 2, 128, 1024)), draw(rng, (1, 1, 128, 1024)), draw(rng, (1, 1, 1024, 128))
    config = sys.modules[kernel.function.__module__].FlashConfig
    for window in (-1, 300):
        settings = config(seq_tile_size=512, training=False)
        found = kernel[1, 1](q, k, v, None, use_causal_mask=True, sliding_window=window, config=settings)
        expected = attention(q.swapaxes(2, 3) / 128**0.5, k.swapaxes(2, 3), v, causal=True, window=window)
        yield found, expected
    settings = config(seq_tile_size=512, training=True)
    found, sums = kernel[1, 1](q, k, v, None, use_causal_mask=False, config=settings)
    yield found, attention(q.swapaxes(2, 3) / 128**0.5, k.swapaxes(2, 3), v)
    yield sums, log_sums(q, k, causal=False)


@sample(REFERENCE, "flash_attn_bwd")
def drive_gradient(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Two heads of 128 x 1024, causal: the gradients of q, k and v."""
    q, k, v, upstream = draw(rng, (4, 1, 2, 128, 1024))
    wide = [x.swapaxes(2, 3).astype(np.float64) for x in (q, k, v, upstream)]
    scores = softmax(_hide_later(wide[0] @ wide[1].swapaxes(2, 3) / 128**0.5, causal=True))
    output = scores @ wide[2]
    d_scores = wide[3] @ wide[2].swapaxes(2, 3)
    d_logits = scores * (d_scores - (d_scores * scores).sum(-1, keepdims=True)) / 128**0.5
    expected = (d_logits @ wide[1], d_logits.swapaxes(2, 3) @ wide[0], scores.swapaxes(2, 3) @ wide[3])
    sums, saved = log_sums(q, k, causal=True).astype(np.float32), output.swapaxes(2, 3).astype(np.float32)
    found = kernel[1, 2](q, k, v, saved, upstream, sums, None, use_causal_mask=True, mixed_precision=True)
    for one, other in zip(found, expected, strict=True):
        yield one, other.swapaxes(2, 3)


def attention(q: Array, k: Array, v: Array, *, causal: bool = False, window: int = -1) -> Array:
    """softmax(q k.T) v, on the last two axes (length, head); the scale is in q."""
    logits = q.astype(np.float64) @ k.swapaxes(-1, -2)
    found: Array = softmax(_hide_later(logits, causal=causal, window=window)) @ v
    return found


def log_sums(q: Array, k: Array, *, causal: bool) -> Array:
    """The logarithm of each row's sum of exponentials, 128 rows to a column: (batch, heads, 128, length / 128)."""
    logits = q.swapaxes(2, 3).astype(np.float64) @ k / q.shape[2] ** 0.5
    logits = _hide_later(logits, causal=causal)
    sums = np.log(np.exp(logits).sum(-1))
    found: Array = sums.reshape(*sums.shape[:2], -1, 128).swapaxes(2, 3)
    return found


def _hide_later(logits: Array, *, causal: bool, window: int = -1) -> Array:
    if not causal:
        return logits
    row, column = np.arange(logits.shape[-2])[:, None], np.arange(logits.shape[-1])
    hidden = column > row
    if window > 0:
        hidden = hidden | (column <= row - window)
    return np.where(hidden, -np.inf, logits)
