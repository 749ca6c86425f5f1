"""Find things in photos with a detector or segmenter, and draw them.

    python detect.py yolo26n.onnx photo.jpg ... --out drawn [--min-score 0.25] [--dtype bfloat16] [--target trn2]

Takes what `trnrt run --draw` takes: ultralytics' exports, torchvision's detectors, models with a score of each class
for each pixel. It loads the model once, and prints each photo's boxes in pixels of the photo.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trnrt import InferenceSession
from trnrt.inputs.decoding import read_photo
from trnrt.inputs.images import ImageOptions, read_images, recipe
from trnrt.report.top import labels_of
from trnrt.vision.finding import Finding, Limits
from trnrt.vision.painting import name_of, paint
from trnrt.vision.reading import find_all
from trnrt.vision.recognising import recognise

LARGEST = 1 << 30  # bytes of one prepared photo


def main() -> None:
    """Draw every photo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("drawn"))
    parser.add_argument("--min-score", type=float, default=0.25)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--target", default=None)
    arguments = parser.parse_args()
    session = InferenceSession(arguments.model, dtype=arguments.dtype, target=arguments.target)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for photo in arguments.photos:
        finding = detect(session, photo, arguments.out / f"{photo.stem}.png", Limits(arguments.min_score))
        print(photo)
        for box in finding.boxes:
            print(f"  {box.score:.3f}  {name_of(box)}  {', '.join(f'{corner:.1f}' for corner in box.corners)}")
        for region in finding.regions:
            print(f"  {region.share:.1%}  {name_of(region)}")


def detect(session: InferenceSession, photo: Path, drawn: Path, limits: Limits) -> Finding:
    """Run one photo, and write it with what was found to ``drawn``."""
    (wanted,), labels = session.model.inputs, labels_of(session.metadata)
    how = recipe(wanted, session.metadata, ImageOptions())
    pixels, _ = read_images([photo], how, largest=LARGEST)
    sides = pixels.shape[2:] if how.layout == "NCHW" else pixels.shape[1:3]
    found = recognise(session.model.outputs, session.metadata, labels, sides)
    if found is None:
        raise SystemExit("the model's outputs are neither boxes nor masks that trnrt knows (docs/cli.md)")
    names = [output.name for output in session.model.outputs]
    outputs = dict(zip(names, session.run(names, {wanted.name: pixels}), strict=True))
    picture = read_photo(photo)
    (finding,) = find_all(outputs, found, [how.placement(picture.size)], labels, limits)
    paint(picture, finding).save(drawn)
    return finding


if __name__ == "__main__":
    main()
