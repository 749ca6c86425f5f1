"""The versions that a script's files are made with: the same versions write the same graphs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version


def check_versions(wanted: Mapping[str, str]) -> None:
    """Exit with a message that says what to install, if a package is missing or has another version.

    A local version, such as the +cpu of PyTorch's builds, doesn't count.
    """
    found = {name: find_version(name) for name in wanted}
    wrong = {name: found[name] for name in wanted if found[name] != wanted[name]}
    if wrong:
        listed = ", ".join(f"{name} {found or 'is missing'}" for name, found in wrong.items())
        pins = " ".join(f"{name}=={release}" for name, release in wanted.items())
        sys.exit(f"other versions would write other files: {listed}. Install: pip install {pins}")


def find_version(name: str) -> str:
    """The release of an installed package; empty if there is none."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""
