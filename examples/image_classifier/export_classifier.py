"""Export an image classifier from a Hugging Face checkpoint folder to ONNX, by torch.onnx.

    python export_classifier.py CHECKPOINT -o model.onnx

CHECKPOINT is a folder with config.json, model.safetensors and preprocessor_config.json, as `save_pretrained` writes it.
Run this where torch, transformers and onnx are installed; trnrt needs neither torch nor transformers. The file's
metadata names the classes. If the preprocessing is a plain resize, it has that, too: then `trnrt run` and `trnrt serve`
take photos unchanged.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

OPSET = 18
BILINEAR = 2  # PIL's number, which preprocessor_config.json uses
PLAIN = {
    *("do_resize", "size", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
    *("do_convert_rgb", "image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys"),
    *("crop_size", "data_format", "default_to_square", "input_data_format", "device", "return_tensors"),
}
"""The settings that trnrt's metadata can say, or that change nothing here; any other makes a processor not plain."""


def main() -> None:
    """Read the folder, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("model.onnx"))
    arguments = parser.parse_args()
    export(arguments.checkpoint, arguments.output)
    print(f"wrote {arguments.output}")


def export(checkpoint: Path, output: Path) -> None:
    """Write the model with any number of rows, its classes and, if it is plain, its preprocessing."""
    import onnx
    import torch
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(checkpoint, local_files_only=True).eval()
    processor = json.loads((checkpoint / "preprocessor_config.json").read_text(encoding="utf-8"))
    height, width = input_size(processor)

    class Logits(torch.nn.Module):  # type: ignore[misc]
        """The model's logits alone."""

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            """Scores (rows, classes) of pixels (rows, 3, height, width)."""
            return model(pixel_values=pixel_values).logits

    torch.onnx.export(
        Logits().eval(),
        (torch.zeros(2, 3, height, width),),
        str(output),
        input_names=["pixel_values"],
        output_names=["logits"],
        dynamic_shapes={"pixel_values": {0: torch.export.Dim("batch")}},
        opset_version=OPSET,
        external_data=False,
        dynamo=True,
    )
    written = onnx.load(output)
    names = model.config.id2label
    labels = json.dumps([names[index] for index in range(len(names))])
    onnx.helper.set_model_props(written, {"labels": labels, **image_metadata(processor)})
    onnx.save(written, output)


def input_size(processor: dict[str, Any]) -> tuple[int, int]:
    """The height and width of the pixels that the model takes."""
    size = processor["size"]
    if processor.get("do_center_crop"):
        size = processor.get("crop_size") or size
    if isinstance(size, int):
        return size, size
    side = size.get("shortest_edge")
    return size.get("height", side), size.get("width", side)


def image_metadata(processor: dict[str, Any]) -> dict[str, str]:
    """The metadata by which trnrt prepares photos as the processor does.

    Empty if the processor does more than resize (bilinearly), scale and normalise; then classify.py prepares photos.
    """
    size = processor["size"]
    plain = (
        isinstance(size, dict) and "height" in size and not any(processor.get(key) for key in processor.keys() - PLAIN)
    )
    if not plain or processor.get("resample", BILINEAR) != BILINEAR or not processor.get("do_resize", True):
        return {}
    normal = processor.get("do_normalize", True)
    mean, std = (processor["image_mean"], processor["image_std"]) if normal else ([0.0], [1.0])
    scale = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1.0
    return {
        "image.layout": "NCHW",
        "image.color": "RGB",
        "image.scale": repr(scale),
        "image.mean": ",".join(map(repr, mean)),
        "image.std": ",".join(map(repr, std)),
    }


if __name__ == "__main__":
    main()
