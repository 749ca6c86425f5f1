"""Operators with attributes drawn at random, and chains of movements into windows, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from drawing import Drawn, agree, built, listed, pools, resizes, transposed_convolutions, upsamples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from planning import Array

Shape = tuple[int, ...]


@settings(max_examples=200)
@given(case=resizes())
def test_any_resize(case: Drawn) -> None:
    agree(case)


@settings(max_examples=80)
@given(case=upsamples())
def test_any_upsample(case: Drawn) -> None:
    agree(case)


@settings(max_examples=200)
@given(case=pools())
def test_any_pool(case: Drawn) -> None:
    agree(case)


@settings(max_examples=150)
@given(case=transposed_convolutions())
def test_any_transposed_convolution(case: Drawn) -> None:
    agree(case)


# -- chains ------------------------------------------------------------------------------------------------


class Chain:
    """Nodes one after the other, from x of ``shape`` on; ``shape`` becomes that of what the last one makes."""

    def __init__(self, shape: list[int]) -> None:
        self.start, self.shape = tuple(shape), shape
        self.nodes: list[onnx.NodeProto] = []
        self.taken = 0
        self.constants: dict[str, Array] = {}

    def add(self, op: str, *constants: Any, outputs: int = 1, take: int = 0, **attributes: Any) -> None:
        """Append a node that reads what the last one makes, and ``constants``; the next one reads output ``take``."""
        source = self.nodes[-1].output[self.taken] if self.nodes else "x"
        names = []
        for value in constants:
            name = f"c{len(self.constants)}"
            self.constants[name] = np.asarray(value, None if isinstance(value, np.ndarray) else np.int64)
            names.append(name if self.constants[name].size else "")
        made = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, [source, *names], made, **attributes))
        self.taken = take

    def model(self) -> Drawn:
        """The chain as a model with the output y."""
        self.add("Tanh")
        self.nodes[-1].output[0] = "y"
        return built(self.nodes, self.start, {k: a for k, a in self.constants.items() if a.size}, 18)


def transpose(draw: st.DrawFn, chain: Chain) -> None:
    order = draw(st.permutations(range(4)))
    chain.add("Transpose", perm=order)
    chain.shape = [chain.shape[d] for d in order]


def cut(draw: st.DrawFn, chain: Chain) -> None:
    axis = draw(st.integers(0, 3))
    size = chain.shape[axis]
    start, step = draw(st.integers(0, size - 1)), draw(st.integers(1, 2))
    end = draw(st.integers(start + 1, size))
    chain.add("Slice", [start], [end], [axis], [step])
    chain.shape[axis] = len(range(start, end, step))


def split(draw: st.DrawFn, chain: Chain) -> None:
    axis = draw(st.integers(0, 3))
    size, take = chain.shape[axis], draw(st.integers(0, 1))
    if size > 1:
        first = draw(st.integers(1, size - 1))
        chain.add("Split", [first, size - first], outputs=2, take=take, axis=axis)
        chain.shape[axis] = (first, size - first)[take]


def resize(draw: st.DrawFn, chain: Chain) -> None:
    chain.shape = [*chain.shape[:2], *listed(draw, 2, 1, 8)]
    mode = draw(st.sampled_from(["half_pixel", "asymmetric"]))
    chain.add("Resize", [], [], chain.shape, coordinate_transformation_mode=mode, nearest_mode="floor")


def expand(draw: st.DrawFn, chain: Chain) -> None:
    chain.shape = [draw(st.integers(1, 3)) if size == 1 else size for size in chain.shape]
    chain.add("Expand", chain.shape)


def pick(draw: st.DrawFn, chain: Chain) -> None:
    axis = draw(st.integers(0, 3))
    indices = draw(st.lists(st.integers(0, chain.shape[axis] - 1), min_size=1, max_size=3))
    chain.add("Gather", indices, axis=axis)
    chain.shape[axis] = len(indices)


def double(draw: st.DrawFn, chain: Chain) -> None:
    axis = draw(st.integers(0, 3))
    chain.add("Tile", [2 if axis == d else 1 for d in range(4)])
    chain.shape[axis] *= 2


def reshape(draw: st.DrawFn, chain: Chain) -> None:
    n, c, h, w = chain.shape
    chain.shape = list(draw(st.sampled_from([(n * c, 1, h, w), (1, n * c, h, w), (n, c * h, 1, w), (n, 1, c * h, w)])))
    chain.add("Reshape", chain.shape)


def pool(draw: st.DrawFn, chain: Chain) -> None:
    kernel = [draw(st.integers(1, min(2, size))) for size in chain.shape[2:]]
    op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    chain.add(op, kernel_shape=kernel, strides=kernel)
    chain.shape = [*chain.shape[:2], *(size // taps for size, taps in zip(chain.shape[2:], kernel, strict=True))]


def convolve(draw: st.DrawFn, chain: Chain) -> None:
    made, width = draw(st.integers(1, 3)), min(2, chain.shape[3])
    weight = np.random.default_rng(made).standard_normal((made, chain.shape[1], 1, width)).astype(np.float32)
    chain.add("Conv", weight)
    chain.shape = [chain.shape[0], made, chain.shape[2], chain.shape[3] - width + 1]


MOVEMENTS = (transpose, cut, split, resize, expand, pick, double, reshape)


@st.composite
def chains(draw: st.DrawFn) -> Drawn:
    """Movements of few images of few channels, mostly one of one, into pools and convolutions."""
    images, channels = draw(st.sampled_from([1, 1, 1, 2])), draw(st.sampled_from([1, 1, 1, 2, 4]))
    chain = Chain([images, channels, *listed(draw, 2, 2, 7)])
    for _ in range(draw(st.integers(1, 2))):
        for step in draw(st.lists(st.sampled_from(MOVEMENTS), min_size=1, max_size=2)):
            step(draw, chain)
        draw(st.sampled_from([pool, pool, convolve]))(draw, chain)
    return chain.model()


@settings(max_examples=200)
@given(case=chains())
def test_any_chain_of_movements(case: Drawn) -> None:
    agree(case)


def test_movements_into_the_pool_of_one_channel() -> None:
    """Tensors in HBM whose elements are not whole channels of the result."""
    taken = Chain([1, 1, 6, 8])
    taken.add("Relu")
    taken.add("Resize", [], [], [1, 1, 5, 4], mode="nearest", nearest_mode="floor")
    taken.add("MaxPool", kernel_shape=[2, 2])
    agree(taken.model())
    turned = Chain([1, 1, 12, 3])
    turned.add("Transpose", perm=[2, 0, 1, 3])
    turned.add("Slice", [0], [-1], [3])
    turned.add("MaxPool", kernel_shape=[1, 2])
    agree(turned.model())
    repeated = Chain([1, 1, 1, 2])
    repeated.add("Expand", [3, 1, 1, 2])
    repeated.add("AveragePool", kernel_shape=[1, 1])
    agree(repeated.model())
    parted = Chain([3, 1, 2, 3])
    parted.add("Split", [1, 2], outputs=2, take=1, axis=0)
    parted.add("MaxPool", kernel_shape=[1, 1])
    agree(parted.model())


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("SpaceToDepth", (1, 1, 5, 4), {"blocksize": 2}),
        ("DepthToSpace", (1, 6, 2, 2), {"blocksize": 2}),
        ("Split", (5, 1), {"num_outputs": 4}),
        ("AveragePool", (1, 1, 5), {"kernel_shape": [2], "pads": [2, 0]}),
        ("MaxPool", (1, 1, 5), {"kernel_shape": [2], "strides": [4], "auto_pad": "SAME_UPPER"}),
        ("MaxPool", (1, 1, 5), {"kernel_shape": [0]}),
        ("MaxPool", (1, 1, 5, 5), {"kernel_shape": [2]}),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(op: str, shape: Shape, attributes: dict[str, Any]) -> None:
    outputs = ["y", *(f"o{k}" for k in range(attributes.get("num_outputs", 1) - 1))]
    agree(built([helper.make_node(op, ["x"], outputs, **attributes)], shape, {}, 18))
