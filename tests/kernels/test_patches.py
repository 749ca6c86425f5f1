"""Embeddings of patches against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, TARGETS, Array, Tensor, call, check, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.conv.patches import embed_patches, patch_columns
from trnrt.operators.patches import PatchStep
from trnrt.planner.steps import Operand

Images = tuple[int, int, int, int]


def compare(
    images: Images, kernel: tuple[int, int], outputs: int, target: str = "trn2", dtype: str = "float32"
) -> None:
    x = drawn(images, 0, dtype)
    w, b = drawn((outputs, images[1], *kernel), 1, dtype), drawn((outputs,), 2)
    down, across = images[2] // kernel[0], images[3] // kernel[1]
    step = PatchStep(
        name="p", sources=[Operand("x", images)], output="y", shape=(1, outputs), weight=w.astype(np.float32), bias=b
    )
    prepared = step.call(None).weights["w"].astype(w.dtype)  # type: ignore[arg-type]

    def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = hbm((images[0] * down * across, outputs), x.dtype)
        embed_patches(dst, x, w, b, kernel)
        return dst

    got = call(body, x, prepared, b.reshape(1, -1), target=target)
    cut: Array = x[:, :, : down * kernel[0], : across * kernel[1]].astype(np.float64)
    patches = cut.reshape(images[0], images[1], down, kernel[0], across, kernel[1]).transpose(0, 2, 4, 1, 3, 5)
    flat, weight = patches.reshape(images[0] * down * across, -1), w.reshape(outputs, -1).T.astype(np.float64)
    check(got, flat @ weight + b, np.abs(flat) @ np.abs(weight) + np.abs(b), weight.shape[0] + 1, dtype)


@pytest.mark.parametrize(
    ("images", "kernel", "outputs"),
    [
        ((2, 3, 32, 48), (16, 16), 40),
        ((1, 3, 28, 42), (14, 14), 600),
        ((3, 1, 9, 12), (3, 4), 5),
        ((2, 4, 33, 50), (32, 8), 7),
        ((1, 3, 64, 515), (4, 4), 96),
        ((9, 3, 224, 224), (16, 16), 16),
    ],
    ids=str,
)
def test_every_size(images: Images, kernel: tuple[int, int], outputs: int) -> None:
    compare(images, kernel, outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str) -> None:
    compare((2, 3, 28, 30), (14, 7), 130, target, dtype)


@settings(max_examples=25)
@given(
    count=st.integers(1, 3),
    channels=st.integers(1, 5),
    kernel=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    patches=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    more=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    outputs=st.integers(1, 20),
)
def test_any_size(
    count: int,
    channels: int,
    kernel: tuple[int, int],
    patches: tuple[int, int],
    more: tuple[int, int],
    outputs: int,
) -> None:
    height, width = (k * p + min(m, k - 1) for k, p, m in zip(kernel, patches, more, strict=True))
    compare((count, channels, height, width), kernel, outputs)


def test_channels_that_do_not_fit() -> None:
    assert patch_columns(9, (16, 16)) == 0
    x, w, b = drawn((1, 9, 16, 16), 0), drawn((128, 16, 4), 1), drawn((1, 4), 2)
    with pytest.raises(KernelError, match="the limit is 128 together"):
        call(lambda x, w, b: embed_patches(hbm((1, 4), x.dtype), x, w, b, (16, 16)), x, w, b)
