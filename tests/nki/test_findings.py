"""Each kind of finding of ``nki check`` has a code that stays its own.

``UPDATE_GOLDEN=1 pytest tests/nki/test_findings.py`` records new codes; it never drops or changes one.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from trnrt.nki.findings import RETIRED, Kind, code_of, kind_of, kinds, load_codes

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "golden" / "finding_codes.txt"
PAGE = ROOT / "docs" / "findings.md"
GROUPS = {"file": "0", "language": "1", "api": "2", "hardware": "[5-9]"}


def pairs() -> dict[str, str]:
    """Code -> rule, the retired ones too."""
    found: dict[str, str] = {}
    for rules in load_codes().values():
        for rule, code in rules.items():
            assert code not in found, f"{code} is that of {rule} and of {found.get(code)}"
            found[code] = rule
    return found


def test_every_kind_has_one_code_and_every_live_code_a_kind() -> None:
    all_kinds = list(kinds())
    assert [kind.rule for kind in all_kinds if not kind.code] == [], "add them to trnrt/nki/finding_codes.toml"
    rules = [kind.rule for kind in all_kinds]
    assert len(rules) == len(set(rules)) > 200
    live = {rule for group, of_group in load_codes().items() if group != RETIRED for rule in of_group}
    assert live == set(rules)
    for kind in all_kinds:
        assert re.fullmatch(f"TRN{GROUPS[kind.group]}\\d\\d", kind.code), kind
        assert load_codes()[kind.group][kind.rule] == kind.code == code_of(kind.rule)


def test_a_new_process_has_every_kind() -> None:
    """Instructions are loaded as kernels use them; their rules are all there nevertheless."""
    code = "from trnrt.nki.findings import kinds; print(*[kind.rule for kind in kinds()])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert sorted(found.split()) == sorted(kind.rule for kind in kinds())


def test_no_code_disappears_or_changes_its_meaning() -> None:
    recorded = dict(line.split() for line in RECORDED.read_text(encoding="utf-8").splitlines())
    now = pairs()
    assert recorded.items() <= now.items(), "a code is gone or has another rule: move it to [retired]"
    if os.environ.get("UPDATE_GOLDEN"):
        lines = [f"{code} {rule}\n" for code, rule in sorted((recorded | now).items())]
        RECORDED.write_text("".join(lines), encoding="utf-8")
        recorded = now
    assert recorded == now, "record the new codes with UPDATE_GOLDEN=1"


def literal_rules() -> Iterator[tuple[str, str]]:
    """(file, rule) of the findings that code makes with a rule of its own."""
    for path in (ROOT / "trnrt" / "nki").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                place = {"Finding": 3, "finding_at": 2}.get(node.func.id)
                if place is not None and len(node.args) > place:
                    rule = node.args[place]
                    if isinstance(rule, ast.Constant):
                        yield path.name, str(rule.value)


def test_findings_with_a_rule_of_their_own_have_a_kind() -> None:
    known, found = {kind.rule for kind in kinds()}, list(literal_rules())
    assert {"syntax", "script", "api-name", "constant-name"} <= {rule for _, rule in found}
    assert [(file, rule) for file, rule in found if rule not in known] == []


def test_an_unknown_rule_is_its_own_code() -> None:
    assert kind_of("no-such-rule") == Kind("no-such-rule", "no-such-rule", "file", "no-such-rule")


# ---- docs/findings.md

TITLES = {
    "file": "The file and its kernels",
    "language": "The language",
    "api": "Names and arguments",
    "hardware": "The hardware",
}
INTRODUCTION = """# What `trnrt nki check` finds

`trnrt nki check` reports each problem of a kernel under one of these codes. A code never changes its meaning, so
reviews, baselines and suppressions can rely on it. `--json` and `--sarif` include it with each finding;
[Testing kernels](testing-kernels.md#findings-in-code-reviews) shows how to see findings in code reviews.

A row marked *warning* doesn't change the exit code: with warnings only, `nki check` exits with 0. A row marked *0.6* or
*0.7* holds only at that level of NKI. "…" stands for a name from your code. Under The hardware, a row states the rule
that must hold, and its source. The tables are generated from the simulator's rules.
"""


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def findings_page() -> str:
    """docs/findings.md."""
    lines = [INTRODUCTION]
    for group, title in TITLES.items():
        columns = "what must hold | source" if group == "hardware" else "what is wrong | what to do"
        lines += [f"## {title}\n", f"| code | rule | {columns} |"]
        lines.append("|---|---|---|---|")
        for kind in sorted((kind for kind in kinds() if kind.group == group), key=lambda kind: kind.code):
            marks = [*kind.levels, *([] if kind.refuses else ["warning"])]
            says = f"{kind.says} ({', '.join(marks)})" if marks else kind.says
            lines.append(f"| {kind.code} | `{kind.rule}` | {cell(says)} | {cell(kind.instead or kind.source)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def test_the_page_of_findings_is_generated() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(findings_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == findings_page()
