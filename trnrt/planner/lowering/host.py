"""Functions of host nodes: registered by name, so that a plan can be saved without code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

HOST_FUNCTIONS: dict[str, Callable[..., Any]] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def host_function(function: Function) -> Function:
    """Register the function that computes a HostNode; raises where the name is already registered."""
    name = function.__name__
    if name in HOST_FUNCTIONS:
        raise ValueError(f"two host functions are called {name}")
    HOST_FUNCTIONS[name] = function
    return function
