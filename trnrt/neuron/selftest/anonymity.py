"""A report without the names of a machine, a user or a folder.

A report holds AWS's messages and tracebacks, which hold paths. What is replaced: this machine's and user's names and
home, every absolute path except its last part, EC2's identifiers, and addresses of networks.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trnrt.neuron.device import WORKER_VARIABLE

_SHORTEST_NAME = 3
_PUBLIC = r"(?:dev|proc|sys|opt/aws|etc)/"
"""Folders that every machine has."""

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(i|r|vol|eni|subnet|vpc|sg|ami|snap|lt)-[0-9a-f]{8,17}\b"), r"\1-…"),
    (re.compile(r"\barn:[\w:/.*-]+"), "arn:…"),
    (re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}[\w.-]*"), "ip-…"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "…"),
    (re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"), "…"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "…"),
    (re.compile(rf"(?<![\w.…>/-])~?/(?!{_PUBLIC})(?:[^\s/'\"<>|:;,()\[\]{{}}]+/)+"), "…/"),
)


def private_names() -> tuple[str, ...]:
    """The names of this machine and its user, and their folders; the longest first. The path in TRNRT_NRTPY_PYTHON is
    one of them: a finding about it shows it as it was typed, and the rules for paths miss spaces and relative ones."""
    found = {socket.gethostname(), socket.gethostname().partition(".")[0], str(Path.home()), str(Path.cwd())}
    with suppress(KeyError, OSError):  # a user without a name
        found.add(getpass.getuser())
    worker = os.environ.get(WORKER_VARIABLE, "")
    if "/" in worker:  # else it is a program's name, such as python, which a report is full of
        found.add(worker)
    common = {"root", "user", "localhost", "ubuntu", "/", "ec2-user", "/root"}
    return tuple(sorted((n for n in found - common if len(n) >= _SHORTEST_NAME), key=len, reverse=True))


def anonymous(document: Any, private: Iterable[str]) -> Any:
    """The document with all its texts, and the keys of its tables, without ``private`` names, paths and identifiers."""
    names = tuple(private)
    if isinstance(document, dict):
        return {_anonymous_text(str(key), names): anonymous(value, names) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [anonymous(value, names) for value in document]
    return _anonymous_text(document, names) if isinstance(document, str) else document


def _anonymous_text(text: str, private: Iterable[str]) -> str:
    for name in private:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", text)
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
