"""Quantise common architectures with random weights, and compare them with their integer meaning.

    python tests/shared/quantised_nets.py --form qdq resnet18_dynamo mobilenet_v2_torchscript

takes the graphs of tests/data/architectures (by default ten), draws their weights, calibrates on random images, and
prints a line for each: whether all of it runs on kernels, and whether ``validate`` passes. Minutes each for the larger.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from randomizing import randomized

from trnrt.importer import import_model
from trnrt.quantise.calibrating import find_ranges
from trnrt.quantise.data import Batch, Data
from trnrt.quantise.making import quantise
from trnrt.quantise.preparing import prepare
from trnrt.session import InferenceSession
from trnrt.validate import ValidationReport, validate

GRAPHS = Path(__file__).parents[1] / "data" / "architectures"
TEN = """conv1d_dynamo efficientnet_b0_dynamo keras_style lenet5_dynamo mixer_dynamo mobilenet_v2_torchscript
    mobilenet_v3_small_dynamo resnet18_dynamo unet_dynamo vgg11_bn_torchscript"""
BATCHES = 8


def quantise_model(model: onnx.ModelProto, form: str) -> tuple[bytes, dict[str, NDArray[np.float32]]]:
    """The model in int8, calibrated on random data, and other data of one batch."""
    imported = import_model(model.SerializeToString())
    prepared = prepare(imported, form)
    (info,) = imported.inputs
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in info.shape)
    rng = np.random.default_rng(0)
    batches = [{info.name: rng.standard_normal(shape).astype(np.float32)} for _ in range(BATCHES + 1)]
    data = Data(tuple(Batch(feeds, shape[0]) for feeds in batches[:-1]), BATCHES * shape[0])
    ranges = find_ranges(prepared, data, "minmax", lambda rows: None)
    return quantise(prepared, form, ranges), batches[-1]


def try_architecture(name: str, form: str) -> tuple[ValidationReport, int]:
    """The report of an architecture, and the parts that it runs in: 1 if none is on the CPU."""
    content, feeds = quantise_model(randomized(onnx.load(GRAPHS / f"{name}.onnx")), form)
    session = InferenceSession(content, backend="simulator", cache=False, effort=0)
    return validate(session, feeds), len(session.partition(len(next(iter(feeds.values())))).plans)


def main() -> None:
    """Print a line for each architecture; exit 1 if one fails."""
    parser = ArgumentParser(description="Quantised architectures against their integer meaning.")
    parser.add_argument("names", nargs="*", help="graphs of tests/data/architectures; by default ten")
    parser.add_argument("--form", choices=["qdq", "qoperator"], default="qdq")
    asked = parser.parse_args()
    passed = True
    for name in asked.names or TEN.split():
        report, parts = try_architecture(name, asked.form)
        assert report.integers is not None
        found = report.integers
        passed = passed and report.passed and parts == 1
        flips = ", ".join(f"{layer.elements} of {layer.size} in {layer.value}" for layer in found.layers)
        verdict = "PASS" if report.passed else "FAIL"
        print(
            f"{verdict} {name} {asked.form}: {parts} part(s); flips: {flips or 'none'}; elements of outputs that",
            end=" ",
        )
        print(f"differ from the meaning: {found.own_elements}, onnxruntime's {found.reference_elements}", flush=True)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
