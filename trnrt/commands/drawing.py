"""``trnrt run --draw``: a detector's boxes or a segmenter's mask, drawn into the photo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trnrt.commands.members import DrawAs
from trnrt.commands.records import Drawing
from trnrt.errors import OptionError
from trnrt.report.files import check_writable, write_whole
from trnrt.report.top import labels_of
from trnrt.text import count_text, quote
from trnrt.vision.recognising import Recognised, outputs_text, recognise

if TYPE_CHECKING:
    import numpy.typing as npt

    from trnrt.inputs.matching import Inputs, Pictures
    from trnrt.session import InferenceSession
    from trnrt.vision.finding import Finding

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}

BOXES_SHOWN = 20
"""The most boxes or classes that are printed; JSON has all."""


@dataclass(frozen=True)
class Chosen:
    """The drawing to make: how to read the outputs, the photo, and where to write it."""

    found: Recognised
    pictures: Pictures
    drawing: Drawing


@dataclass(frozen=True)
class Drawn:
    """The finding that was drawn, as a document too, and notes on it."""

    kind: str
    finding: Finding
    document: dict[str, Any]
    notes: list[str]


def choose_drawing(session: InferenceSession, inputs: Inputs, drawing: Drawing) -> Chosen | None:
    """Choose the drawing before the run, which may take long; None without --draw.

    Raises:
        OptionError: if there is no photo to draw into, the outputs are neither boxes nor masks, or the file can't be
            written
    """
    if drawing.draw is None:
        return None
    if drawing.draw.suffix.lower() not in _FORMATS:
        raise OptionError(f"--draw {quote(str(drawing.draw))} ends in none of {', '.join(_FORMATS)}")
    if (count := _count_images(inputs)) != 1:
        images = count_text(count, "image")
        raise OptionError(f"--draw draws into one image, and the inputs have {images}", hint="give one with --input")
    asked = None if drawing.draw_as is DrawAs.AUTO else drawing.draw_as.value
    found = _recognise(session, inputs, asked)
    if found is None:
        what = f"no {asked}" if asked else "neither boxes nor masks"
        raise OptionError(
            f"--draw recognises {what} in the outputs {outputs_text(session.model.outputs)}",
            hint="docs/cli.md (Drawing boxes and masks) lists the forms that it knows",
        )
    check_writable(drawing.draw)
    (pictures,) = inputs.pictures.values()
    return Chosen(found, pictures, drawing)


def note_drawable(session: InferenceSession, inputs: Inputs) -> list[str]:
    """A note that --draw could draw a photo's boxes or mask, where that is sure."""
    found = _recognise(session, inputs, None) if _count_images(inputs) == 1 else None
    if found is None or not found.sure:
        return []
    return [f"--draw OUT.png draws the {found.kind}: {found.rule}"]


def draw_finding(chosen: Chosen, outputs: Mapping[str, npt.NDArray[Any]], labels: Sequence[str]) -> Drawn:
    """Find the boxes or the mask, and write the picture."""
    from trnrt.inputs.decoding import read_photo
    from trnrt.vision.finding import Limits
    from trnrt.vision.painting import paint
    from trnrt.vision.reading import find_all, finding_document, rule_text

    drawing, path, default = chosen.drawing, chosen.pictures.paths[0], Limits()
    assert drawing.draw is not None
    limits = Limits(
        default.score if drawing.min_score is None else drawing.min_score,
        default.overlap if drawing.max_overlap is None else drawing.max_overlap,
    )
    photo = read_photo(path)
    (finding,) = find_all(outputs, chosen.found, [chosen.pictures.how.placement(photo.size)], labels, limits)
    painted = paint(photo, finding)
    kind = _FORMATS[drawing.draw.suffix.lower()]
    write_whole(drawing.draw, lambda file: painted.save(file, kind))
    rule = rule_text(outputs, chosen.found)
    document = {"kind": chosen.found.kind, "rule": rule, "image": str(path), "file": str(drawing.draw)}
    notes = [f"read as {chosen.found.kind}: {rule}", f"drew {quote(str(drawing.draw))}"]
    return Drawn(chosen.found.kind, finding, document | finding_document(finding), notes)


def drawn_parts(drawn: Drawn) -> list[Any]:
    """The boxes or classes as text."""
    from rich.text import Text

    from trnrt.report.tables import plain_table
    from trnrt.vision.painting import name_of

    finding = drawn.finding
    rows: list[tuple[str, ...]]
    columns: tuple[str, ...]
    if drawn.kind == "boxes":
        rows = [
            (name_of(box), str(box.index), f"{box.score:.3f}", *(f"{corner:.1f}" for corner in box.corners))
            for box in finding.boxes
        ]
        title, columns = count_text(len(rows), "box", "boxes"), ("name", "class", "score", *_CORNERS)
    else:
        rows = [(name_of(region), str(region.index), f"{region.share:.1%}") for region in finding.regions]
        title, columns = count_text(len(rows), "class", "classes"), ("name", "class", "share")
    parts: list[Any] = [Text(f"{title} in {finding.placement.size[0]}x{finding.placement.size[1]} pixels")]
    if rows:
        parts.append(plain_table(columns, rows[:BOXES_SHOWN], right=range(1, len(columns))))
    if (rest := len(rows) - BOXES_SHOWN) > 0:
        parts.append(Text(f"and {rest:,} more; --json has all"))
    return parts


_CORNERS = ("left", "top", "right", "bottom")


def _count_images(inputs: Inputs) -> int:
    """The number of image files that the inputs are made from."""
    return sum(len(pictures.paths) for pictures in inputs.pictures.values())


def _recognise(session: InferenceSession, inputs: Inputs, kind: str | None) -> Recognised | None:
    """Recognise boxes or a mask in the outputs, for inputs with one image."""
    from trnrt.inputs.images import LAYOUTS

    ((name, pictures),) = inputs.pictures.items()
    shape = inputs.feeds[name].shape
    height, width = (shape[dim] for dim in range(1, 4) if dim != LAYOUTS[pictures.how.layout])
    return recognise(session.model.outputs, session.metadata, labels_of(session.metadata), (height, width), kind)
