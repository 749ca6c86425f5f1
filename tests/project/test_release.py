"""A release can be made: one version everywhere, notes for it, and a workflow that tries every stated Python."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import trnrt

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [
    one.rpartition(" ")[2] for one in PROJECT["classifiers"] if one.startswith("Programming Language :: Python :: 3.")
]
CHANGELOG = (
    "# Changelog\n\n## 0.3.0 (2027-01-01)\n\n- Faster.\n\n## 0.2.0 (unreleased)\n\n- Old.\n\n## 0.1.0 (2026-01-01)\n\n"
)


def workflow(name: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.fixture
def release_notes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / ".ci" / "release_notes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_the_same_everywhere() -> None:
    assert trnrt.__version__ == PROJECT["version"]


def test_notes_are_the_part_of_a_version(release_notes: ModuleType) -> None:
    assert release_notes.notes("0.3.0", CHANGELOG) == "- Faster.\n"


@pytest.mark.parametrize(
    ("version", "told"), [("0.2.0", "still unreleased"), ("0.1.0", "has no notes"), ("0.4.0", "has no part for 0.4.0")]
)
def test_a_version_without_notes_is_refused(release_notes: ModuleType, version: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        release_notes.notes(version, CHANGELOG)


def test_this_version_has_notes(release_notes: ModuleType) -> None:
    assert release_notes.notes(PROJECT["version"], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def test_a_tag_of_another_version_is_refused(release_notes: ModuleType) -> None:
    release_notes.check_tag("0.2.0", "v0.2.0")
    release_notes.check_tag("0.2.0", "main")
    with pytest.raises(ValueError, match=r"the tag is v0.3.0, and pyproject.toml has version 0.2.0"):
        release_notes.check_tag("0.2.0", "v0.3.0")


def test_every_stated_python_is_tested() -> None:
    assert PYTHONS[0] == PROJECT["requires-python"].removeprefix(">=")
    assert workflow("ci.yml")["jobs"]["run"]["strategy"]["matrix"]["python"] == PYTHONS
    assert workflow("release.yml")["jobs"]["try"]["strategy"]["matrix"]["python"] == PYTHONS


def test_only_a_tag_publishes() -> None:
    jobs = workflow("release.yml")["jobs"]
    assert jobs["publish"]["needs"] == "try" and jobs["try"]["needs"] == "build"
    assert jobs["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
