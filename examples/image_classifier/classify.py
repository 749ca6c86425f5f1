"""Classify photos with an exported model, and with the classes and preprocessing of its Hugging Face folder.

    python classify.py CHECKPOINT model.onnx photo.jpg ... [--top 5] [--dtype bfloat16] [--target trn2]

CHECKPOINT needs config.json (the classes) and preprocessor_config.json only. The model may come from
export_classifier.py or from optimum-onnx: any file with one input of pixels and an output "logits". This needs trnrt,
and neither torch nor transformers; photos are prepared by Pillow as transformers' processors prepare them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trnrt import InferenceSession
from trnrt.inputs.decoding import read_photo

KNOWN = {
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_rescale", "rescale_factor"),
    *("do_normalize", "image_mean", "image_std", "do_convert_rgb", "image_processor_type", "feature_extractor_type"),
    *("_valid_processor_keys", "processor_class", "data_format", "default_to_square", "input_data_format", "device"),
    *("return_tensors", "disable_grouping"),
}
"""The settings that ``prepare`` follows or that change nothing; True or a number for any other is refused."""


def main() -> None:
    """Print the best classes of each photo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--target", default=None)
    arguments = parser.parse_args()
    session = InferenceSession(arguments.model, dtype=arguments.dtype, target=arguments.target)
    names = class_names(arguments.checkpoint)
    shares = classify(session, arguments.checkpoint, arguments.photos)
    for photo, row in zip(arguments.photos, shares, strict=True):
        print(photo)
        for index in np.argsort(-row, kind="stable")[: arguments.top]:
            print(f"  {row[index]:.4f}  {names[index]}")


def classify(session: InferenceSession, checkpoint: Path, photos: list[Path]) -> NDArray[np.float64]:
    """Each photo's share of each class, (photos, classes); each row sums to 1."""
    processor = json.loads((checkpoint / "preprocessor_config.json").read_text(encoding="utf-8"))
    pixels = np.stack([prepare(read_photo(photo), processor) for photo in photos])
    outputs = [output.name for output in session.model.outputs]
    name = "logits" if "logits" in outputs else outputs[0]
    (logits,) = session.run([name], {session.model.inputs[0].name: pixels})
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def class_names(checkpoint: Path) -> list[str]:
    """The names of the classes in order, from config.json."""
    names = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["id2label"]
    return [names[str(index)] for index in range(len(names))]


def prepare(photo: Image.Image, processor: dict[str, Any]) -> NDArray[np.float32]:
    """A photo as the model's pixels, (3, height, width), by the settings of preprocessor_config.json."""
    unknown = [key for key, value in processor.items() if key not in KNOWN and value not in (None, False)]
    if unknown:
        raise ValueError(f"preprocessor_config.json has {', '.join(unknown)}, which this example doesn't follow")
    photo = photo.convert("RGB")
    if processor.get("do_resize", True):
        photo = photo.resize(resized(photo.size, processor), processor.get("resample", Image.Resampling.BILINEAR))
    crop = cropped(processor)
    if crop is not None:
        left, top = ((side - kept) // 2 for side, kept in zip(photo.size, crop, strict=True))
        photo = photo.crop((left, top, left + crop[0], top + crop[1]))
    pixels = np.asarray(photo, np.float32)
    if processor.get("do_rescale", True):
        pixels = pixels * np.float32(processor.get("rescale_factor", 1 / 255))
    if processor.get("do_normalize", True):
        mean, std = (np.array(processor[key], np.float32) for key in ("image_mean", "image_std"))
        pixels = (pixels - mean) / std
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)


def read_size(processor: dict[str, Any]) -> dict[str, int]:
    """The setting ``size``, as height and width or as the shortest edge. In old files it is one number."""
    size = processor["size"]
    if isinstance(size, int) and not processor.get("do_center_crop"):
        size = {"shortest_edge": size} if processor.get("crop_pct") else {"height": size, "width": size}
    sides = {key: side for key, side in size.items() if side is not None} if isinstance(size, dict) else {}
    if set(sides) not in ({"height", "width"}, {"shortest_edge"}):
        raise ValueError(
            f"preprocessor_config.json has the size {size}, which this example doesn't follow: it needs a height and a "
            "width, or a shortest_edge; transformers' AutoImageProcessor writes a number as one of these when it saves"
        )
    return sides


def resized(size: tuple[int, int], processor: dict[str, Any]) -> tuple[int, int]:
    """The (width, height) that a photo of ``size`` is resized to."""
    wanted = read_size(processor)
    if "shortest_edge" not in wanted:
        return wanted["width"], wanted["height"]
    side = wanted["shortest_edge"]
    if processor.get("crop_pct") and side >= 384:  # ConvNeXt's larger inputs are not cropped
        return side, side
    if processor.get("crop_pct"):
        side = int(side / processor["crop_pct"])
    factor = side / min(size)
    return tuple(side if each == min(size) else int(each * factor) for each in size)  # type: ignore[return-value]


def cropped(processor: dict[str, Any]) -> tuple[int, int] | None:
    """The (width, height) that is cut from the middle of the resized photo; None for all of it."""
    side = read_size(processor).get("shortest_edge")
    if processor.get("crop_pct") and side and side < 384:
        return side, side
    if not processor.get("do_center_crop"):
        return None
    crop = processor["crop_size"]
    return (crop, crop) if isinstance(crop, int) else (crop["width"], crop["height"])


if __name__ == "__main__":
    main()
