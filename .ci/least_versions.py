"""Print a constraint for pip from each lower bound of pyproject.toml: ``numpy>=2.0`` becomes ``numpy==2.0``."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
# AWS's packages come from another index, and the sample models are trained with one exact version of PyTorch.
LEFT_OUT = frozenset({"neuron", "models"})
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?(?P<bounds>[^;]*)(?P<marker>;.*)?")


def requirements(project: Mapping[str, Any]) -> list[str]:
    """The requirements of trnrt and its extras, without those on trnrt itself."""
    extras = [lines for extra, lines in project["optional-dependencies"].items() if extra not in LEFT_OUT]
    found = [line for lines in (project["dependencies"], *extras) for line in lines]
    return [line for line in found if not line.startswith("trnrt[")]


def least_versions(lines: list[str]) -> Iterator[str]:
    """A constraint for each requirement; one without a lower bound is an error."""
    for line in lines:
        requirement = _REQUIREMENT.fullmatch(line)
        bound = re.match(r"(>=|==)([\w.]+)", requirement["bounds"].strip()) if requirement else None
        if requirement is None or bound is None:
            raise ValueError(f"{PYPROJECT.name}: {line!r} has no lower bound")
        yield f"{requirement['name']}=={bound[2]}{requirement['marker'] or ''}"


if __name__ == "__main__":
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    sys.stdout.writelines(f"{line}\n" for line in sorted(least_versions(requirements(project))))
