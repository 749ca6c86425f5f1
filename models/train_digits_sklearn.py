"""Trains the feed-forward net's architecture as a scikit-learn MLPClassifier and exports it with skl2onnx."""

from __future__ import annotations

from importlib.metadata import version

from digits_data import CLASSES, load_split, out_dir
from measure import report
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.neural_network import MLPClassifier
from strip import finish

SEED = 0
OPSET = 20


def main() -> None:
    """Train, export, and report the file's score."""
    path = out_dir("Train the digits MLP with scikit-learn and export it.") / "digits_mlp_sklearn.onnx"
    data, test = load_split()
    net = MLPClassifier((128, 64), alpha=0.01, batch_size=32, max_iter=300, random_state=SEED)
    net.fit(data.pixels, data.label)
    model = to_onnx(
        net,
        initial_types=[("pixels", FloatTensorType([None, 64]))],
        options={id(net): {"zipmap": False}},
        target_opset=OPSET,
    )
    finish(model, path, CLASSES, image=False)
    report(path, test, f"scikit-learn {version('scikit-learn')}, skl2onnx {version('skl2onnx')}, `zipmap=False`")


if __name__ == "__main__":
    main()
