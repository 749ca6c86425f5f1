"""The cases of the self-test, as tables: every kernel on small shapes, and both sample models.

A ``Small`` case is an ONNX graph of a few nodes: it goes through importer, planner and backend, and is compared with
onnxruntime. A ``Direct`` case calls a kernel with arrays, and is compared with numpy. A ``Sample`` case runs a model of
the package on images that it was not trained on. ``since``: the first generation of NeuronCores
(``Target.generation``) that can run the case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

HERE = Path(__file__).parent
FIRST, V3 = 2, 3
"""Generations of NeuronCores: the first with NKI, and the first with DMA transposes and double rows."""


@dataclass(frozen=True)
class Small:
    """``nodes``: from ``x`` to ``y``, in ONNX's text format. ``weights``: name -> shape; their values are random.
    ``indices``: the shape of an input ``i`` of row numbers of the first weight; () for no such input."""

    name: str
    nodes: str
    x: Shape
    y: Shape
    weights: dict[str, Shape] = field(default_factory=dict)
    kind: str = "float"
    dtype: str = "float32"
    since: int = FIRST
    indices: Shape = ()

    def model(self) -> bytes:
        """The graph with its weights."""
        import onnx

        inputs = f"float[{_text(self.x)}] x" + (f", int64[{_text(self.indices)}] i" if self.indices else "")
        text = f"g ({inputs}) => ({self.kind}[{_text(self.y)}] y) {{ {self.nodes} }}"
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]>\n{text}')
        random = np.random.default_rng(len(self.name))
        for name, shape in self.weights.items():
            drawn = (random.standard_normal(shape) / 2).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(drawn, name))
        return bytes(model.SerializeToString())

    def feeds(self) -> dict[str, Array]:
        """Random numbers in (0.1, 1.1), which every operator of the table accepts."""
        random = np.random.default_rng(7)
        feeds: dict[str, Array] = {"x": (random.random(self.x) + 0.1).astype(np.float32)}
        if self.indices:
            rows, *_ = next(iter(self.weights.values()))
            feeds["i"] = random.integers(0, rows, self.indices)
        return feeds


@dataclass(frozen=True)
class Direct:
    """``body``: a kernel of ``bodies``, of ``probes`` ("probes.name") or, with its module's name, of trnrt.kernels.
    ``expected``: the same in numpy.

    ``options``: further arguments of the kernel. ``probe``: the name of the ``Probe`` that it is a case of, "" for
    none. ``result``: the dtype of the result, "" for that of the operands. The kernel is named, not imported: if AWS's
    nki refuses a file of kernels, only the cases that need it fail.
    """

    name: str
    body: str
    shapes: tuple[Shape, ...]
    expected: Callable[..., Array]
    dtype: str = "float32"
    rtol: float = 1e-4
    since: int = FIRST
    options: tuple[Any, ...] = ()
    probe: str = ""
    result: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """The module of the kernel, and its name there."""
        module, _, name = self.body.rpartition(".")
        own = module in ("", "probes")
        return f"trnrt.neuron.selftest.{module or 'bodies'}" if own else f"trnrt.kernels.{module}", name

    @property
    def result_dtype(self) -> str:
        """The dtype of the result."""
        return self.result or self.dtype

    def find_kernel(self) -> Any:
        """The kernel; imports its module."""
        module, name = self.place
        return getattr(import_module(module), name)

    def arrays(self) -> list[Array]:
        """Random operands of the dtype."""
        from trnrt.nki.machine.dtypes import as_dtype

        random = np.random.default_rng(3)
        return [random.standard_normal(shape).astype(as_dtype(self.dtype).numpy) for shape in self.shapes]


def _best_of_rows(x: Array, k: int) -> Array:
    """The k largest of each row in their order, then their places."""
    places = np.argsort(-x, axis=1, kind="stable")[:, :k]
    return np.concatenate([np.take_along_axis(x, places, axis=1), places], axis=1)


@dataclass(frozen=True)
class Sample:
    """``rows`` of the held-out images, with their labels."""

    name: str
    file: str
    rows: int
    dtype: str = "float32"
    since: int = FIRST

    def model(self) -> bytes:
        """The model's file in the package."""
        return (HERE / self.file).read_bytes()

    def feeds(self) -> dict[str, Array]:
        """The first images."""
        with np.load(HERE / "digits_test.npz") as held_out:
            return {"image": held_out["image"][: self.rows]}


Case = Small | Direct | Sample


def _text(shape: Shape) -> str:
    return ",".join(map(str, shape))


def _product(a: Array, b: Array) -> Array:
    return np.asarray(a.T @ b)


def _net(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    return np.asarray(np.maximum(x @ w1 + b1, 0) @ w2 + b2)


def _net_class(*arrays: Array) -> Array:
    return np.asarray(_net(*arrays).argmax(axis=1)[:, None])


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _conv_pool(x: Array, w: Array, bias: Array) -> Array:
    seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    y = np.einsum("nchwij,ocij->nohw", seen, w) + bias[:, None, None]
    n, o, rows, columns = y.shape
    return np.asarray(y.reshape(n, o, rows // 2, 2, columns // 2, 2).max(axis=(3, 5)))


_C = {"w": (16, 8, 3, 3), "b": (16,)}
_NET = ((5, 13), (13, 20), (1, 20), (20, 7), (1, 7))

SMALL: tuple[Small, ...] = (
    Small("linear", "y = Gemm(x, w, b)", (3, 20), (3, 7), {"w": (20, 7), "b": (7,)}),
    Small("linear_deep", "y = Gemm(x, w, b)", (2, 300), (2, 140), {"w": (300, 140), "b": (140,)}),
    Small("linear_bfloat16", "y = Gemm(x, w, b)", (3, 20), (3, 7), {"w": (20, 7), "b": (7,)}, dtype="bfloat16"),
    Small(
        "two_layers",
        "h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, v, c)",
        (2, 20),
        (2, 5),
        {"w": (20, 40), "b": (40,), "v": (40, 5), "c": (5,)},
    ),
    Small("conv", "h = Conv<pads = [1,1,1,1]>(x, w, b) y = Relu(h)", (2, 8, 10, 10), (2, 16, 10, 10), _C),
    Small(
        "conv_float16",
        "h = Conv<pads = [1,1,1,1]>(x, w, b) y = Relu(h)",
        (2, 8, 10, 10),
        (2, 16, 10, 10),
        _C,
        dtype="float16",
    ),
    Small("conv_strided", "y = Conv<strides = [2,2]>(x, w, b)", (1, 8, 11, 11), (1, 16, 5, 5), _C),
    Small(
        "conv_pooled",
        "h = Conv(x, w, b) r = Relu(h) y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)",
        (1, 8, 10, 10),
        (1, 16, 4, 4),
        _C,
    ),
    Small(
        "conv_abreast",
        "g = Conv(x, v) h = Conv<pads = [1,1,1,1]>(g, w) y = Conv(h, u)",
        (1, 8, 6, 6),
        (1, 8, 6, 6),
        {"v": (256, 8, 1, 1), "w": (384, 256, 3, 3), "u": (8, 384, 1, 1)},
    ),
    Small("conv_depthwise", "y = Conv<group = 8>(x, w)", (1, 8, 10, 10), (1, 8, 8, 8), {"w": (8, 1, 3, 3)}),
    Small(
        "conv_image",
        "y = Conv<pads = [3,3,3,3], strides = [2,2]>(x, w)",
        (1, 3, 32, 32),
        (1, 16, 16, 16),
        {"w": (16, 3, 7, 7)},
    ),
    Small(
        "conv_in_strips",
        "y = Conv<pads = [1,1,1,1]>(x, w, b)",
        (1, 3, 96, 96),
        (1, 16, 96, 96),
        {"w": (16, 3, 3, 3), "b": (16,)},
    ),
    Small(
        "conv_chain",
        "h = Conv<pads = [1,1,1,1]>(x, w) r = Relu(h) k = Conv<pads = [1,1,1,1]>(r, v) f = Flatten(k) y = Gemm(f, u)",
        (1, 3, 6, 6),
        (1, 5),
        {"w": (8, 3, 3, 3), "v": (8, 8, 3, 3), "u": (288, 5)},
    ),
    Small(
        "conv_transpose", "y = ConvTranspose<strides = [2,2]>(x, w)", (1, 8, 5, 5), (1, 6, 10, 10), {"w": (8, 6, 2, 2)}
    ),
    Small(
        "conv_volume",
        "h = Conv<pads = [1,1,1,1,1,1]>(x, w, b) y = Relu(h)",
        (1, 8, 4, 6, 6),
        (1, 16, 4, 6, 6),
        {"w": (16, 8, 3, 3, 3), "b": (16,)},
    ),
    Small(
        "conv_streamed",
        "h = Conv<pads = [1,1,1,1,1,1]>(x, w, b) y = Relu(h)",
        (1, 128, 3, 5, 6),
        (1, 12, 3, 5, 6),
        {"w": (12, 128, 3, 3, 3), "b": (12,)},
    ),
    Small(
        "conv_transpose_volume",
        "y = ConvTranspose<strides = [2,2,2]>(x, w)",
        (1, 8, 3, 4, 4),
        (1, 6, 6, 8, 8),
        {"w": (8, 6, 2, 2, 2)},
    ),
    Small("pool_volume", "y = MaxPool<kernel_shape = [2,2,2], strides = [2,2,2]>(x)", (1, 8, 4, 6, 6), (1, 8, 2, 3, 3)),
    Small(
        "max_pool",
        "y = MaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(x)",
        (1, 8, 9, 9),
        (1, 8, 5, 5),
    ),
    Small("average_pool", "y = AveragePool<kernel_shape = [2,2], strides = [2,2]>(x)", (1, 8, 10, 10), (1, 8, 5, 5)),
    Small("global_average", "y = GlobalAveragePool(x)", (2, 8, 6, 6), (2, 8, 1, 1)),
    Small("lrn", "y = LRN<size = 5>(x)", (1, 12, 5, 5), (1, 12, 5, 5)),
    Small("layer_norm", "y = LayerNormalization(x, s, b)", (3, 24), (3, 24), {"s": (24,), "b": (24,)}),
    Small(
        "channel_norm",
        "t = Transpose<perm = [0,2,3,1]>(x) n = LayerNormalization(t, s, b) y = Transpose<perm = [0,3,1,2]>(n)",
        (2, 24, 5, 5),
        (2, 24, 5, 5),
        {"s": (24,), "b": (24,)},
    ),
    Small("deviation", "n, m, y = LayerNormalization(x, s, b)", (3, 24), (3, 1), {"s": (24,), "b": (24,)}),
    Small("rms_norm", "y = RMSNormalization(x, s)", (3, 24), (3, 24), {"s": (24,)}),
    Small(
        "unit_rows",
        "l = Constant<value_ints=[-1]>() n = ReduceL2<keepdims=1>(x, l) y = Div(x, n)",
        (3, 24),
        (3, 24),
    ),
    Small("instance_norm", "y = InstanceNormalization(x, s, b)", (2, 6, 7, 7), (2, 6, 7, 7), {"s": (6,), "b": (6,)}),
    Small("softmax", "y = Softmax(x)", (5, 33), (5, 33)),
    Small(
        "weighted_softmax", "s = Softmax<axis = 1>(x) y = Conv(s, w)", (2, 9, 4, 33), (2, 1, 4, 33), {"w": (1, 9, 1, 1)}
    ),
    Small("log_softmax", "y = LogSoftmax(x)", (5, 33), (5, 33)),
    Small("argmax", "y = ArgMax<axis = 1, keepdims = 0>(x)", (5, 33), (5,), kind="int64"),
    Small("argmin", "y = ArgMin<axis = 1, keepdims = 0>(x)", (5, 33), (5,), kind="int64"),
    Small("gather", "g = Gather(t, i) y = Add(g, x)", (5, 6), (5, 6), {"t": (40, 6)}, indices=(5,)),
    Small(
        "unpool",
        "u = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) y = Mul(u, t)",
        (1, 2, 3, 3),
        (1, 2, 6, 6),
        {"t": (6, 6)},
        indices=(1, 2, 3, 3),
    ),
    Small("grid_sample", "y = GridSample(x, g)", (1, 6, 5, 7), (1, 6, 4, 9), {"g": (1, 4, 9, 2)}),
    Small(
        "grid_sample_cubic",
        'y = GridSample<mode="cubic", padding_mode="reflection">(x, g)',
        (1, 6, 5, 7),
        (1, 6, 4, 9),
        {"g": (1, 4, 9, 2)},
    ),
    Small("topk", "k = Constant<value_ints = [3]>() y, i = TopK(x, k)", (5, 33), (5, 3)),
    Small("topk_spread", "k = Constant<value_ints = [200]>() y, i = TopK(x, k)", (1, 2048), (1, 200)),
    Small("topk_indices", "k = Constant<value_ints = [3]>() v, y = TopK(x, k)", (5, 33), (5, 3), kind="int64"),
    Small(
        "lstm",
        'y = LSTM<hidden_size = 20, direction = "bidirectional">(x, w, r, b)',
        (6, 2, 10),
        (6, 2, 2, 20),
        {"w": (2, 80, 10), "r": (2, 80, 20), "b": (2, 160)},
    ),
    Small(
        "gru",
        "y = GRU<hidden_size = 130, linear_before_reset = 1>(x, w, r)",
        (5, 2, 10),
        (5, 1, 2, 130),
        {"w": (1, 390, 10), "r": (1, 390, 130)},
    ),
    Small("rnn", "y = RNN<hidden_size = 20>(x, w, r)", (6, 2, 10), (6, 1, 2, 20), {"w": (1, 20, 10), "r": (1, 20, 20)}),
    Small(  # so many steps that they loop on the device
        "lstm_loop",
        'y = LSTM<hidden_size = 4, direction = "bidirectional">(x, w, r)',
        (800, 1, 3),
        (800, 2, 1, 4),
        {"w": (2, 16, 3), "r": (2, 16, 4)},
    ),
    Small("reduce_sum", "a = Constant<value_ints = [1]>() y = ReduceSum<keepdims = 0>(x, a)", (5, 33), (5,)),
    Small("reduce_max", "a = Constant<value_ints = [0]>() y = ReduceMax<keepdims = 0>(x, a)", (5, 33), (33,)),
    Small("reduce_log_sum", "a = Constant<value_ints = [1]>() y = ReduceLogSum<keepdims = 0>(x, a)", (5, 33), (5,)),
    Small("reduce_l2", "a = Constant<value_ints = [1]>() y = ReduceL2<keepdims = 0>(x, a)", (5, 33), (5,)),
    Small(
        "resize",
        'n = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>() y = Resize<mode = "linear">(x, , n)',
        (1, 4, 5, 5),
        (1, 4, 10, 10),
    ),
    Small(
        "resize_nearest",
        "n = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>() "
        'y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , n)',
        (1, 4, 5, 5),
        (1, 4, 10, 10),
    ),
    Small(
        "repeat_images",
        "a = Conv<kernel_shape = [1, 1]>(x, v) n = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>() "
        'b = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(a, , n) '
        "y = Conv<kernel_shape = [1, 1]>(b, w)",
        (1, 4, 5, 5),
        (1, 6, 10, 10),
        {"v": (4, 4, 1, 1), "w": (6, 4, 1, 1)},
    ),
    Small(
        "depthwise",
        "a = Conv<kernel_shape = [1, 1]>(x, v) y = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 32>(a, w)",
        (1, 8, 28, 28),
        (1, 32, 28, 28),
        {"v": (32, 8, 1, 1), "w": (32, 1, 3, 3)},
    ),
    Small("elementwise", "a = Sigmoid(x) b = Tanh(a) c = Add(a, b) y = Mul(c, x)", (4, 40), (4, 40)),
    Small("divide", "y = Div(v, x)", (4, 40), (4, 40), {"v": (4, 40)}),
    Small("remainder", "y = Mod<fmod = 1>(v, x)", (4, 40), (4, 40), {"v": (4, 40)}),
    Small("rounding", "a = Floor(x) b = Ceil(x) y = Add(a, b)", (4, 40), (4, 40)),
    Small("functions", "a = Log(x) b = Sin(a) c = Cos(x) y = Add(b, c)", (4, 40), (4, 40)),
    Small("tangents", "a = Tan(x) b = Atan(a) c = Asinh(x) y = Add(b, c)", (4, 40), (4, 40)),
    Small("cumsum", "k = Constant<value_int = 1>() y = CumSum(x, k)", (4, 40), (4, 40)),
    Small(
        "quantise",
        "s = Constant<value_float=0.0037>() l = Constant<value_float=-128.0>() h = Constant<value_float=127.0>()"
        " d = Div(x, s) r = Round(d) y = Clip(r, l, h)",
        (4, 40),
        (4, 40),
    ),
    Small(
        "conv_whole",
        "s = Constant<value_float=0.0625>() l = Constant<value_float=-128.0>() h = Constant<value_float=127.0>()"
        " m = Mul(x, h) q = Round(m) k = Clip(q, l, h) i = Round(w) a = Conv<pads=[1,1,1,1]>(k, i)"
        " p = Mul(a, s) r = Round(p) y = Clip(r, l, h)",
        (2, 8, 6, 6),
        (2, 12, 6, 6),
        {"w": (12, 8, 3, 3)},
    ),
    Small("gelu", "y = Gelu(x)", (4, 40), (4, 40)),
    Small(
        "attend",
        "h = Constant<value_ints=[2,5,3,32]>() r = Reshape(x, h) q = Transpose<perm=[0,2,1,3]>(r)"
        " k = Transpose<perm=[0,2,3,1]>(r) s = MatMul(q, k) p = Softmax<axis=-1>(s) y = MatMul(p, q)",
        (2, 5, 96),
        (2, 3, 5, 32),
    ),
    Small(
        "rotate_features",
        "k = Constant<value_ints=[2,5,3,32]>() j = Constant<value_ints=[2,5,96]>() r = Reshape(x, k)"
        " h = Constant<value_ints=[16,16]>() a, b = Split<axis=3>(r, h) n = Neg(b) t = Concat<axis=3>(n, a)"
        " c = Mul(r, u) s = Mul(t, w) z = Add(c, s) y = Reshape(z, j)",
        (2, 5, 96),
        (2, 5, 96),
        {"u": (5, 1, 32), "w": (5, 1, 32)},
    ),
    Small(
        "normalize_features",
        "n = LayerNormalization(x, w) m = MatMul(n, u) y = Add(m, x)",
        (6, 40),
        (6, 40),
        {"w": (40,), "u": (40, 40)},
    ),
    Small(
        "embed_patches",
        "c = Conv<strides=[4,4]>(x, w) j = Constant<value_ints=[2,8,6]>() r = Reshape(c, j)"
        " y = Transpose<perm=[0,2,1]>(r)",
        (2, 3, 8, 12),
        (2, 6, 8),
        {"w": (8, 3, 4, 4)},
    ),
    Small("batched_matmul", "t = Transpose<perm = [0,2,1]>(x) y = MatMul(x, t)", (3, 6, 20), (3, 6, 6)),
    Small("transpose", "y = Transpose<perm = [0,2,1]>(x)", (3, 20, 30), (3, 30, 20)),
    Small("permute", "y = Transpose<perm = [2,0,3,1]>(x)", (3, 6, 5, 4), (5, 3, 4, 6)),
    Small("concat", "a = Relu(x) y = Concat<axis = 1>(x, a)", (2, 6, 5, 5), (2, 12, 5, 5)),
    Small("pad", "p = Constant<value_ints = [0,1,0,2]>() y = Pad(x, p)", (4, 6), (4, 9)),
    Small(
        "channels",
        "a = Conv(x, w) b = Conv(x, v) c = Concat<axis = 1>(a, b) y = Conv(c, u)",
        (1, 4, 6, 6),
        (1, 5, 6, 6),
        {"w": (6, 4, 1, 1), "v": (6, 4, 1, 1), "u": (5, 12, 1, 1)},
    ),
)

DIRECT: tuple[Direct, ...] = (
    Direct("add", "add_vectors", ((1000,), (1000,)), np.add),
    Direct("add_naive", "add_vectors", ((128,), (128,)), np.add, options=("naive",)),
    Direct("add_rows", "add_vectors", ((300,), (300,)), np.add, options=("rows",)),
    Direct("add_stream", "add_vectors", ((1000,), (1000,)), np.add, options=("stream",)),
    Direct("add_direct", "add_vectors", ((262144,), (262144,)), np.add, options=("direct",)),
    Direct("matmul", "matmul.matmul", ((130, 40), (130, 50)), _product),
    Direct("matmul_turned", "matmul.matmul", ((40, 130), (130, 50)), np.matmul, options=(True,)),
    Direct("matmul_turned_once", "matmul.matmul", ((40, 130), (130, 4200)), np.matmul, options=(True,)),
    Direct("matmul_tiled", "matmul.matmul_tiled", ((256, 128), (256, 512)), _product),
    Direct("matmul_hoisted", "matmul.matmul_hoisted", ((256, 128), (256, 512)), _product),
    Direct("matmul_block_free", "matmul.matmul_block_free", ((256, 256), (256, 1024)), _product),
    Direct("matmul_blocked", "matmul.matmul_blocked", ((1024, 256), (1024, 1024)), _product),
    Direct(
        "matmul_double_row",
        "double_row.matmul_double_row",
        ((256, 60), (256, 70)),
        _product,
        "float8_e4m3",
        since=V3,
        result="float32",
    ),
    Direct("transpose_by_tensor", "transpose_matrix", ((60, 200),), np.transpose, rtol=0.0),
    Direct("transpose_by_dma", "transpose_matrix", ((64, 128),), np.transpose, "bfloat16", 0.0, V3, (True,)),
    Direct("layout_rows", "copy_rows", ((130, 20),), np.asarray, rtol=0.0),
    Direct("layout_features", "copy_features", ((20, 130),), np.asarray, rtol=0.0),
    Direct("layout_channels", "copy_channels", ((2, 130, 3, 4),), np.asarray, rtol=0.0),
    Direct("topk_pairs", "best_of_rows", ((5, 1000),), partial(_best_of_rows, k=3), rtol=0.0, options=(3,)),
    Direct(
        "narrow",
        "narrow_channels",
        ((2, 130, 40, 41),),
        lambda x: np.clip(64 * x, -100, 100),
        "bfloat16",
        rtol=2**-4,  # float8_e4m3 has 3 digits behind the point
        since=V3,
        options=(64.0, 100.0),
        result="float8_e4m3",
    ),
    Direct(
        "labs_conv",
        "conv.labs_conv.conv2d_bias_pool",
        ((1, 20, 10, 10), (30, 20, 3, 3), (30,)),
        _conv_pool,
        options=(2,),
    ),
    Direct("net_forward", "feed_forward.forward", _NET, lambda *a: _softmax(_net(*a))),
    Direct("net_predict", "feed_forward.predict", _NET, _net_class, rtol=0.0, result="uint32"),
)

SAMPLES: tuple[Sample, ...] = tuple(
    Sample(f"{model}_{rows}{'' if dtype == 'float32' else '_16'}", f"{model}.onnx", rows, dtype)
    for model in ("digits_ffnn", "digits_cnn")
    for rows, dtype in ((1, "float32"), (8, "float32"), (64, "float32"), (8, "bfloat16"))
)
