"""Files that onnxruntime's optimizer saved, made here: they become plain operators, with the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper
from rewritten import run

from trnrt import InferenceSession
from trnrt.importer import import_model
from trnrt.importer.fused.blocked import DOMAIN, own_block_size

Array = npt.NDArray[Any]
Levels = onnxruntime.GraphOptimizationLevel
LEVELS = {"basic": Levels.ORT_ENABLE_BASIC, "extended": Levels.ORT_ENABLE_EXTENDED, "all": Levels.ORT_ENABLE_ALL}
RANDOM = np.random.default_rng(0)
needs_blocks = pytest.mark.skipif(own_block_size() == 0, reason="onnxruntime has no blocked layout on this processor")


def optimise(proto: onnx.ModelProto, level: str, folder: Path) -> onnx.ModelProto:
    """The model as onnxruntime saves it after its optimizer has run."""
    path = folder / f"{level}.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def foreign(proto: onnx.ModelProto) -> set[str]:
    return {f"{node.domain}.{node.op_type}".removeprefix("com.microsoft.") for node in proto.graph.node if node.domain}


def modelled(body: str, shape: str, constants: dict[str, Array], opset: int = 17) -> onnx.ModelProto:
    """A model with the input x of a shape and the output y."""
    rank = ",".join("ABCD"[: shape.count(",") + 1])
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[{shape}] x) => (float[{rank}] y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return proto


def filters(*shape: int) -> Array:
    """Weights that keep what they are given about as large."""
    drawn: Array = RANDOM.standard_normal(shape).astype(np.float32)
    return drawn / np.float32(np.sqrt(np.prod(shape[1:])))


def numbers(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def residual() -> onnx.ModelProto:
    """Channels that are no multiple of a block's, a sum, a pool, a global pool and a classifier."""
    body = """a = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w1, b1) b = Relu(a)
        c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b) d = Conv<pads=[1,1,1,1]>(c, w2, b2) e = Relu(d)
        f = Conv(e, w3, b3) g = Add(f, c) h = Relu(g) i = GlobalAveragePool(h) j = Flatten(i) y = Gemm(j, w4, b4)"""
    constants = {
        "w1": filters(16, 3, 3, 3),
        "w2": filters(20, 16, 3, 3),
        "w3": filters(16, 20, 1, 1),
        "w4": filters(16, 5),
    }
    constants |= {"b1": numbers(16), "b2": numbers(20), "b3": numbers(16), "b4": numbers(5)}
    return modelled(body, "N,3,17,17", constants)


def mobile() -> onnx.ModelProto:
    """Depthwise and grouped convolutions, clips, swishes, and a gate."""
    body = """a = Conv<pads=[1,1,1,1]>(x, w1, b1) b = Clip(a, low, high) c = Conv<group=24, pads=[1,1,1,1]>(b, w2, b2)
        s = Sigmoid(c) d = Mul(c, s) m = GlobalAveragePool(d) n = Conv(m, w5) o = Sigmoid(n) p = Mul(d, o)
        e = Conv<group=1>(p, w3, b3) f = HardSigmoid(e)
        h = AveragePool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1]>(f) y = LeakyRelu<alpha=0.2>(h)"""
    constants = {
        "w1": filters(24, 4, 3, 3),
        "w2": filters(24, 1, 3, 3),
        "w3": filters(16, 24, 1, 1),
        "w5": filters(24, 24, 1, 1),
    }
    constants |= {
        "b1": numbers(24),
        "b2": numbers(24),
        "b3": numbers(16),
        "low": np.zeros((), np.float32),
        "high": np.full((), 2, np.float32),
    }
    return modelled(body, "N,4,10,10", {name: np.asarray(array) for name, array in constants.items()})


def grouped() -> onnx.ModelProto:
    """Groups of whole blocks, a Concat and an enlarged image."""
    body = """a = Conv(x, w1) b = Conv<group=2, pads=[1,1,1,1]>(a, w2) c = Relu(b) d = Concat<axis=1>(a, c)
        e = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(d, roi, scales)
        f = Conv(e, w3) y = Tanh(f)"""
    constants = {"w1": filters(32, 16, 1, 1), "w2": filters(32, 16, 3, 3), "w3": filters(8, 64, 1, 1)}
    return modelled(body, "N,16,6,6", constants | {"roi": numbers(0), "scales": np.array([1, 1, 2, 2], np.float32)})


def encoder(opset: int) -> onnx.ModelProto:
    """A layer of a transformer: heads, a masked softmax, GELU, and LayerNormalization written out before opset 17."""
    body, constants = (
        "",
        {"scale": np.asarray(np.float32(0.5)), "heads": np.array([0, 0, 2, 4]), "flat": np.array([0, 0, 8])},
    )
    for letter in "qkv":
        perm = "0,2,3,1" if letter == "k" else "0,2,1,3"
        body += f"""{letter}1 = MatMul(x, w{letter}) {letter}2 = Add({letter}1, b{letter})
            {letter}3 = Reshape({letter}2, heads) {letter}4 = Transpose<perm=[{perm}]>({letter}3) """
        constants |= {f"w{letter}": filters(8, 8), f"b{letter}": numbers(8)}
    body += """t = MatMul(q4, k4) u = Mul(t, scale) v = Softmax<axis=-1>(u) w = MatMul(v, v4)
        a1 = Transpose<perm=[0,2,1,3]>(w) a2 = Reshape(a1, flat)
        a3 = MatMul(a2, wo) a4 = Add(a3, bo) a5 = Add(a4, x) """
    constants |= {"wo": filters(8, 8), "bo": numbers(8), "g": numbers(8), "h": numbers(8)}
    if opset >= 17:
        body += "n = LayerNormalization<axis=-1>(a5, g, h) "
    else:
        body += """m1 = ReduceMean<axes=[-1]>(a5) m2 = Sub(a5, m1) m3 = Pow(m2, two) m4 = ReduceMean<axes=[-1]>(m3)
            m5 = Add(m4, eps) m6 = Sqrt(m5) m7 = Div(m2, m6) m8 = Mul(m7, g) n = Add(m8, h) """
        constants |= {"eps": np.asarray(np.float32(1e-5))}
    body += """f1 = MatMul(n, w1) f2 = Add(f1, b1) f3 = Div(f2, root) f4 = Erf(f3) f5 = Add(f4, one) f6 = Mul(f2, f5)
        f7 = Mul(f6, half) f8 = MatMul(f7, w2) f9 = Add(f8, b2) y = Add(f9, n)"""
    constants |= {"w1": filters(8, 16), "b1": numbers(16), "w2": filters(16, 8), "b2": numbers(8)}
    scalars = {"root": 2**0.5, "one": 1.0, "half": 0.5, "two": 2.0}
    constants |= {name: np.asarray(number, np.float32) for name, number in scalars.items()}
    return modelled(body, "N,S,8", constants, opset)


MODELS = {
    "residual": (residual, (2, 3, 17, 17)),
    "mobile": (mobile, (2, 4, 10, 10)),
    "grouped": (grouped, (2, 16, 6, 6)),
    "encoder 13": (lambda: encoder(13), (2, 5, 8)),
    "encoder 17": (lambda: encoder(17), (2, 5, 8)),
}
WRITTEN = {
    ("residual", "extended"): {"FusedConv"},
    ("residual", "all"): {"nchwc.Conv", "nchwc.MaxPool", "nchwc.GlobalAveragePool", "nchwc.ReorderOutput"},
    ("mobile", "extended"): {"FusedConv", "QuickGelu"},
    ("mobile", "all"): {"nchwc.AveragePool"},
    ("grouped", "all"): {"nchwc.Upsample"},
    ("encoder 13", "extended"): {"BiasGelu", "FusedMatMul", "SkipLayerNormalization"},
    ("encoder 17", "all"): {"BiasGelu", "FusedMatMul", "SkipLayerNormalization"},
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MODELS)
def test_optimised_models_run(name: str, level: str, tmp_path: Path) -> None:
    """Wholly on kernels, with the answers of the model before it was optimised."""
    make, shape = MODELS[name]
    plain = make()
    proto = optimise(plain, level, tmp_path)
    if level != "all" or own_block_size():
        assert WRITTEN.get((name, level), set()) <= foreign(proto)
    feeds = {"x": RANDOM.standard_normal(shape).astype(np.float32)}
    wanted = run(plain, feeds)[0]
    session = InferenceSession(proto.SerializeToString(), cache=False)
    got: Any = session.run(None, feeds)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert wanted.std() > 0.05 and len(np.unique(wanted)) > 5


# -- blocks ----------------------------------------------------------------------------------------------


def in_blocks(plain: Array, size: int, *, is_first: bool) -> Array:
    """Filters (O, I, kh, kw) as onnxruntime stores them, padded to whole blocks; ``is_first``: of plain images."""
    outputs, inputs, *kernel = plain.shape
    wide = inputs if is_first else -(-inputs // size) * size
    padded = np.zeros((-(-outputs // size) * size, wide, *kernel), np.float32)
    padded[:outputs, :inputs] = plain
    if is_first:
        blocks = padded.reshape(-1, size, wide, *kernel).transpose(0, 2, 3, 4, 1)
    else:
        blocks = padded.reshape(-1, size, wide // size, size, *kernel).transpose(0, 2, 4, 5, 3, 1)
    return np.ascontiguousarray(blocks).reshape(padded.shape)


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("widths", [(3, 8, 20), (3, 24, 40), (7, 12, 16)])
def test_blocks_of_each_size(widths: tuple[int, int, int], size: int) -> None:
    """Filters that are put into blocks here: those of a file from another processor, too."""
    first, inner, last = widths
    arrays = [filters(inner, first, 3, 3), filters(last, inner, 3, 3)]
    plain = modelled(
        "a = Conv(x, v) b = Relu(a) y = Conv(b, w)", f"N,{first},9,9", dict(zip("vw", arrays, strict=True))
    )
    constants = [in_blocks(array, size, is_first=k == 0) for k, array in enumerate(arrays)]
    # Channels in whole blocks of 16 might be of 8, too: then the file doesn't say it.
    decides = size == 8 and any(array.shape[0] % 16 for array in constants)
    body = f"""b = {DOMAIN}.Conv<activation="Relu">(x, v) c = {DOMAIN}.Conv(b, w)
        y = {DOMAIN}.ReorderOutput<channels={last}>(c)"""
    proto = modelled(body, f"N,{first},9,9", dict(zip("vw", constants, strict=True)))
    proto.opset_import.add(domain=DOMAIN, version=1)
    if not decides and size != own_block_size():
        pytest.skip("the file doesn't say its blocks' size, and it isn't this processor's")
    model = import_model(proto.SerializeToString())
    feeds = {"x": numbers(2, first, 9, 9)}
    np.testing.assert_allclose(run(ir.to_proto(model.model), feeds)[0], run(plain, feeds)[0], rtol=1e-5, atol=1e-5)
    shapes = [node.inputs[1].const_value.shape for node in model.model.graph if node.op_type == "Conv"]  # type: ignore[union-attr]
    assert [tuple(shape) for shape in shapes] == [array.shape for array in arrays]
    notes = model.bind({"x": (2, first, 9, 9)}).notes
    assert any("blocks of" in note for note in notes) != decides


def test_an_unblocked_image_of_many_channels_decides() -> None:
    """Filters of 12 channels of a plain image: fewer than a block of 16 has."""
    plain = filters(16, 12, 3, 3)
    body = f"b = {DOMAIN}.Conv(x, v) y = {DOMAIN}.ReorderOutput<channels=16>(b)"
    proto = modelled(body, "N,12,9,9", {"v": in_blocks(plain, 16, is_first=True)})
    proto.opset_import.add(domain=DOMAIN, version=1)
    feeds = {"x": numbers(1, 12, 9, 9)}
    wanted = run(modelled("y = Conv(x, v)", "N,12,9,9", {"v": plain}), feeds)[0]
    got = run(ir.to_proto(import_model(proto.SerializeToString()).model), feeds)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@needs_blocks
def test_this_machines_blocks_are_onnxruntimes(tmp_path: Path) -> None:
    proto = optimise(residual(), "all", tmp_path)
    stored = {tensor.name: tensor.dims[0] for tensor in proto.graph.initializer if len(tensor.dims) == 4}
    assert all(count % own_block_size() == 0 for count in stored.values())


# -- transformers ------------------------------------------------------------------------------------------


def test_a_transformer_of_fused_operators_runs() -> None:
    """As onnxruntime.transformers.optimizer writes BERT: embeddings, attention, sums that are normalised, GELU."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (int64[N,6] i0, int64[N,6] k0) => (float[N,6,8] y)
        { i = Cast<to=6>(i0) k = Cast<to=6>(k0) e, m = com.microsoft.EmbedLayerNormalization(i, k, w, p, s, g, b)
          a = com.microsoft.Attention<num_heads=2>(e, wa, ba)
          c = MatMul(a, wc) d = com.microsoft.SkipLayerNormalization(c, e, g, b, bc)
          f = MatMul(d, wf) h = com.microsoft.FastGelu(f, bf) j = MatMul(h, wj)
          y = com.microsoft.SkipLayerNormalization(j, d, g, b, bc) }"""
    proto = onnx.parser.parse_model(text)
    constants = {"w": numbers(30, 8), "p": numbers(9, 8), "s": numbers(2, 8), "g": numbers(8), "b": numbers(8)}
    constants |= {"wa": filters(8, 24), "ba": numbers(24), "wc": filters(8, 8), "bc": numbers(8)}
    constants |= {"wf": filters(8, 16), "bf": numbers(16), "wj": filters(16, 8)}
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    feeds = {n: RANDOM.integers(0, top, (2, 6)) for n, top in (("i0", 30), ("k0", 2))}
    got: Any = InferenceSession(proto.SerializeToString(), cache=False).run(None, feeds)[0]
    np.testing.assert_allclose(got, run(proto, feeds)[0], rtol=1e-3, atol=1e-4)
