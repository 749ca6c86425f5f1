"""Prints the notes of the version in pyproject.toml: its part of CHANGELOG.md.

Ends with 1 if the part is missing, empty or still called unreleased, or if the tag (``GITHUB_REF_NAME``) is not that
version's: a release is refused before anything is built.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(version: str, changelog: str) -> str:
    """The text below the version's heading, up to the next version's. Raises ValueError if it can't be released."""
    parts = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        if heading.split()[0] == version:
            if "unreleased" in heading:
                raise ValueError(f"CHANGELOG.md: {version} is still unreleased; write its date in place of that word")
            if not text.strip():
                raise ValueError(f"CHANGELOG.md: {version} has no notes")
            return text.strip() + "\n"
    raise ValueError(f"CHANGELOG.md has no part for {version}, the version in pyproject.toml")


def check_tag(version: str, tag: str | None) -> None:
    """Raise ValueError if a tag is pushed that isn't the version's."""
    if tag is not None and tag.startswith("v") and tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, and pyproject.toml has version {version}: they must be the same")


if __name__ == "__main__":
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    try:
        check_tag(found, os.environ.get("GITHUB_REF_NAME"))
        print(notes(found, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")), end="")
    except ValueError as error:
        sys.exit(str(error))
