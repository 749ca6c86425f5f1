"""PyTorch's own tensors and scripts, for the fake torch_neuronx; imported where PyTorch is installed only.

What is traced is a real ``torch.jit.ScriptModule``, whose parameters are the weights, and which calls one operator of
ours for the compiled kernel. So ``torch.jit.save`` and ``load`` are PyTorch's own. While a module is traced its tensors
are on the device "meta", which has no data, as XLA's have none then.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from fake_neuron import fake_torch_neuronx as neuronx
from fake_neuron.documented import NotDocumented, documented

Array = NDArray[Any]

_numbers = itertools.count(1)
_placed: dict[int, neuronx.Placed] = {}
_tracing = False

_library = torch.library.Library("fake_neuron", "DEF")
_library.define("run(str document, Tensor number, Tensor[] inputs, Tensor[] weights) -> Tensor[]")


def is_tensor(value: Any, device: str | None = None) -> bool:
    """Whether a value is a tensor (of a device)."""
    return isinstance(value, torch.Tensor) and device in (None, value.device.type)


def dtype_name(tensor: Any) -> str:
    """As numpy and ml_dtypes call it."""
    return str(tensor.dtype).removeprefix("torch.")


def from_array(array: Array, device: str) -> Any:
    """An array as a tensor, whatever its dtype."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def as_array(tensor: Any) -> Array:
    """A tensor as an array of its own."""
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.detach().view(torch.int16).numpy().copy()
        return bits.view(ml_dtypes.bfloat16)
    array: Array = tensor.detach().numpy().copy()
    return array


def on_xla(tensor: Any) -> Any:
    """A tensor as it is while a module is traced."""
    return torch.empty_like(tensor, device="meta")


def parameters(module: Any) -> dict[str, Any]:
    """The parameters of a module, by name."""
    return dict(module.named_parameters()) if isinstance(module, torch.nn.Module) else {}


@torch.library.impl(_library, "run", "CPU")  # type: ignore[untyped-decorator]
def _run(document: str, number: Any, inputs: list[Any], weights: list[Any]) -> list[Any]:
    if _tracing:
        return [torch.zeros(1) for _ in range(json.loads(document)["results"])]
    neff, arrays = neuronx.Neff(json.loads(document)), [as_array(tensor) for tensor in inputs]
    results = neuronx.execute(_placed[int(number)], neff, arrays, [as_array(weight) for weight in weights])
    return [from_array(result, "cpu") for result in results]


class _Compiled(torch.nn.Module):  # type: ignore[misc]
    """What is traced: the weights as parameters, and a number that tells where this copy of the module is."""

    def __init__(self, document: dict[str, Any], weights: list[Any]) -> None:
        super().__init__()
        self.document, self.text = document, json.dumps(document)
        self.register_buffer("number", torch.tensor(0))
        for k, weight in enumerate(weights):
            self.register_parameter(f"weight_{k}", torch.nn.Parameter(weight.detach().clone(), requires_grad=False))
        self.count = len(weights)

    def forward(self, *inputs: Any) -> Any:
        weights = [getattr(self, f"weight_{k}") for k in range(self.count)]
        results = torch.ops.fake_neuron.run(self.text, self.number, list(inputs), weights)
        return tuple(results) if self.document["returns_tuple"] else results[0]


def script(neff: neuronx.Neff, weights: list[Any], examples: tuple[Any, ...], placed: neuronx.Placed) -> Any:
    """A compiled module as a ScriptModule."""
    global _tracing
    _tracing = True
    try:
        module = torch.jit.trace(_Compiled(neff.document, weights).eval(), examples, check_trace=False)
    finally:
        _tracing = False
    return _numbered(module, placed)


def placed_of(module: Any) -> neuronx.Placed | None:
    """Where a module is; None for what was not traced."""
    return _placed.get(int(module.number)) if isinstance(module, torch.jit.ScriptModule) else None


_load = torch.jit.load


@documented("torch.jit.load")
def load(f: Any, map_location: Any, _extra_files: Any, _restore_shapes: Any) -> Any:
    """PyTorch's own, and the core that torch_neuronx puts the module on meanwhile."""
    if not isinstance(f, str) or map_location is not None:
        raise NotDocumented("no map_location", "a Neuron module is loaded from a path, without map_location")
    module = _load(f)
    return _numbered(module, neuronx.loaded(json.loads(_text_of(module))))


def _text_of(module: Any) -> str:
    """The document that a loaded module has as a constant of its graph."""
    graph = module.inlined_graph  # its nodes end with it
    (node,) = graph.findAllNodes("fake_neuron::run")
    text: str = next(node.inputs()).toIValue()
    return text


def _numbered(module: Any, placed: neuronx.Placed) -> Any:
    number = next(_numbers)
    _placed[number] = placed
    module.number.fill_(number)
    return module
