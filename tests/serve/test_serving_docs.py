"""The server's pages say what it does: their tables are generated, the commands of docs/serving.md are run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import PydanticUndefined
from serving import MODELS, ServerProcess, serve_flags, server_process

from trnrt.nki.machine.timing import Range
from trnrt.serve.hosting.metrics import REASONS, Metrics
from trnrt.serve.settings import NO_FLAG, TABLES, ServeSettings, check_names, flag_of, read_settings, variable_of
from trnrt.serve.settings_models import BY_MODEL

DOCS = MODELS.parent / "docs"
SERVING, SETTINGS, OBSERVABILITY = (DOCS / f"{name}.md" for name in ("serving", "settings", "observability"))
HERE = "127.0.0.1:8000"


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def check_table(page: Path, header: str, rows: list[str]) -> None:
    """The table with this header has these rows; UPDATE_DOCS writes them."""
    before, found, after = text(page).partition(f"{header}\n")
    assert found
    line, _, rest = after.partition("\n")
    kept, _, rest = rest.partition("\n\n") if not rest.startswith("\n") else ("", "", rest[1:])
    if os.environ.get("UPDATE_DOCS"):
        table = "\n".join([line, *rows])
        page.write_text(f"{before}{header}\n{table}\n\n{rest}", encoding="utf-8")
        return
    assert kept.split("\n") == rows


def default_text(value: Any) -> str:
    if value is PydanticUndefined or value in (None, [], {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def choices_of(annotation: Any) -> str:
    words = [word for word in get_args(annotation) if isinstance(word, str)]
    return f" One of {', '.join(f'`{word}`' for word in words)}." if words else ""


def test_the_settings_are_those_of_the_server() -> None:
    rows, flags = [], serve_flags()
    for name, field in ServeSettings.model_fields.items():
        flag = "" if name in NO_FLAG and name not in ("models", *TABLES) else f"`{flag_of(name)}`"
        variable = "" if name in TABLES else f"`{variable_of(name)}`"
        told = f"{field.description or flags[name].help}{choices_of(field.annotation)}"
        rows.append(f"| {flag} | {variable} | {default_text(field.default)} | {told} |")
    check_table(SETTINGS, "| flag | environment | default | meaning |", rows)


@pytest.mark.parametrize(("name", "least"), [("serving", 20), ("settings", 40), ("connections", 10), ("versions", 2)])
def test_flags_that_are_named_are_there(name: str, least: int) -> None:
    # Those of other programs stand in listings.
    prose = re.sub(r"(?ms)^```.*?^```$|^    [^\n]*$", "", text(DOCS / f"{name}.md"))
    named = set(re.findall(r"`?(--[a-z][a-z-]+)", prose))
    assert len(named) >= least
    assert named <= {flag_of(name) for name in ServeSettings.model_fields} | {"--no-batching"}


def exercised() -> Metrics:
    """Metrics with one of each."""
    metrics = Metrics()
    metrics.request("/predict", "POST", 200, 0.1)
    metrics.count_rejection(REASONS[0])
    metrics.count_key("alice", 200)
    model = metrics.model("m")
    model.count_instances = lambda: {"serving": 2}
    model.batch(1, 0.1, 10.0)
    model.count_answer(0.1, 0.2)
    model.count_failure(0.1)
    model.count_places(1, 3, 4)
    model.pending(1)
    model.state("ready")
    model.set_predictions({"1": Range(9.0, 10.0, 11.0)})
    model.shadow("agreed", 0.1, 1)
    return metrics


def test_the_metrics_are_those_of_the_server() -> None:
    rows = []
    for family in text_string_to_metric_families(exercised().render()[0].decode()):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {', '.join(sorted(labels))} | {family.documentation} |")
    assert len(rows) > 10
    check_table(OBSERVABILITY, "| metric | type | labels | meaning |", rows)


def blocks(page: Path) -> list[str]:
    """The listings of a page, without their margin."""
    found = re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", text(page))
    return ["\n".join(line[4:] for line in block.split("\n")) for block in found]


def test_the_file_of_settings_is_one() -> None:
    (block,) = [block for block in blocks(SETTINGS) if "max_batch =" in block]
    given = tomllib.loads(block)
    settings = ServeSettings(**given)
    assert (settings.max_batch, settings.workers, len(settings.models)) == (16, 2, 2)


def test_the_tables_of_the_file_are_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (models,) = [block for block in blocks(SETTINGS) if "[model." in block]
    (keys,) = [block for block in blocks(SETTINGS) if "[key." in block]
    secret = tmp_path / "ops"
    secret.write_text("secret", encoding="utf-8")
    (tmp_path / "server.toml").write_text(f"admin = true\n{models}\n{keys}".replace("/run/secrets/ops", str(secret)))
    settings = read_settings({"config": tmp_path / "server.toml"})
    check_names(settings, ["digits_cnn", "digits_ffnn"])
    assert settings.for_model("digits_cnn").buckets == [1, 4, 16] and list(settings.key) == ["alice", "ops"]
    section = text(SETTINGS).partition("## Settings by model")[2].partition("\n## ")[0]
    assert set(BY_MODEL) == set(re.findall(r"`([a-z_]+)`", section.partition("may have its own")[2].partition(".")[0]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = [str(MODELS / f"{name}.onnx") for name in ("digits_cnn", "digits_ffnn")]
    with server_process(tmp_path_factory.mktemp("docs"), *models, "--admin") as started:
        yield started


def commands() -> list[str]:
    """Every curl command of the page, and what comes before it in its listing."""
    return [block.strip() for block in blocks(SERVING) if re.search(r"(?m)^curl", block)]


def answers_of(output: str) -> list[dict[str, Any]]:
    """The JSON that commands wrote one after the other; none where it is no JSON."""
    found, place = [], 0
    while place < len(output) and output[place] in "{[":
        document, place = json.JSONDecoder().raw_decode(output, place)
        found.append(document)
    return found


def test_the_commands_answer(server: ServerProcess, tmp_path: Path) -> None:
    assert sum(block.count("curl ") for block in commands()) == 19
    answers: list[Any] = []
    for block in commands():
        line = ["bash", "-ec", block.replace(f"http://{HERE}", server.url)]
        ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        assert ran.stdout and '"error"' not in ran.stdout and ran.stderr == "", ran
        answers += answers_of(ran.stdout)
    assert len(answers) == 17, "all but the metrics"
    assert [each["predictions"] for each in answers if "predictions" in each] == [["4"], ["3"], ["3"], ["1"]]
    (columns,) = [each["outputs"] for each in answers if list(each) == ["outputs"]]
    assert columns["label"] == [4]
    (inferred,) = [each for each in answers if "model_name" in each]
    assert (inferred["id"], inferred["outputs"][0]["data"]) == ("7", [4])


def test_the_client_of_others_works_as_shown(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tritonclient.http")
    (block,) = [block for block in blocks(SERVING) if "tritonclient" in block and "import" in block]
    script = block.replace(HERE, f"127.0.0.1:{server.port}").replace(
        "models/digits_test.npz", str(MODELS / "digits_test.npz")
    )
    exec(compile(script, "docs/serving.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "[2 0 4 9]"
