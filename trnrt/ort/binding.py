"""IOBinding: inputs and outputs that are named once, and used by many runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.ort.refused import refusal
from trnrt.ort.values import OrtValue, check_host, memory_at
from trnrt.text import names_text, quote

Array = NDArray[Any]


class IOBinding:
    """Values for a session's inputs, and places for its outputs; ``run_with_iobinding`` uses them.

    Inputs are held by reference: a run reads the numbers that are there at that time. Outputs come in the order in
    which they were bound.
    """

    def __init__(self, session: Any) -> None:
        self._known_inputs = [info.name for info in session.get_inputs()]
        self._known_outputs = [info.name for info in session.get_outputs()]
        self._inputs: dict[str, Any] = {}
        self._places: dict[str, Array | None] = {}
        self._outputs: dict[str, OrtValue] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Use this array, or list of numbers."""
        self._inputs[_known_name(name, self._known_inputs, "input")] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Use the numbers at an address of the host's memory, which must stay valid until the last run."""
        check_host(device_type, address=True)
        self._inputs[_known_name(name, self._known_inputs, "input")] = memory_at(buffer_ptr, shape, element_type)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Use a value."""
        self._inputs[_known_name(name, self._known_inputs, "input")] = ortvalue.numpy()

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Compute this output; with an address of the host's memory, write it there."""
        check_host(device_type, address=buffer_ptr is not None)
        place = None
        if buffer_ptr is not None:
            if shape is None or element_type is None:
                raise InputError(f"output {quote(name)} has an address, and no shape or element type")
            place = memory_at(buffer_ptr, shape, element_type)
        self._bind_output(name, place)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Compute this output, and write it into the value's memory."""
        self._bind_output(name, ortvalue.numpy())

    def clear_binding_inputs(self) -> None:
        """Forget all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget all outputs."""
        self._places.clear()
        self._outputs.clear()

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return list(self._outputs.values())

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Copies of the outputs of the last run, in the order in which they were bound."""
        return [value.numpy().copy() for value in self._outputs.values()]

    def get_outputs_as_ortvaluevector(self) -> object:
        """Refused: ``get_outputs`` has them."""
        raise refusal("IOBinding", "get_outputs_as_ortvaluevector")

    def synchronize_inputs(self) -> None:
        """Nothing to wait for: inputs are in the host's memory."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for: a run ends when its outputs are there."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The arrays of the inputs that are bound."""
        return self._inputs

    @property
    def output_names(self) -> list[str]:
        """The outputs that are bound."""
        if not self._places:
            raise InputError("no output is bound", hint=f"bind_output one of {names_text(self._known_outputs)}")
        return list(self._places)

    def take(self, outputs: Sequence[Any]) -> None:
        """Keep a run's outputs, in their places; InputError if one doesn't fit its place."""
        pairs = list(zip(self._places.items(), outputs, strict=True))
        for (name, place), made in pairs:
            if place is not None and (place.shape != made.shape or place.dtype != made.dtype):
                raise InputError(
                    f"output {quote(name)} is {made.dtype} {made.shape}; the place bound for it is "
                    f"{place.dtype} {place.shape}"
                )
        for (name, place), made in pairs:
            if place is not None:
                np.copyto(place, made)
            self._outputs[name] = OrtValue(made if place is None else place)

    def _bind_output(self, name: str, place: Array | None) -> None:
        self._places[_known_name(name, self._known_outputs, "output")] = place
        self._outputs.pop(name, None)


SessionIOBinding = IOBinding
"""onnxruntime's other name for it."""


def _known_name(name: str, names: Sequence[str], what: str) -> str:
    if name not in names:
        raise InputError(f"the model has no {what} {quote(name)}", hint=f"its {what}s are {names_text(names)}")
    return name
