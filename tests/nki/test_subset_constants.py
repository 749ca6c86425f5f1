"""The check of constants that share a name, across the files that a kernel imports from."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnrt.nki.checking import check
from trnrt.nki.sim.subset_constants import check_constants

KERNEL = """\
import numpy as np
from trnrt.nki import nki, nl
{imports}

@nki.jit
def kernel(a):
    {body}
    return a
"""


def findings(folder: Path, files: dict[str, str], imports: str, body: str) -> list[tuple[int, str, str]]:
    """Line, rule and message of what is found in a kernel beside these files."""
    for name, source in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(source, encoding="utf-8")
    path = folder / "checked.py"
    path.write_text(KERNEL.format(imports=imports, body=body), encoding="utf-8")
    found = check_constants(path.read_text(encoding="utf-8"), str(path))
    return [(finding.line, finding.rule, finding.message.replace(f"{folder}/", "")) for finding in found]


LEFT = "SIZE = 4 * 1024\n\ndef left(a, size=SIZE):\n    return size\n"
BOTH = "from left import left\nfrom right import right"
RIGHT = "SIZE = 8\n\ndef right(a):\n    return inner(a)\n\ndef inner(a):\n    return SIZE\n"
CALLS_LEFT = RIGHT.replace("return SIZE", "return left(SIZE)")


@pytest.mark.parametrize(
    ("files", "imports", "body"),
    [
        ({"left.py": LEFT, "right.py": RIGHT}, BOTH, "left(a), right(a)"),
        ({"left.py": LEFT, "right.py": RIGHT}, "import left\nimport right", "left.left(a), right.right(a)"),
        ({"left.py": LEFT, "right.py": RIGHT}, "from left import left as f\nimport right as r", "f(a), r.right(a)"),
        (
            {
                "left.py": LEFT,
                "right.py": f"from left import left\n{CALLS_LEFT}",
            },
            "from right import right",
            "right(a)",
        ),
        (
            {"left.py": LEFT, "right.py": RIGHT, "table.py": "from left import left\nLEFT = {'left': left}\n"},
            "from table import LEFT\nfrom right import right",
            "LEFT['left'](a), right(a)",
        ),
        (
            {
                "left.py": LEFT,
                "right.py": "OTHER, SIZE = 3, 8\n\nclass Right:\n    def f(self):\n        SIZE\n",
            },
            "from left import left\nfrom right import Right",
            "left(a), Right()",
        ),
        (
            {"p/left.py": LEFT, "p/right.py": f"from .left import left\n{CALLS_LEFT}"},
            "from p.right import right",
            "right(a)",
        ),
    ],
)
def test_two_values_of_a_name_are_found(files: dict[str, str], imports: str, body: str, tmp_path: Path) -> None:
    ((line, rule, message),) = findings(tmp_path, files, imports, body)
    assert (line, rule) == (len(imports.splitlines()) + 5, "constant-name")
    assert message.startswith("the constant SIZE is ")
    assert "left.py:1" in message and "right.py:" in message and "4 * 1024 in " in message and "8 in " in message


@pytest.mark.parametrize(
    ("files", "imports", "body"),
    [
        (
            {"left.py": LEFT, "right.py": RIGHT.replace("8\n", "2 * 2048\n")},
            BOTH,
            "left(a), right(a)",
        ),
        ({"left.py": LEFT, "right.py": RIGHT}, BOTH, "left(a)"),
        (
            {"left.py": LEFT, "right.py": RIGHT.replace("SIZE = 8", "from left import SIZE")},
            BOTH,
            "left(a), right(a)",
        ),
        (
            {"left.py": LEFT, "right.py": RIGHT.replace("inner(a):\n", "inner(a, SIZE=1):\n")},
            BOTH,
            "left(a), right(a)",
        ),
        ({"left.py": LEFT, "right.py": RIGHT}, "from left import left\nimport right", "left(a), right.SIZE"),
        (
            {"left.py": LEFT, "right.py": "SIZE = ("},
            BOTH,
            "left(a), right(a)",
        ),
        ({"left.py": LEFT}, "from left import left\nfrom missing import right", "left(a), right(a)"),
        ({"left.py": "SIZE = SIZE\ndef left(a):\n    SIZE, MORE\nMORE = 1 / 0\n"}, "from left import left", "left(a)"),
    ],
)
def test_what_is_no_danger_is_not_found(files: dict[str, str], imports: str, body: str, tmp_path: Path) -> None:
    assert findings(tmp_path, files, imports, body) == []


def test_each_kernel_is_looked_at_apart(tmp_path: Path) -> None:
    files = {"left.py": LEFT, "right.py": RIGHT}
    imports = "from left import left\nfrom right import right\n\n@nki.jit\ndef other(a):\n    return right(a)\n"
    assert findings(tmp_path, files, imports, "left(a)") == []


HELP = "def left(a):\n    return help_it(a)\n\ndef help_it(a):\n    return a\n"
OTHER_HELP = "def right(a):\n    return help_it(a)\n\ndef help_it(a):\n    return 2 * a\n"
MADE = "class Made:\n    def f(self):\n        return 1\n\ndef left(a):\n    return Made()\n"
OTHER_MADE = MADE.replace("1", "2").replace("left", "right")


@pytest.mark.parametrize(
    ("files", "imports", "body", "name"),
    [
        ({"left.py": HELP, "right.py": OTHER_HELP}, BOTH, "left(a), right(a)", "help_it"),
        (
            {"left.py": HELP, "right.py": OTHER_HELP},
            "import left\nimport right",
            "left.left(a), right.right(a)",
            "help_it",
        ),
        ({"left.py": MADE, "right.py": OTHER_MADE}, BOTH, "left(a), right(a)", "Made"),
        (
            {"left.py": MADE, "right.py": OTHER_HELP.replace("help_it", "Made")},
            BOTH,
            "left(a), right(a)",
            "Made",
        ),
        (
            {
                "left.py": HELP,
                "right.py": OTHER_HELP,
                "more.py": "from right import right as left\ndef f(a):\n    left(a)\n",
            },
            "from left import left\nfrom more import f",
            "left(a), f(a)",
            "left",
        ),
    ],
    ids=["functions", "attributes", "classes", "class-and-function", "alias"],
)
def test_two_definitions_of_a_name_are_found(
    files: dict[str, str], imports: str, body: str, name: str, tmp_path: Path
) -> None:
    found = findings(tmp_path, files, imports, body)
    assert {(line, rule) for line, rule, _ in found} == {(len(imports.splitlines()) + 5, "constant-name")}
    message = next(message for *_, message in found if message.startswith(f"{name} is defined in "))
    assert ", and otherwise in " in message and "left.py:" in message and "right.py:" in message


@pytest.mark.parametrize(
    ("files", "imports", "body"),
    [
        ({"left.py": HELP, "right.py": HELP.replace("left", "right")}, BOTH, "left(a), right(a)"),
        ({"left.py": HELP, "right.py": "from left import help_it\nright = help_it\n"}, BOTH, "left(a), right(a)"),
        (
            {"left.py": HELP, "middle.py": "from left import left, help_it\n"},
            "from left import left\nfrom middle import help_it, left as again",
            "left(a), again(a), help_it(a)",
        ),
        ({"left.py": HELP, "right.py": OTHER_HELP}, BOTH, "left(a)"),
        (
            {"left.py": HELP, "right.py": "class Right:\n    def help_it(self):\n        return 2\n"},
            "from left import left\nfrom right import Right",
            "left(a), Right().help_it()",
        ),
        (
            {
                "left.py": HELP,
                "right.py": "def right(a):\n    def help_it(i):\n        return 2 * i\n    return help_it(a)\n",
            },
            BOTH,
            "left(a), right(a)",
        ),
        (
            {"left.py": HELP},
            "from left import left\n\ndef outer(f):\n    def help_it(i):\n        return 2 * i\n    help_it(f)\n",
            "left(a), outer(a)",
        ),
        ({"left.py": HELP, "right.py": OTHER_HELP}, "import left\nimport right", "left.help_it(a), right.help_it(a)"),
        (
            {"left.py": HELP, "right.py": OTHER_HELP},
            "from left import help_it as one\nfrom right import help_it as two",
            "one(a), two(a)",
        ),
        ({"left.py": HELP.replace("left", "kernel")}, "from left import kernel as other", "other(a)"),
    ],
    ids=[
        *("copy", "re-bound", "re-export", "not-reached", "method", "nested", "nested-here", "attributes", "aliases"),
        "the-kernel-itself",
    ],
)
def test_one_function_by_several_ways_is_no_danger(
    files: dict[str, str], imports: str, body: str, tmp_path: Path
) -> None:
    assert findings(tmp_path, files, imports, body) == []


@pytest.mark.usefixtures("level_0_6")
def test_check_finds_them(tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(LEFT)
    (tmp_path / "right.py").write_text(RIGHT)
    path = tmp_path / "checked.py"
    path.write_text(KERNEL.format(imports=BOTH, body="left(a), right(a)"))
    assert [finding.rule for finding in check(path).findings] == ["constant-name"]
