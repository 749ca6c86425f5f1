"""The table of routes."""

from __future__ import annotations

from collections.abc import Callable

from trnrt.backends import DeviceOptions
from trnrt.neuron.routes import Route
from trnrt.neuron.routes.jit import JitRoute
from trnrt.neuron.routes.neff import NeffRoute
from trnrt.neuron.routes.torchneuron import TorchNeuronRoute
from trnrt.neuron.routes.trace import TraceRoute

_ROUTES: dict[str, Callable[[DeviceOptions], Route]] = {
    "neff": NeffRoute,
    "trace": lambda options: TraceRoute(),
    "torchneuron": lambda options: TorchNeuronRoute(),
    "jit": lambda options: JitRoute(),
}


def open_route(name: str, options: DeviceOptions) -> Route:
    """The route called ``name``."""
    return _ROUTES[name](options)
