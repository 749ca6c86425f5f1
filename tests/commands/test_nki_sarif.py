"""``trnrt nki check --sarif``: the log that code reviews read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from nki_scripts import ONES, line_of, script, trnrt

# What SARIF 2.1.0 requires of each object, and what ours has beside it: the standard's objects take no other names.
REQUIRED: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"automationDetails", "invocations", "results", "columnKind", "properties"}),
    "tool": ({"driver"}, set()),
    "driver": ({"name"}, {"version", "informationUri", "rules"}),
    "rule": ({"id"}, {"name", "shortDescription", "fullDescription", "help", "helpUri", "defaultConfiguration"}),
    "invocation": ({"executionSuccessful"}, {"toolExecutionNotifications"}),
    "notification": ({"message"}, {"level"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations"}),
    "location": (set(), {"physicalLocation"}),
    "physical": ({"artifactLocation"}, {"region"}),
    "artifact": ({"uri"}, {"uriBaseId"}),
    "region": ({"startLine"}, {"startColumn"}),
}


def conforms(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """The object, if it has what it must have, and nothing that the standard lacks."""
    required, others = REQUIRED[kind]
    assert required <= value.keys() <= required | others, (kind, value.keys())
    return value


def checked_run(path: Path) -> dict[str, Any]:
    """The one run of a log, after a look at every object in it."""
    log = conforms("log", json.loads(path.read_text(encoding="utf-8")))
    assert log["version"] == "2.1.0" and len(log["runs"]) == 1
    run = conforms("run", log["runs"][0])
    rules = conforms("driver", conforms("tool", run["tool"])["driver"])["rules"]
    for rule in rules:
        conforms("rule", rule)
        assert all(rule[key]["text"] for key in ("shortDescription", "fullDescription", "help"))
        assert rule["defaultConfiguration"]["level"] in ("error", "warning")
    assert len({rule["id"] for rule in rules}) == len(rules)
    for invocation in run["invocations"]:
        for told in conforms("invocation", invocation)["toolExecutionNotifications"]:
            assert conforms("notification", told)["message"]["text"]
    for result in run["results"]:
        conforms("result", result)
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning") and result["message"]["text"]
        (location,) = result["locations"]
        physical = conforms("physical", conforms("location", location)["physicalLocation"])
        conforms("artifact", physical["artifactLocation"])
        region = conforms("region", physical["region"])
        assert region["startLine"] >= 1 and region["startColumn"] >= 1
    return run


WRONG = """
@nki.jit
def wrong(a):
    for _ in nl.affine_range(2):
        nisa.dma_copy(dst=a, srcs=a)
    return a
huge(np.ones((2, 2), np.float32))
"""


def test_findings_are_errors_warnings_are_warnings_and_notes_are_notifications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    path, log = script(folder, WRONG), tmp_path / "out.sarif"
    monkeypatch.chdir(tmp_path)
    outcome = trnrt("check", path.relative_to(tmp_path), "--sarif", log)
    assert outcome.code == 1
    run = checked_run(log)
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    found = [
        (result["ruleId"], result["level"], place["region"]["startLine"])
        for result, place in zip(run["results"], places, strict=True)
    ]
    copied, tile = line_of(path, "srcs"), line_of(path, "(128, 100000)")
    assert found == [
        ("TRN524", "error", tile),
        ("TRN203", "error", copied),
        ("TRN204", "error", copied),
        ("TRN205", "warning", line_of(path, "affine_range")),
    ]
    assert {place["artifactLocation"]["uri"] for place in places} == {"a%20folder/my_kernel.py"}
    assert {unquote(place["artifactLocation"]["uriBaseId"]) for place in places} == {"%SRCROOT%"}
    assert run["automationDetails"]["id"] == "trnrt-nki-check/a%20folder/my_kernel.py/"
    assert run["properties"] == {"target": "trn2", "nki": "0.7", "calls": 1}
    assert "has no argument srcs\nIt takes dst, src" in run["results"][1]["message"]["text"]


def test_a_clean_file_gives_an_empty_log_and_a_note_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "out.sarif"
    assert trnrt("check", script(tmp_path, f"{ONES}add(ones, ones)"), "--sarif", log).code == 0
    run = checked_run(log)
    assert run["results"] == [] == run["tool"]["driver"]["rules"]
    assert trnrt("check", script(tmp_path, ""), "--sarif", log, "--json").document["findings"] == []
    (told,) = checked_run(log)["invocations"][0]["toolExecutionNotifications"]
    assert "called no kernel" in told["message"]["text"]


def test_files_elsewhere_have_absolute_uris(tmp_path: Path) -> None:
    path, log = script(tmp_path, "add(1)"), tmp_path / "out.sarif"
    assert trnrt("check", path, "--sarif", log).code == 1
    (result,) = checked_run(log)["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": path.as_uri()}
    assert result["ruleId"] == "TRN003"


def test_columns_count_characters(tmp_path: Path) -> None:
    path, log = script(tmp_path, "@nki.jit\ndef f(a):\n    'äöü'; x = [b for b in 'é']\n"), tmp_path / "out.sarif"
    assert trnrt("check", path, "--nki", "0.6", "--sarif", log).code == 1
    regions = [result["locations"][0]["physicalLocation"]["region"] for result in checked_run(log)["results"]]
    assert {"startLine": line_of(path, "äöü"), "startColumn": 16} in regions


def test_json_has_the_codes_and_a_place_that_cant_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    path = script(tmp_path, WRONG)
    document = trnrt("check", path, "--json").document
    assert [found["code"] for found in document["findings"]] == ["TRN524", "TRN203", "TRN204"]
    assert [(found["code"], found["rule"]) for found in document["warnings"]] == [("TRN205", "api-deprecated")]
    assert "TRN524  tile-bytes" in trnrt("check", path).out
    outcome = trnrt("check", path, "--sarif", tmp_path / "none" / "out.sarif")
    assert outcome.code == 2 and "can't write" in outcome.err and outcome.out == ""


def test_tiles_that_do_not_fit_have_a_code_of_their_own(tmp_path: Path) -> None:
    text = """
    @nki.jit
    def full(a):
        tiles = []
        for _ in range(3):
            tile = nl.ndarray((128, 30000), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=tile, value=0)
            tiles.append(tile)
        for tile in tiles:
            nisa.tensor_copy(dst=tile[:, :8], src=tile[:, 8:16])
        return a
    full(np.ones((2, 2), np.float32))
    """
    (finding,) = trnrt("check", script(tmp_path, text), "--json").document["findings"]
    assert (finding["code"], finding["rule"]) == ("TRN004", "memory")
