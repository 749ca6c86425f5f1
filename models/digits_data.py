"""scikit-learn's digits: 1797 greyscale images of 8x8 pixels, split once into training and held-out test images.

Run as a script, it writes the held-out split to digits_test.npz.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Floats: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]

MODELS = Path(__file__).parent
CLASSES = tuple(str(digit) for digit in range(10))
TEST_SIZE = 450
SPLIT_SEED = 0
# The data set counts ink in 17 steps per pixel.
BRIGHTEST = 16


@dataclass(frozen=True)
class Digits:
    """Images (N, 1, 8, 8) float32 in [0, 1], bright strokes on a dark background, and their classes (N,) int64."""

    image: Floats
    label: Labels

    @property
    def pixels(self) -> Floats:
        """The images as rows (N, 64)."""
        return self.image.reshape(len(self.image), -1)


def load_split() -> tuple[Digits, Digits]:
    """The training and the held-out images; the same ones every time, each class with its share in both."""
    bunch = load_digits()
    image = (bunch.images[:, None] / BRIGHTEST).astype(np.float32)
    label = bunch.target.astype(np.int64)
    train_image, test_image, train_label, test_label = train_test_split(
        image, label, test_size=TEST_SIZE, random_state=SPLIT_SEED, stratify=label
    )
    return Digits(train_image, train_label), Digits(test_image, test_label)


def out_dir(description: str, default: Path = MODELS) -> Path:
    """The folder from the command line's --out, created if missing."""
    parser = argparse.ArgumentParser(description=description)
    where = "where to write (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=default, metavar="DIR", help=where)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    return out


def main() -> None:
    """Write the held-out split."""
    path = out_dir("Write the held-out split of the digits.") / "digits_test.npz"
    _, test = load_split()
    np.savez_compressed(path, image=test.image, pixels=test.pixels, label=test.label)
    print(f"{path}: {len(test.label)} images")


if __name__ == "__main__":
    main()
