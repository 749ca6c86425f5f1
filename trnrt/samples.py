"""The sample models inside the package, each with rows and labels of its own: they need no checkout and no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trnrt.errors import OptionError

# The self-test's files: links in a checkout, files in a wheel.
_FOLDER = Path(__file__).parent / "neuron" / "selftest"


@dataclass(frozen=True)
class Sample:
    """A model and its held-out data: an .npz with the model's inputs and ``label``."""

    name: str
    about: str
    model: Path
    data: Path


_DIGITS = _FOLDER / "digits_test.npz"
SAMPLES = {
    sample.name: sample
    for sample in (
        Sample("digits", "a CNN for 8x8 digits", _FOLDER / "digits_cnn.onnx", _DIGITS),
        Sample("digits-ffnn", "a feed-forward net for 8x8 digits", _FOLDER / "digits_ffnn.onnx", _DIGITS),
    )
}


def find_sample(name: str) -> Sample:
    """The sample of a name; OptionError that lists all names if there is none."""
    if name not in SAMPLES:
        names = ", ".join(f"{sample.name} ({sample.about})" for sample in SAMPLES.values())
        raise OptionError(f"there is no sample {name!r}", hint=f"samples are {names}")
    return SAMPLES[name]
