"""The HTML report of a profile: one file without external resources.

``columns``  the data of the pictures
``sources``  the kernel's source with the cost of its lines
``parts``    the header and the tables, as HTML
``against``  another run: its timeline, and the differences
``graph``    the fusion graph of a model's plan
``reading``  the data of a report that was written before
This module assembles page.html, page.css and the scripts.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from trnrt.nki.profiling import Profile
from trnrt.report.page.against import against_section
from trnrt.report.page.columns import report_data
from trnrt.report.page.graph import graph_data, graph_section
from trnrt.report.page.parts import (
    bottleneck,
    breakdown_table,
    causes_table,
    engine_table,
    facts,
    headline,
    marks,
    notes,
    step_table,
    verdict,
)
from trnrt.text import name_text

if TYPE_CHECKING:
    from trnrt.planner.plan import Plan
    from trnrt.report.against import Difference
    from trnrt.report.verdict import Tried

# In order of dependence; one script, so that its names stay private.
_SCRIPTS = (
    "data.js",
    "format.js",
    "timeline.js",
    "live.js",
    "memory.js",
    "roofline.js",
    "graph.js",
    "source.js",
    "panel.js",
    "navigation.js",
    "main.js",
)


def report_html(
    profile: Profile,
    title: str,
    difference: Difference | None = None,
    plan: Plan | None = None,
    tried: Sequence[Tried] = (),
) -> str:
    """The report as one HTML document in ASCII: the pictures, their data, and the tables.

    ``difference``: from another run, which is drawn under this one. ``plan``: of the model, for its fusion graph.
    ``tried``: other plans of it, see ``verdict_of``.
    ``title`` and all names of the profile are data: they can't become markup or code.
    """
    style = page_style()
    script = "(() => {\n'use strict';\n" + "\n".join(_file(name) for name in _SCRIPTS) + "\n})();\n"
    graph = None if plan is None else graph_data(plan, profile)
    page = Template(_file("page.html")).substitute(
        title=escape(name_text(title)),
        policy=content_policy(style, script),
        style=style,
        script=script,
        data=_json_for_script(report_data(profile, title, difference, graph)),
        headline=headline(profile),
        marks=marks(profile),
        verdict=verdict(profile, tried),
        bottleneck=bottleneck(profile),
        facts=facts(profile),
        graph=graph_section(graph, None if difference is None else difference.before.graph),
        against=against_section(difference),
        steps=step_table(profile),
        breakdown=breakdown_table(profile),
        causes=causes_table(profile),
        engines=engine_table(profile),
        notes=notes(profile),
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _file(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def page_style() -> str:
    """The style of reports, for other pages that should look alike."""
    return _file("page.css")


def content_policy(style: str, script: str) -> str:
    """The content policy: load nothing, and run this style and script only."""
    return f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _json_for_script(data: object) -> str:
    """JSON to embed in a script: ``<`` is escaped, as ``</script`` would end it, and ``<!--`` open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, check_circular=False)
    return text.replace("<", "\\u003c")
