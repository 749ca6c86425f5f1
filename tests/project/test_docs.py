"""The docs say what the code does: every operator, verb, flag and environment variable, and nothing that is not there.

``UPDATE_DOCS=1 pytest tests/project/test_docs.py`` writes the generated pages anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_sections import command_section
from operator_table import details_page, left_out, messages, operator_page, schemas, titled, versions
from profiles import made_profile

from trnrt.cli import app
from trnrt.commands.verbs import Verbs
from trnrt.errors import UnsupportedModelError
from trnrt.importer import import_model
from trnrt.importer.quantised.rewriting import rewritten_operators
from trnrt.importer.reading.functions import EXPANDED
from trnrt.nki.checking import Report
from trnrt.nki.machine.timing.steps import BOUNDS
from trnrt.operators.record import records, supported_operators
from trnrt.planner import PlanOptions, make_plan
from trnrt.report.documents import nki_profile_document, profile_document
from trnrt.report.profiles import step_uses_table
from trnrt.report.summary import summary_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_operator_pages_are_generated() -> None:
    pages = {DOCS / "operators.md": operator_page, DOCS / "operator-details.md": details_page}
    for page, make in pages.items():
        if os.environ.get("UPDATE_DOCS"):
            page.write_text(make(), encoding="utf-8")
        text = page.read_text(encoding="utf-8")
        if f"onnx {onnx.__version__} " in text:
            assert text == make()
    # Another onnx has other opsets and other tests, but not other lowering functions.
    wanted = [titled(operator) for operator in supported_operators()]
    assert re.findall(r"^\| \[([\w.]+)\]\(operator-details", (DOCS / "operators.md").read_text("utf-8"), re.M) == wanted
    assert re.findall(r"^## ([\w.]+)$", (DOCS / "operator-details.md").read_text("utf-8"), re.M) == wanted


def test_records_know_every_version_of_their_operators() -> None:
    """A version that a newer onnx brings is looked at, and added to the record."""
    for operator in supported_operators():
        known, stated = versions(operator), records()[operator].opsets[operator[1]]
        assert [version for version in stated if version <= max(known, default=0)] == known, operator


def test_what_stays_out_is_every_other_operator_of_onnx() -> None:
    out = [name for names in left_out().values() for name in names]
    assert len(out) == len(set(out)) > 50
    lowered = {titled(operator) for operator in [*supported_operators(), *rewritten_operators(), *EXPANDED]}
    known = {titled(operator) for operator, history in schemas().items() if history}
    assert known - lowered - {"Constant"} == {name for name in out if name in known}
    assert {"Loop", "StringNormalizer", "Scan", "Unique"} <= set(out)


def test_messages_are_those_that_a_model_gets() -> None:
    """What the table says of an operator is what its error says, for a model that runs into it."""
    resize = 'y = Resize<coordinate_transformation_mode="upside_down">(x, , s)'
    graph = f"g (float[1,1,4,4] x) => (float[1,1,8,8] y) {{ {resize} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{graph}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s"))
    with pytest.raises(UnsupportedModelError) as caught:
        make_plan(import_model(model.SerializeToString()), {"x": (1, 1, 4, 4)}, PlanOptions("trn2", "float32"))
    templates = [re.escape(text).replace("…", ".*") for text in messages(records()["", "Resize"].lowering, "Resize")]
    assert any(re.fullmatch(template, caught.value.blockers[0].reason) for template in templates)


def verbs(group: Verbs, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb with its whole name, those of groups included."""
    for name, command in group.all_verbs().items():
        if isinstance(command, Verbs):
            yield from verbs(command, f"{prefix}{name} ")
        elif not command.hidden:
            yield f"{prefix}{name}", command


def command_page() -> str:
    """docs/cli.md: every verb with its arguments and flags, from the commands themselves."""
    lines = [
        "# The command line",
        "",
        "The verbs and their flags come first, generated from the commands. After them:",
        "[Reading a profile](#reading-a-profile), [What the device can't run](#what-the-device-cant-run),",
        "[The size of a kernel](#the-size-of-a-kernel), [Overriding the planner](#overriding-the-planner),",
        "[Learning from a device](#learning-from-a-device), [Compiling ahead](#compiling-ahead),",
        "[Drawing boxes and masks](#drawing-boxes-and-masks).",
        "",
        "Every verb exits with 0 for success, 1 if the answer is no (a mismatch, an unsupported model, a regression),",
        "and 2 if the request was wrong (a bad file, flag or input, a file that can't be written). Results go to",
        "stdout, notes and progress to stderr. If stderr is no terminal, long work prints a plain line after 5 s, then",
        "every 10 s.",
        "`--quiet` (`-q`), before or after the verb, turns progress and notes off.",
        "",
    ]
    for name, command in verbs(app):
        lines += command_section(f"trnrt {name}", command)
    return "\n".join(lines)


def test_a_flag_means_one_thing_in_a_verb() -> None:
    """Two records of flags may each have one of the same name; click then keeps the last without a word."""
    for name, command in verbs(app):
        flags = [flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
        assert sorted(flags) == sorted(set(flags)), name


BY_HAND = "# Reading a profile\n"


def test_command_reference_is_generated() -> None:
    page = DOCS / "cli.md"
    generated, heading, rest = page.read_text(encoding="utf-8").partition(BY_HAND)
    if os.environ.get("UPDATE_DOCS"):
        generated = f"{command_page()}\n"
        page.write_text(generated + heading + rest, encoding="utf-8")
    assert generated == f"{command_page()}\n"


def test_reading_a_profile_names_every_key_column_and_name_of_the_profiler() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8").partition(BY_HAND)[2]
    profile = made_profile()
    document = profile_document("m", profile, version="1")
    nested = (document["predicted_us"], document["steps"][0], document["engines"]["dma"], document["roofline"])
    columns = [*step_uses_table(profile).columns]
    report = nki_profile_document(Report("f", "trn2"), [], version="1")
    wanted = [*document, *report, *(key for keys in nested for key in keys), *columns, *summary_of(profile), *BOUNDS]
    assert [name for name in wanted if f"`{name}`" not in text] == []


def test_every_environment_variable_is_documented() -> None:
    used = set()
    for path in (ROOT / "trnrt").rglob("*.py"):
        used |= set(re.findall(r'"((?:TRNRT|NEURON)_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *DOCS.rglob("*.md")])
    assert used and all(name in pages for name in used), used


def test_the_overview_names_operators_that_are_there_and_where_all_of_them_are() -> None:
    section = (DOCS / "overview.md").read_text(encoding="utf-8").split("## What it runs")[1].split("\n## ")[0]
    listed = section.partition("The operators are ")[2].partition(".\n")[0]
    named = set(re.findall(r"\b[A-Z][A-Za-z]+\b", listed))
    assert len(named) > 20
    assert named <= {operator for _, operator in supported_operators()}
    assert "(operators.md)" in section


def test_the_readme_is_short() -> None:
    text = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(text.split()) <= 700


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.name)
def test_pages_name_files_that_exist(page: Path) -> None:
    """A path in backquotes or in a listing is there."""
    for path in re.findall(
        r"`((?:trnrt|kernels|models|benchmarks|tests|docs)/[\w/.]+?)/?`", page.read_text(encoding="utf-8")
    ):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
