"""What a contributor meets first: pages, templates and CI say what is true, and dependencies have lower bounds."""

from __future__ import annotations

import os
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from commanding import trnrt

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
HERE = "https://github.com/trnrt/trnrt/blob/main/"
"""Pages of the site name files outside docs/ so."""
LEAST: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "least_versions.py"))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links_of(page):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            assert anchor[1:] in anchors(target), f"{page.name} links to {path}{anchor}"


def links_of(page: Path) -> list[tuple[Path | str, str]]:
    """The files of the repository that a page links to, and their anchors; no file is the page itself."""
    links = re.findall(r"\]\(([^)#\s]*)(#[\w-]*)?\)", page.read_text(encoding="utf-8"))
    inside = [(path, anchor) for path, anchor in links if path.startswith(HERE) or not re.match("https?:", path)]
    return [(ROOT / path.removeprefix(HERE) if HERE in path else path, anchor) for path, anchor in inside]


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_list() -> None:
    docs = ROOT / "docs"
    linked = {(docs / path).resolve() for path, _ in links_of(docs / "README.md") if path}
    wanted = {*docs.rglob("*.md"), *map(ROOT.joinpath, ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))}
    assert sorted(path.name for path in wanted - linked - {docs / "README.md"}) == []


def test_the_readme_leads_to_the_list() -> None:
    leads = [path for path, _ in links_of(ROOT / "README.md")]
    assert {"docs/README.md", "CONTRIBUTING.md"} <= set(leads)


# -- CONTRIBUTING.md shows code that is in the tree ----------------------------------------------------

OWN = read("CONTRIBUTING.md")
SHRINK = OWN.partition("```diff\n")[2].partition("```")[0]


@pytest.mark.parametrize("listing", re.findall(r"```python\n(.*?)```", OWN, re.DOTALL))
def test_listings_of_a_verb_are_in_its_files(listing: str) -> None:
    files = ("trnrt/cli.py", "trnrt/commands/models.py", "trnrt/commands/cut.py")
    assert any(listing.rstrip() in read(path) for path in files)


@pytest.mark.parametrize("hunk", re.split(r"^--- a/", SHRINK, flags=re.MULTILINE)[1:])
def test_the_diff_of_an_operator_applies(hunk: str) -> None:
    """The lines that it keeps or removes follow each other in its file."""
    path, lines = hunk.splitlines()[0], hunk.splitlines()[3:]
    before = [line[1:] for line in lines if not line.startswith("+")]
    assert len(before) > 5 and "\n".join(before) in read(path)


# -- docs/design.md follows one model ------------------------------------------------------------------

SHOWN = re.findall(r"^    \$ trnrt (.*)\n((?:    .*\n|\n)+)", read("docs/design.md"), re.MULTILINE)
# Times, and the last digits of sums, which depend on the CPU: errors, and decimals from the sixth on.
DIFFERS = re.compile(r"[\d,.]+ ms on this machine|largest error [\d.e-]+|(?<=\.\d{5})\d+")


@pytest.mark.parametrize(
    ("command", "lines"), SHOWN, ids=[command.split("--stage")[-1].strip() for command, _ in SHOWN]
)
def test_the_outputs_that_the_design_shows_are_real(
    command: str, lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    ran = trnrt(*command.split())
    assert ran.code == 0
    there = DIFFERS.sub("", ran.err + ran.out)
    pieces = [piece.strip() for line in lines.splitlines() for piece in DIFFERS.sub("...", line).split("...")]
    assert [piece for piece in pieces if piece not in there] == []
    for module in Path().glob("out/*.py"):
        assert all(piece.strip() in module.read_text() for piece in kernel_module_shown().split("\n    ...\n"))


def kernel_module_shown() -> str:
    return read("docs/design.md").split("```python\n")[1].split("```")[0]


def test_the_design_follows_a_model_to_its_numbers() -> None:
    verbs = [command.split()[0] for command, _ in SHOWN]
    assert verbs == ["inspect", "inspect", "inspect", "compile", "profile", "run", "validate"]


def test_the_map_has_every_room() -> None:
    text = read("docs/design.md").split("## One model")[0]
    rooms = {path.parent.name for path in (ROOT / "trnrt").glob("*/__init__.py")} | {"serve", "kernels"}
    assert [room for room in sorted(rooms) if f"`trnrt/{room}`" not in text and f"`{room}/`" not in text] == []


# -- CI ------------------------------------------------------------------------------------------------

WORKFLOW = yaml.safe_load(read(".github/workflows/ci.yml"))


def steps(job: str) -> list[str]:
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_the_workflow_runs_what_a_developer_runs() -> None:
    assert steps("run") == [".ci/run"]
    assert steps("least-versions") == [".ci/least"]
    assert all(os.access(ROOT / script, os.X_OK) for script in (".ci/run", ".ci/least"))
    # YAML 1.1 reads the key `on` as true.
    assert WORKFLOW[True]["schedule"][0]["cron"].split()[2:] == ["*", "*", "1"]


def test_the_workflow_has_the_pythons_that_the_package_names() -> None:
    named = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert WORKFLOW["jobs"]["run"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.stem)
def test_forms_are_sound(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "ISSUE_TEMPLATE" and path.stem != "config":
        assert form["name"] and form["description"]
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids) > 0
        assert all(field["attributes"]["label"] for field in form["body"])


def test_hooks_use_the_tools_of_the_development_environment() -> None:
    hooks = [hook for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"] for hook in repo["hooks"]]
    tools = {hook["entry"].split()[0] for hook in hooks}
    needed = {re.split(r"[\[>=]", line)[0] for line in PROJECT["optional-dependencies"]["dev"]}
    assert tools == {"ruff", "mypy"} <= needed
    assert {hook["language"] for hook in hooks} == {"system"}


# -- the least versions of dependencies ----------------------------------------------------------------


def test_every_requirement_has_a_lower_bound() -> None:
    lines = LEAST["requirements"](PROJECT)
    constraints = list(LEAST["least_versions"](lines))
    assert len(constraints) == len(lines) > 20
    assert "numpy==2.0" in [line.partition(";")[0] for line in constraints]


@pytest.mark.parametrize("line", ["numpy", "numpy<3", "ray[data]", "uvloop; sys_platform != 'win32'"])
def test_one_without_a_lower_bound_is_found(line: str) -> None:
    with pytest.raises(ValueError, match="has no lower bound"):
        list(LEAST["least_versions"]([line]))


def test_what_is_constrained() -> None:
    lines = ["numpy>=2.0", "ray[data,serve]>=2.60,<3", "uvloop>=0.21; sys_platform != 'win32'", "torch==2.13.0"]
    wanted = ["numpy==2.0", "ray==2.60", "uvloop==0.21; sys_platform != 'win32'", "torch==2.13.0"]
    assert list(LEAST["least_versions"](lines)) == wanted
