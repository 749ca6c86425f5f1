"""Export Keras networks of the usual kinds: by tf2onnx from Keras 2, and by Keras 3's own `Model.export`.

Needs tensorflow-cpu, tf_keras and tf2onnx: `python models/exports/keras_exports.py --out DIR`. With
`KERAS_BACKEND=torch` (or jax) it writes Keras 3's export on that backend instead; the batch stays open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from saving import Export, Make, run_exports

Build = Callable[[ModuleType], Any]
OPSET = 17


def dense(keras: ModuleType) -> Any:
    """A classifier of 64 features."""
    layers = keras.layers
    x = inputs = keras.Input((64,))
    for width in (128, 64):
        x = layers.Dropout(0.2)(layers.Dense(width, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def cnn(keras: ModuleType) -> Any:
    """Convolutions with BatchNormalization, pools, and a dense layer."""
    layers = keras.layers
    x = inputs = keras.Input((32, 32, 3))
    for width in (32, 64):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def application(name: str, size: int, keras: ModuleType) -> Any:
    """One of Keras's own networks, for ten classes and without a last softmax."""
    made = getattr(keras.applications, name)
    return made(weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None)


def lstm(keras: ModuleType) -> Any:
    """A text classifier: an embedding of int32 ids, two directions, the last state."""
    layers = keras.layers
    inputs = keras.Input((24,), dtype="int32")
    x = layers.Embedding(500, 32)(inputs)
    x = layers.Bidirectional(layers.LSTM(24, return_sequences=True))(x)
    x = layers.LSTM(32)(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def gru(keras: ModuleType) -> Any:
    """A forecaster: a GRU over 24 steps of 8 features."""
    layers = keras.layers
    inputs = keras.Input((24, 8))
    x = layers.GRU(32)(layers.GRU(32, return_sequences=True)(inputs))
    return keras.Model(inputs, layers.Dense(2)(x))


def unet(keras: ModuleType) -> Any:
    """A U-Net of three levels: transposed convolutions and concatenations."""
    layers = keras.layers

    def double(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        return x

    x = inputs = keras.Input((64, 64, 3))
    kept = []
    for width in (16, 32):
        kept.append(double(x, width))
        x = layers.MaxPooling2D()(kept[-1])
    x = double(x, 64)
    for width, before in zip((32, 16), reversed(kept), strict=True):
        x = layers.Conv2DTranspose(width, 2, strides=2, padding="same")(x)
        x = double(layers.Concatenate()([before, x]), width)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    return keras.Model(inputs, layers.Conv2D(2, 1, activation="sigmoid")(x))


def transformer(keras: ModuleType, *, approximate: bool) -> Any:
    """A text classifier with one transformer block: Embedding, MultiHeadAttention, LayerNormalization."""
    layers = keras.layers
    inputs = keras.Input((24,), dtype="int32")
    x = layers.Embedding(500, 32)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x))
    y = layers.Dense(64, activation=lambda z: keras.activations.gelu(z, approximate=approximate))(x)
    y = layers.Dense(32)(y)
    x = layers.LayerNormalization()(x + y)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


NETS: dict[str, tuple[str, Build]] = {
    "dense": ("dense classifier, 64 features", dense),
    "cnn": ("CNN with BatchNormalization, 32x32x3", cnn),
    "mobilenet_v2": ("MobileNetV2, 96x96x3", partial(application, "MobileNetV2", 96)),
    "efficientnet_b0": ("EfficientNetB0, 64x64x3", partial(application, "EfficientNetB0", 64)),
    "lstm": ("text classifier: Embedding, 3 LSTMs, 24 ids", lstm),
    "gru": ("forecaster: 2 GRUs, 24x8", gru),
    "unet": ("U-Net of 3 levels, 64x64x3", unet),
    "transformer": (
        "transformer block: MultiHeadAttention, GELU by tanh, 24 ids",
        partial(transformer, approximate=True),
    ),
    "transformer_erf": ("the same block with the exact GELU", partial(transformer, approximate=False)),
}


def settle(model: Any, seed: int = 0) -> None:
    """Lively numbers: BatchNormalization with the statistics of random inputs, biases that aren't 0."""
    random = np.random.default_rng(seed)
    for layer in model.layers:
        if "Normalization" in type(layer).__name__ and hasattr(layer, "momentum"):
            layer.momentum = 0.5
        if getattr(layer, "use_bias", False) and getattr(layer, "bias", None) is not None:
            layer.bias.assign(random.normal(0, 0.1, layer.bias.shape).astype(np.float32))
    (given,) = model.inputs
    shape = (16, *given.shape[1:])
    for _ in range(8):
        drawn = random.integers(0, 500, shape) if "int" in str(given.dtype) else random.normal(size=shape)
        model(drawn.astype("int32" if "int" in str(given.dtype) else "float32"), training=True)


def by_tf2onnx(build: Build, path: Path) -> None:
    """Keras 2's model, by tf2onnx."""
    import tensorflow as tf
    import tf2onnx
    import tf_keras

    tf_keras.utils.set_random_seed(0)
    model = build(tf_keras)
    settle(model)
    (given,) = model.inputs
    signature = (tf.TensorSpec((None, *given.shape[1:]), given.dtype, name="input"),)
    tf2onnx.convert.from_keras(model, input_signature=signature, opset=OPSET, output_path=str(path))


def by_keras(build: Build, path: Path) -> None:
    """Keras 3's model, by its own export."""
    import keras

    keras.utils.set_random_seed(0)
    model = build(keras)
    settle(model)
    model.export(str(path), format="onnx", verbose=False)


def exports() -> list[tuple[Export, Make]]:
    """All files that this backend writes."""
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    made: list[tuple[Export, Make]] = []
    for name, (title, build) in NETS.items():
        if backend == "tensorflow":
            exporter = f"tf2onnx {version('tf2onnx')}, Keras {version('tf_keras')}"
            made.append((Export(f"keras2_{name}.onnx", "tf2onnx", title, exporter), partial(by_tf2onnx, build)))
        exporter = f"Keras {version('keras')}, {backend}"
        made.append((Export(f"keras3_{backend}_{name}.onnx", "Keras 3", title, exporter), partial(by_keras, build)))
    return made


if __name__ == "__main__":
    run_exports(__doc__, exports())
