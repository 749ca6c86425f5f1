"""``neuronxcc.nki.typing``: annotations of parameters, and tensors that a benchmark takes without their data.

``nt.tensor[128, 512]`` annotates and checks nothing. ``nt.tensor[[128, 512], nl.float32]`` is an argument in place of
an array: the shape and the format are all that a prediction needs.
"""

from __future__ import annotations

from typing import Any

from trnrt.nki.sim.arguments import Spec

__all__ = ["mutable_tensor", "scalar", "tensor"]


class tensor:  # noqa: N801 - NKI's name
    """A tensor parameter."""

    def __class_getitem__(cls, key: Any) -> Any:
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], (list, tuple)):
            return Spec(key[0], key[1])
        return cls


class mutable_tensor(tensor):  # noqa: N801 - NKI's name
    """A tensor parameter that the kernel writes."""


class scalar:  # noqa: N801 - NKI's name
    """A parameter of one number."""

    def __class_getitem__(cls, key: Any) -> type[scalar]:
        return cls
