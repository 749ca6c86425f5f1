"""``python -m benchmarks.zoo``: measure well-known networks: their accuracy, times, and what bounds them."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from benchmarks.command import command_line, show
from trnrt.commands.exits import call
from trnrt.commands.options import EFFORT, EffortFlag, JsonFlag, JsonOutFlag, Reporting
from trnrt.commands.verbs import argument, option
from trnrt.report.console import note
from trnrt.report.progress import counting


class Part(StrEnum):
    """A kind of measurement."""

    PREDICTIONS = "predictions"
    ACCURACY = "accuracy"


FolderArgument = Annotated[
    Path | None,
    argument(
        metavar="[DIR]",
        help="The folder of the models and of their list, zoo.json. Without it, nothing is measured.",
        show_default=False,
    ),
]
NamesArgument = Annotated[
    list[str] | None,
    argument(metavar="[NAME]...", help="Only these models of the list.", show_default=False),
]
OnlyFlag = Annotated[Part | None, option("--only", help="Measure only the predictions, or only the accuracy.")]
TargetsFlag = Annotated[
    list[str] | None,
    option(
        "--target",
        metavar="NAME",
        help="Predict for this target; repeatable. By default trn1, trn2 and trn3.",
        show_default=False,
    ),
]
BatchFlag = Annotated[
    list[int] | None,
    option(
        "--batch",
        min=1,
        metavar="N",
        help="Choose the best batch among these; repeatable. By default 1, 4, 8 and 16.",
        show_default=False,
    ),
]
ItemsFlag = Annotated[
    int, option("--accuracy", min=1, max=64, metavar="N", help="Random items to measure the accuracy with.")
]
CacheFlag = Annotated[
    Path | None,
    option(
        "--cache",
        metavar="DIR",
        help="The folder to keep measurements in. By default in trnrt's cache.",
        show_default=False,
    ),
]
ResultsFlag = Annotated[
    Path | None,
    option(
        "--results",
        metavar="FILE",
        help="The results file to update and show. By default the committed one.",
        show_default=False,
    ),
]
HtmlFlag = Annotated[
    Path | None, option("--html", metavar="FILE", help="Write the page for a browser.", show_default=False)
]
ProfilesFlag = Annotated[
    Path | None,
    option(
        "--profiles",
        metavar="DIR",
        help="Link the profile reports in this folder from --html. With DIR, write them first, on trn2.",
        show_default=False,
    ),
]
PricesFlag = Annotated[
    Path | None,
    option(
        "--prices",
        metavar="FILE",
        help="Prices of instances (docs/scale.md): adds the cost of a million items.",
        show_default=False,
    ),
]


def zoo_command(
    folder: FolderArgument = None,
    names: NamesArgument = None,
    only: OnlyFlag = None,
    target: TargetsFlag = None,
    batch: BatchFlag = None,
    effort: EffortFlag = EFFORT,
    items: ItemsFlag = 4,
    cache: CacheFlag = None,
    results: ResultsFlag = None,
    html: HtmlFlag = None,
    profiles: ProfilesFlag = None,
    prices: PricesFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Measure the models of a folder, and show the results. A second run measures only what changed."""
    from benchmarks.zoo.html import zoo_html
    from benchmarks.zoo.keeping import Kept, default_folder
    from benchmarks.zoo.listing import choose_entries, read_list
    from benchmarks.zoo.measuring import BATCHES, CHOOSING, TARGETS, Wanted, measure_models
    from benchmarks.zoo.report import write_profiles, zoo_parts
    from benchmarks.zoo.results import RESULTS, Results, results_document
    from trnrt.capacity.prices import read_prices
    from trnrt.nki.machine.targets import get_target
    from trnrt.report.files import check_writable, write_text

    costs = None if prices is None else read_prices(prices)
    for path in filter(None, (html, json_out)):
        check_writable(path)
    wanted = Wanted(
        tuple(dict.fromkeys(get_target(name).name for name in target or TARGETS)),
        tuple(sorted(set(batch or BATCHES))),
        effort,
        predicts=only is not Part.ACCURACY,
        items=0 if only is Part.PREDICTIONS else items,
    )
    found = Results(results or RESULTS)
    if folder is not None:
        entries, kept = choose_entries(read_list(folder), names or []), Kept(cache or default_folder())
        start = time.process_time()
        with counting("measuring the zoo", len(entries) * wanted.steps, unit="steps") as done:
            measure_models(folder, entries, wanted, kept, found, done)
        note(f"{kept.made:,} measurements took {time.process_time() - start:,.0f} s of CPU time; the others were kept")
        if profiles is not None:
            with counting("writing profile reports", len(entries), unit="reports") as done:
                write_profiles(folder, entries, found.rows, CHOOSING, profiles, done)
    if html is not None:
        write_text(html, zoo_html(found.rows, costs, profiles, page=html))
    show(Reporting(as_json, json_out), results_document(found.rows), lambda: zoo_parts(found.rows, costs))


app = command_line(zoo_command)

if __name__ == "__main__":
    call(app)
