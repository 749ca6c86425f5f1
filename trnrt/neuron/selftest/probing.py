"""The cases that a timing model can learn from, as a table: kernels of ``probes``, each repeated twice or more often.

The calls of a ``Probe`` differ in ``repeats`` alone. So their difference has nothing of the host, of the arguments'
transfer and of the program's start, and one instruction or transfer dominates it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnrt.neuron.selftest.cases import FIRST, V3, Array, Direct, Shape


@dataclass(frozen=True)
class Probe:
    """A kernel of ``probes`` with what it takes after ``repeats``. ``decides``: what dominates the difference."""

    name: str
    kernel: str
    shapes: tuple[Shape, ...]
    repeats: tuple[int, ...]
    options: tuple[Any, ...]
    decides: str
    expected: Callable[..., Array]
    dtype: str = "float32"
    since: int = FIRST
    rtol: float = 1e-4
    result: str = ""

    def cases(self) -> list[Direct]:
        """A case of the self-test for each number of repeats."""
        return [
            Direct(
                f"{self.name}_{repeats}",
                f"probes.{self.kernel}",
                self.shapes,
                lambda *arrays, _repeats=repeats: self.expected(*arrays, _repeats, *self.options),
                self.dtype,
                self.rtol,
                self.since,
                (repeats, *self.options),
                self.name,
                self.result,
            )
            for repeats in self.repeats
        ]


def _products(a: Array, b: Array, repeats: int, columns: int) -> Array:
    y = b.copy()
    y[:, :columns] = repeats * (a.T @ b[:, :columns])
    return y


def _additions(x: Array, repeats: int, columns: int, on_gpsimd: bool = False) -> Array:
    y = x.copy()
    y[:, :columns] *= repeats + 1
    return y


def _activations(x: Array, repeats: int, columns: int, functions: int = 0) -> Array:
    y = x.copy()
    for i in range(repeats if functions else 0):
        first = y[:, :columns]
        y[:, :columns] = np.exp(-first) if functions == 1 or i % 2 == 0 else 1 / (1 + np.exp(-first))
    return y


def _same(x: Array, *options: Any) -> Array:
    return x


def _loads(x: Array, repeats: int, way: str, rows: int, step: int = 1) -> Array:
    y = np.zeros((x.shape[0], x.shape[1] // step))
    y[:rows] = x[:rows, ::step]
    return y


_AB = ((128, 128), (128, 512))
_SQUARE, _WIDE, _ROW = ((128, 128),), ((128, 2048),), ((128, 64),)
_SMALL, _LARGE = ((128, 4),), ((128, 4096),)

PROBES: tuple[Probe, ...] = (
    Probe(
        "products_512",
        "repeat_products",
        _AB,
        (64, 512),
        (512,),
        "tensor",
        _products,
        "bfloat16",
        rtol=2e-2,
        result="float32",
    ),
    Probe(
        "products_128",
        "repeat_products",
        _AB,
        (64, 768),
        (128,),
        "tensor",
        _products,
        "bfloat16",
        rtol=2e-2,
        result="float32",
    ),
    Probe("products_float32", "repeat_products", _AB, (16, 128), (512,), "tensor", _products),
    Probe("turns", "turn_in_turn", _SQUARE, (16, 64), (), "tensor", _same, "bfloat16", rtol=0.0),
    Probe("additions_64", "repeat_additions", _WIDE, (32, 256), (64,), "vector", _additions),
    Probe("additions_2048", "repeat_additions", _WIDE, (8, 128), (2048,), "vector", _additions),
    Probe("gpsimd_64", "repeat_additions", _WIDE, (32, 256), (64, True), "gpsimd", _additions),
    Probe("gpsimd_2048", "repeat_additions", _WIDE, (8, 128), (2048, True), "gpsimd", _additions),
    Probe("scalings_64", "repeat_activations", _WIDE, (32, 768), (64,), "scalar", _activations),
    Probe("scalings_2048", "repeat_activations", _WIDE, (8, 128), (2048,), "scalar", _activations),
    Probe("exponentials", "repeat_activations", _WIDE, (32, 768), (64, 1), "scalar", _activations),
    Probe("tables", "repeat_activations", _WIDE, (8, 256), (64, 2), "function tables", _activations),
    Probe("vector_scalar", "take_turns", _ROW, (32, 128), (), "semaphores", _same),
    Probe("gpsimd_scalar", "take_turns", _ROW, (32, 128), (True,), "semaphores", _same),
    Probe("bounce_static", "bounce", _SMALL, (8, 32), ("static",), "DMA static", _same),
    Probe("bounce_hardware", "bounce", _SMALL, (8, 32), ("hardware",), "DMA hardware", _same, since=V3),
    Probe("bounce_software", "bounce", _SMALL, (8, 32), ("software",), "DMA software", _same, since=V3),
    Probe("loads_static", "repeat_loads", _SMALL, (32, 512), ("static", 1), "DMA static", _loads),
    Probe("loads_hardware", "repeat_loads", _SMALL, (32, 384), ("hardware", 128), "DMA hardware", _loads, since=V3),
    Probe("loads_software", "repeat_loads", _SMALL, (32, 384), ("software", 128), "DMA software", _loads, since=V3),
    Probe("row_software", "repeat_loads", _SMALL, (32, 512), ("software", 1), "DMA software", _loads, since=V3),
    Probe("bytes", "repeat_loads", _LARGE, (2, 48), ("static", 128), "DMA bandwidth", _loads),
    Probe("bytes_of_an_engine", "repeat_loads", _LARGE, (2, 48), ("static", 8), "DMA bandwidth", _loads),
    Probe("descriptors_of_4", "repeat_loads", ((128, 512),), (4, 32), ("static", 128, 2), "DMA packets", _loads),
    Probe("descriptors_of_256", "repeat_loads", _ROW, (32, 256), ("static", 8), "DMA packets", _loads),
)
