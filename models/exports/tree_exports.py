"""Export classical models with skl2onnx and onnxmltools: encoders before a net, and ensembles of trees.

Needs scikit-learn, skl2onnx, onnxmltools, lightgbm and xgboost: `python models/exports/tree_exports.py --out DIR`.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from saving import Export, Make, run_exports

ROWS, COLUMNS = 300, 6


def data() -> tuple[Any, Any]:
    """Random rows of floats, and three classes that depend on them."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.int64) + (x[:, 3] > 1)


def one_hot(path: Path) -> None:
    """A OneHotEncoder of integer categories before a small net."""
    from skl2onnx import to_onnx
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    random = np.random.default_rng(0)
    x = random.integers(0, 10, (ROWS, 4)).astype(np.int64)
    pipeline = make_pipeline(OneHotEncoder(sparse_output=False), MLPClassifier((16,), max_iter=50, random_state=0))
    pipeline.fit(x, (x[:, 0] + x[:, 1]) % 3)
    path.write_bytes(to_onnx(pipeline, x[:1], options={"zipmap": False}).SerializeToString())


def forest(path: Path) -> None:
    """scikit-learn's random forest."""
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier

    x, y = data()
    model = RandomForestClassifier(10, max_depth=4, random_state=0).fit(x, y)
    path.write_bytes(to_onnx(model, x[:1], options={"zipmap": False}).SerializeToString())


def export_boosted(library: str, path: Path) -> None:
    """LightGBM's or XGBoost's boosted trees, by onnxmltools."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = data()
    given = [("x", FloatTensorType([None, COLUMNS]))]
    if library == "lightgbm":
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(n_estimators=10, max_depth=4, verbose=-1).fit(x, y)
        made = onnxmltools.convert_lightgbm(model, initial_types=given, zipmap=False)
    else:
        from xgboost import XGBClassifier

        model = XGBClassifier(n_estimators=10, max_depth=4).fit(x, y)
        made = onnxmltools.convert_xgboost(model, initial_types=given)
    path.write_bytes(made.SerializeToString())


def exports() -> list[tuple[Export, Make]]:
    """All files."""
    sklearn = f"skl2onnx {version('skl2onnx')}, scikit-learn {version('scikit-learn')}"
    import xgboost

    tools = f"onnxmltools {version('onnxmltools')}"
    return [
        (Export("one_hot_mlp.onnx", "integers", "OneHotEncoder of int64, MLP", sklearn), one_hot),
        (Export("forest.onnx", "trees", "random forest, 10 trees", sklearn), forest),
        (
            Export("lightgbm.onnx", "trees", "boosted trees", f"{tools}, LightGBM {version('lightgbm')}"),
            partial(export_boosted, "lightgbm"),
        ),
        (
            Export("xgboost.onnx", "trees", "boosted trees", f"{tools}, XGBoost {xgboost.__version__}"),
            partial(export_boosted, "xgboost"),
        ),
    ]


if __name__ == "__main__":
    run_exports(__doc__, exports())
