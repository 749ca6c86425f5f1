"""Exports scikit-learn pipelines of scalers and small models, as tests read them: tests/data/sklearn/."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from digits_data import out_dir
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, MaxAbsScaler, MinMaxScaler, Normalizer, RobustScaler, StandardScaler
from strip import assert_clean, strip

OUT = Path(__file__).parents[1] / "tests" / "data" / "sklearn"
ROWS, COLUMNS = 200, 6
OPSET = {"": 21, "ai.onnx.ml": 3}


def mlp(**options: Any) -> MLPClassifier:
    """A small classifier; a few iterations are enough for weights that say something."""
    return MLPClassifier(hidden_layer_sizes=(8,), max_iter=20, random_state=0, **options)


def pipelines(columns: np.ndarray) -> dict[str, tuple[Any, np.ndarray]]:
    """Name -> (a pipeline, its training targets)."""
    two = (columns[:, 0] + columns[:, 1] > 0).astype(np.int64)
    three = two + (columns[:, 2] > 0.3)
    texts = np.array(["no", "perhaps", "yes"])[three]
    regressor = MLPRegressor(hidden_layer_sizes=(8,), max_iter=20, random_state=0)
    return {
        "standard_mlp": (make_pipeline(StandardScaler(), mlp()), three + 5),
        "minmax_mlp_texts": (make_pipeline(MinMaxScaler(clip=True), mlp(activation="tanh")), texts),
        "maxabs_mlp_two": (make_pipeline(MaxAbsScaler(), mlp(activation="logistic")), two),
        "maxabs_mlp_two_texts": (make_pipeline(MaxAbsScaler(), mlp()), np.array(["no", "yes"])[two]),
        "imputed_binary_mlp": (make_pipeline(SimpleImputer(), Binarizer(threshold=0.1), mlp()), three),
        "robust_regressor": (make_pipeline(RobustScaler(), regressor), columns[:, 0] - columns[:, 3]),
        "l2_logistic_two": (make_pipeline(Normalizer("l2"), LogisticRegression()), two),
        "l1_logistic_texts": (make_pipeline(Normalizer("l1"), LogisticRegression()), texts),
        "max_linear": (make_pipeline(Normalizer("max"), LinearRegression()), columns[:, :2]),
        "standard_liblinear": (make_pipeline(StandardScaler(), LogisticRegression(solver="liblinear")), two),
    }


def main() -> None:
    """Write every pipeline, classifiers with and without ZipMap."""
    warnings.simplefilter("ignore")  # few iterations do not converge
    out = out_dir("Export scikit-learn pipelines for the tests.", OUT)
    columns = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    for name, (pipeline, target) in pipelines(columns).items():
        pipeline.fit(columns, target)
        for zipmap in (False, True) if hasattr(pipeline, "predict_proba") else (None,):
            options = None if zipmap is None else {"zipmap": zipmap}
            kinds = [("columns", FloatTensorType([None, COLUMNS]))]
            model = to_onnx(pipeline, initial_types=kinds, options=options, target_opset=OPSET)
            write(model, out / f"{name}{'_zipmap' if zipmap else ''}.onnx")


def write(model: onnx.ModelProto, path: Path) -> None:
    """Strip a model, check it and write it."""
    strip(model)
    model.graph.name = path.stem
    assert_clean(model)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
