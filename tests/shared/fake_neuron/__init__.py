"""A stand-in for PyTorch, torch-neuronx and a Neuron device, made from the SDK's reference text.

It has the documented functions that are needed to compile, save, place and run a module, with the signatures that
``tests/data/neuron/reference.json`` records, and fails at any call or environment that the reference does not allow.
What the device would compute, our simulator does. It was written from the documentation, without a device at hand.
"""

from __future__ import annotations

from fake_neuron.documented import REFERENCE, NotDocumented
from fake_neuron.hardware import Faults, Hardware

__all__ = ["REFERENCE", "Faults", "Hardware", "NotDocumented"]
