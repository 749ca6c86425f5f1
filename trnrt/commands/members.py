"""The values of flags that take one of a few words. ``trnrt --help`` imports this module: it imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum

from trnrt.running.sources import DTYPE_NAMES


class DType(StrEnum):
    """The dtype of a model's weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8_E4M3 = "float8_e4m3"
    FLOAT8_E5M2 = "float8_e5m2"

    @staticmethod
    def short_names() -> dict[str, str]:
        """Other names, as other tools write them."""
        return DTYPE_NAMES


class Narrow(StrEnum):
    """The layers that a dtype of 8 bits applies to."""

    FASTER = "faster"
    ALL = "all"


class Backend(StrEnum):
    """The backend for kernel modules."""

    AUTO = "auto"
    SIMULATOR = "simulator"
    NEURON = "neuron"


class Fallback(StrEnum):
    """The runtime for nodes that the device does not support."""

    NONE = "none"
    ONNXRUNTIME = "onnxruntime"


class Engine(StrEnum):
    """The processes that do the work: trnrt's own, or Ray's."""

    LOCAL = "local"
    RAY = "ray"


class Stage(StrEnum):
    """A stage of a model that ``inspect`` can show."""

    IMPORTED = "imported"
    REWRITTEN = "rewritten"
    PLANNED = "planned"


class Layout(StrEnum):
    """The order of an image's dimensions."""

    NCHW = "NCHW"
    NHWC = "NHWC"


class Fit(StrEnum):
    """The ways to fit an image of another size to the input."""

    STRETCH = "stretch"
    LETTERBOX = "letterbox"
    CROP = "crop"
    CENTER = "center"


class Preprocess(StrEnum):
    """A known way from a picture to a model's input; see ``trnrt.inputs.images.PRESETS``."""

    IMAGENET = "imagenet"


class DrawAs(StrEnum):
    """The readings of outputs that can be drawn; auto goes by their form."""

    AUTO = "auto"
    BOXES = "boxes"
    MASK = "mask"


class Color(StrEnum):
    """The channels of an image, in order."""

    L = "L"
    RGB = "RGB"
    BGR = "BGR"
    RGBA = "RGBA"
    BGRA = "BGRA"
