"""docs/grpc.md says what the server does: its scripts run, its tables have the server's numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from serving import MODELS, MadeUpRepository, server_process

from trnrt.serve.grpc import calls, health, inference, methods, server
from trnrt.serve.http.problems import Problem

PAGE = MODELS.parent / "docs" / "grpc.md"
TEXT = PAGE.read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())


def blocks(word: str) -> list[str]:
    """The listings with a word, without their margin."""
    found = re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", TEXT)
    return ["\n".join(line[4:] for line in block.split("\n")) for block in found if word in block]


def test_the_client_works_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script,), (_, command) = blocks("import tritonclient"), blocks("--grpc-port")[0].strip().split("\n")
    assert command.startswith("trnrt serve ") and command.endswith(" --grpc-port 8001")
    models = [str(MODELS.parent / word) for word in command.split() if word.endswith(".onnx")]
    with server_process(tmp_path, *models, "--grpc-port", "0", "--max-batch", "4") as started:
        script = script.replace("127.0.0.1:8001", started.grpc_address)
        script = script.replace("models/digits_test.npz", str(MODELS / "digits_test.npz"))
        exec(compile(script, "docs/grpc.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "[2 0 4 9]"


def test_the_probes_name_services() -> None:
    (block,) = blocks("livenessProbe")
    for probe in yaml.safe_load(block).values():
        assert probe["grpc"]["service"] in (health.LIVE, *health.READY)


def test_every_method_is_there() -> None:
    table = TEXT.partition("## Methods")[2].partition("## Tensors")[0]
    for path in methods.make_methods():
        service, _, name = path[1:].partition("/")
        assert f"`{name}`" in table or f"`{service}/{name}`" in table


def test_every_code_is_there() -> None:
    table = TEXT.partition("## Errors")[2].partition("## Limits")[0]
    rows = dict(re.findall(r"(?m)^\| `([A-Z_]+)` \|(.*)\|$", table))
    assert set(rows) == {code.name for code in calls.CODES.values()}
    for status, code in calls.CODES.items():
        assert str(status) in rows[code.name].rpartition("|")[2]
        assert calls.code_of(Problem(status, "").status) is code


def test_the_limits_are_those_of_the_server() -> None:
    repository = MadeUpRepository(request_timeout=1.0)
    made = calls.Calls(repository, {})  # type: ignore[arg-type]
    options = {name.removeprefix("grpc."): value for name, value in server.server_options(made, shared=False)}
    stated = [
        f"at once | {server.MOST_CONNECTIONS}; {server.MOST_STREAMS} |",
        f"closed after | {options['server_handshake_timeout_ms'] // 1000} s |",
        f"without calls is closed after | {options['max_connection_idle_ms'] // 1000} s |",
        f"| {options['keepalive_time_ms'] // 1000} s and {options['keepalive_timeout_ms'] // 1000} s |",
        f"| {options['max_connection_age_ms'] // 1000} s, `--request-timeout` and "
        f"{options['max_connection_age_grace_ms'] // 1000 - 1} s |",
        f"metadata of a call | {options['absolute_max_metadata_size'] >> 10} KiB |",
        f"clients that `Watch` | {health.MOST_WATCHES} |",
        f"ends after {methods.STREAM_IDLE_S:g} s without a message",
        f"longer than {calls.SLOW_S:g} s to arrive are accepted {calls.SLOW_PLACES} at a time",
        f"at most {inference.LARGEST_TYPED >> 20} MiB",
    ]
    assert [text for text in stated if text not in WORDS] == []
    assert calls.HEADROOM == 2 and "over twice the limit" in WORDS
