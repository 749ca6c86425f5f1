"""``python -m benchmarks.pictures``: draw a model's profile for the README, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from benchmarks.command import command_line
from trnrt.commands.exits import call
from trnrt.commands.verbs import argument, option
from trnrt.report.console import say
from trnrt.report.progress import working

ModelArgument = Annotated[
    Path, argument(metavar="MODEL", exists=True, help="The ONNX model, as one kernel for one row.")
]
TitleFlag = Annotated[str | None, option("--title", metavar="TEXT", help="The heading. By default the model's name.")]
OutFlag = Annotated[
    Path, option("--out", metavar="DIR", exists=True, help="Write profile-light.svg and profile-dark.svg here.")
]


def draw_pictures(model: ModelArgument, title: TitleFlag = None, out: OutFlag = Path("docs/images")) -> None:
    """Draw a model's profile as two SVG pictures, light and dark."""
    from trnrt.errors import OptionError
    from trnrt.report.files import write_text
    from trnrt.report.picture import THEMES, profile_svg
    from trnrt.running.profiler import profile_plan
    from trnrt.session import InferenceSession

    with working("planning and timing"):
        session = InferenceSession(model)
        plans = session.partition(1).plans
        if len(plans) != 1:
            raise OptionError(f"{model.name} has {len(plans)} kernels; the picture shows one")
        profile = profile_plan(plans[0])
    for theme in THEMES:
        path = out / f"profile-{theme}.svg"
        write_text(path, profile_svg(profile, title or session.name, theme))
        say(f"wrote {path}")


app = command_line(draw_pictures)

if __name__ == "__main__":
    call(app)
