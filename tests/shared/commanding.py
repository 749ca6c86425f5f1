"""Shared by the tests of the command line: calls of trnrt in this process, and models to call it with."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from trnrt.cli import app


class Outcome:
    """What a call of trnrt gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> Any:
        """The one JSON document on stdout, read strictly."""
        return json.loads(self.out, parse_constant=lambda constant: pytest.fail(f"{constant} in JSON"))


def trnrt(*arguments: str | Path) -> Outcome:
    """Call trnrt in this process; an error that isn't handled fails the test."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    finally:
        # That of a server would end these tests when they are stopped, and say that all is well.
        if signal.getsignal(signal.SIGTERM) is not before:
            signal.signal(signal.SIGTERM, before)
    return Outcome(result.exit_code, result.stdout, result.stderr)


def save_model(path: Path, nodes: list[Any], shape: list[Any], out: list[Any], **names: str) -> str:
    """A float32 model of these nodes from the input to the output, as a file."""
    source, result = names.get("source", "x"), names.get("result", "y")
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, out)],
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return str(path)
