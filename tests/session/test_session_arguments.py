"""A session takes models and dtypes in the forms that scripts have them, and says what to give for the wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import trnrt
from trnrt.errors import InputError, ModelFileError, OptionError
from trnrt.running.sources import dtype_name, read_source

X = np.ones((2, 3), np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


def net(inputs: str = "float[N,3] x") -> onnx.ModelProto:
    """A Relu of x; other inputs are added up beside it."""
    names = [each.split()[-1] for each in inputs.split(", ")]
    body = "y = Relu(x)" if len(names) == 1 else f"y = Add({', '.join(names)})"
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]>\nnet ({inputs}) => (float[N,3] y) {{ {body} }}'
    )


@pytest.mark.parametrize("kind", ["proto", "ir", "bytes", "bytearray", "path", "text", "keyword"])
def test_models_in_any_form(kind: str, tmp_path: Path) -> None:
    model, path = net(), tmp_path / "net.onnx"
    onnx.save(model, path)
    forms: dict[str, Any] = {
        "proto": model, "ir": ir.from_proto(model), "bytes": model.SerializeToString(),
        "bytearray": bytearray(model.SerializeToString()), "path": path, "text": str(path),
    }  # fmt: skip
    session = trnrt.InferenceSession(path_or_bytes=path) if kind == "keyword" else trnrt.InferenceSession(forms[kind])
    np.testing.assert_array_equal(session.run(None, {"x": X - 2})[0], np.zeros((2, 3)))


def test_no_model_or_two(tmp_path: Path) -> None:
    for given in ({}, {"model": net(), "path_or_bytes": b""}):
        with pytest.raises(TypeError, match="needs one model"):
            trnrt.InferenceSession(**given)
    with pytest.raises(OptionError, match="a model is of type int"):
        read_source(3)
    apart = net("float[N,3] x, float[N,3] w")
    apart.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 3), np.float32), "w"))
    del apart.graph.input[1]
    onnx.save(apart, tmp_path / "apart.onnx", save_as_external_data=True, size_threshold=0)
    with pytest.raises(ModelFileError):
        trnrt.InferenceSession(onnx.load(tmp_path / "apart.onnx", load_external_data=False))


class TorchDtype:
    """A dtype that prints its name as torch's do."""

    def __str__(self) -> str:
        return "torch.bfloat16"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("bf16", "bfloat16"), ("BF16", "bfloat16"), ("fp16", "float16"), ("half", "float16"), ("fp32", "float32"),
        ("float", "float32"), ("Float32", "float32"), ("fp8", "float8_e4m3"), (np.float16, "float16"),
        (np.dtype("float32"), "float32"), (ml_dtypes.bfloat16, "bfloat16"), (TorchDtype(), "bfloat16"),
        ("torch.float16", "float16"), ("posit", "posit"),
    ],
)  # fmt: skip
def test_names_of_dtypes(given: object, name: str) -> None:
    assert dtype_name(given) == name


def test_dtypes_and_targets_of_a_session() -> None:
    session = trnrt.InferenceSession(net(), dtype=ml_dtypes.bfloat16, target="Trn1")
    assert (session.dtype, session.target) == ("bfloat16", "trn1")
    assert trnrt.InferenceSession(net(), dtype="FP16").dtype == "float16"
    for wrong, match in (("int4", "unknown dtype 'int4'"), (3, "3 is no dtype"), (Path, "is no dtype")):
        with pytest.raises(OptionError, match=match):
            trnrt.InferenceSession(net(), dtype=wrong)
    with pytest.raises(OptionError, match="unknown target 'TRN9'"):
        trnrt.InferenceSession(net(), target="TRN9")


def test_arrays_in_place_of_a_dict() -> None:
    session = trnrt.InferenceSession(net())
    for wrong in (X, [X], "x"):
        with pytest.raises(InputError, match="should be a dict of arrays by name") as caught:
            session.run(None, wrong)  # type: ignore[arg-type]
        assert caught.value.hint == "give {'x': x}"
    both = trnrt.InferenceSession(net("float[N,3] x, float[N,3] z"))
    with pytest.raises(InputError, match="are of type list") as caught:
        both.run(None, [X, X])  # type: ignore[arg-type]
    assert caught.value.hint == "give {'x': x0, 'z': x1}"


def test_a_with_block_releases_programs() -> None:
    with trnrt.InferenceSession(net()) as session:
        session.run(None, {"x": X})
        assert session._programs.loaded
    assert not session._programs.loaded


def test_sizes_of_a_file_change_its_digest_and_batch() -> None:
    options = trnrt.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    fixed, plain = trnrt.InferenceSession(net(), options), trnrt.InferenceSession(net())
    assert (fixed.model.batch, plain.model.batch) == (2, "N")
    assert fixed.model.digest != plain.model.digest
    assert fixed.run(None, {"x": X})[0].shape == (2, 3)


def test_validate_can_be_called_whichever_a_caller_gets() -> None:
    """The package's name is the function's: the import of the package hides the function."""
    first, second = trnrt.validate, trnrt.validate
    for validate in (first, second):
        with pytest.raises(TypeError, match="feeds"):
            validate(None)  # type: ignore[call-arg, arg-type]
