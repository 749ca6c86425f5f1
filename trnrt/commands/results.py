"""Printing a verb's result, and writing its document."""

from __future__ import annotations

from trnrt.commands.options import Reporting
from trnrt.report.console import say
from trnrt.report.documents import Document, as_text
from trnrt.report.files import write_text


def deliver(reporting: Reporting, document: Document, text: str) -> None:
    """Print ``text``, or with ``--json`` the document; write the document where ``--json-out`` names a file."""
    json = as_text(document)
    say(json if reporting.as_json else text)
    if reporting.json_out is not None:
        write_text(reporting.json_out, json)
