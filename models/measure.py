"""Score a model file on the held-out images with onnxruntime, and write its line for README.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from digits_data import Digits, Labels


def decisions(path: Path, test: Digits) -> Labels:
    """The class (N,) that the model at `path` gives to each held-out image."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0].name
    outputs = dict(
        zip(
            (value.name for value in session.get_outputs()), session.run(None, {feed: getattr(test, feed)}), strict=True
        )
    )
    chosen: Labels = outputs["label"] if "label" in outputs else np.argmax(outputs["logits"], axis=1)
    return chosen


def report(path: Path, test: Digits, made_with: str) -> None:
    """Print the score of the model at `path`, and put its line into the table of the README.md beside it, if any."""
    right = int(np.sum(decisions(path, test) == test.label))
    percent = 100 * right / len(test.label)
    line = f"| `{path.name}` | {made_with} | {percent:.2f} % ({right} of {len(test.label)}) |"
    print(line)
    readme = path.with_name("README.md")
    if readme.exists():
        readme.write_text(with_line(readme.read_text(encoding="utf-8"), line), encoding="utf-8")


def with_line(text: str, line: str) -> str:
    """`text` with the table row of the same file replaced by `line`; raises ValueError unless it has exactly one."""
    start = line[: line.index("|", 1)]
    lines = text.splitlines()
    rows = [index for index, row in enumerate(lines) if row.startswith(start)]
    if len(rows) != 1:
        raise ValueError(f"README.md has {len(rows)} rows that start with {start!r}, expected 1")
    lines[rows[0]] = line
    return "\n".join(lines) + "\n"
