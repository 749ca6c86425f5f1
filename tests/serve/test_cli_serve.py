"""``trnrt serve`` as an operator calls it: what it says, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from commanding import trnrt
from engines import PATIENCE_S, RELU, save
from serving import MODELS, fetch, server_process

from trnrt.commands import serve as verb
from trnrt.serve.settings import ServeSettings, variable_of


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests is no part of them."""
    for field in ServeSettings.model_fields:
        monkeypatch.delenv(variable_of(field), raising=False)


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    return save(tmp_path, "relu", RELU)


def test_what_is_wrong_is_told_with_advice_and_exits_with_2(tmp_path: Path, relu: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, told in (
            ([], "no models to serve"),
            (["none.onnx"], "no such file"),
            ([relu, "--port", str(port)], f"port {port}: it is in use"),
            ([relu, "--port", "99999"], "--port (TRNRT_PORT)"),
            ([relu, "--host", "0.0.0.0"], "TRNRT_API_KEYS"),
            ([relu, "--host", "192.0.2.1", "--insecure"], "is no address of this machine"),
            ([relu, "--host", "no such name", "--insecure"], "is no address"),
            ([relu, "--config", tmp_path / "none.toml"], "can't read the settings"),
            (["--model-dir", tmp_path / "none"], "can't read --model-dir"),
            ([relu, "--target", "trn9"], "--target (TRNRT_TARGET)"),
            ([relu, "--backend", "neuron", "--workers", "2"], "the neuron backend can't run"),
            ([relu, "--shape", "x=3xy"], "shape 'x=3xy'"),
        ):
            outcome = trnrt("serve", *arguments)
            assert (outcome.code, outcome.out) == (2, ""), arguments
            assert told in outcome.err and "Traceback" not in outcome.err, outcome.err


def test_files_that_are_no_models_are_refused_before_it_listens(tmp_path: Path, relu: Path) -> None:
    text, empty = tmp_path / "text.onnx", tmp_path / "empty.onnx"
    text.write_text("some words\n")
    empty.touch()
    apart = onnx.load(relu)
    weights = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "w")
    apart.graph.initializer.append(weights)
    onnx.external_data_helper.set_external_data(apart.graph.initializer[0], "gone.data", 0, 16)
    apart.graph.initializer[0].ClearField("raw_data")
    (tmp_path / "apart.onnx").write_bytes(apart.SerializeToString())
    for names, told in (
        (["text"], "text.onnx: not an ONNX model but a text file\nhint: Give the path"),
        (["text", "empty"], "text.onnx: not an ONNX model but a text file"),
        (["empty"], "empty.onnx: the file is empty"),
        (["apart"], "gone.data"),
    ):
        outcome = trnrt("serve", *(tmp_path / f"{name}.onnx" for name in names), "--port", "0")
        assert (outcome.code, outcome.out) == (2, ""), names
        assert told in outcome.err, outcome.err


def test_without_the_servers_packages_it_says_what_to_install(relu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "find_spec", lambda name: None if name == "uvicorn" else object())
    outcome = trnrt("serve", relu)
    assert outcome.code == 2
    assert "uvicorn" in outcome.err and "pip install 'trnrt[serve]'" in outcome.err


def test_help_does_not_wait_for_the_servers_packages() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from trnrt.cli import app;"
        "out = CliRunner().invoke(app, ['serve', '--help']).output;"
        "heavy = {'fastapi', 'pydantic_settings', 'uvicorn', 'numpy'};"
        "print('--max-batch' in out, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True []\n"


@pytest.mark.parametrize("where", ["in a finalizer", "where everything is caught"])
def test_a_signal_ends_it_wherever_its_imports_are(where: str) -> None:
    script = """
import signal, sys
from trnrt.commands import serve as verb

class Told:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

def find_spec(_name):
    if sys.argv[1] == "in a finalizer":
        Told()
    else:
        try:
            signal.raise_signal(signal.SIGTERM)
        except:
            pass
    print("went on")

verb.find_spec = find_spec
sys.stdout.write("kept")
verb.serve({})
"""
    done = subprocess.run([sys.executable, "-c", script, where], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "kept", "")


def wait_for(path: Path, text: str, seconds: float = 120.0) -> str:
    end = time.monotonic() + seconds
    while text not in path.read_text():
        assert time.monotonic() < end, path.read_text()
        time.sleep(0.05)
    return path.read_text()


def test_a_server_says_what_it_serves_and_ends_with_0(tmp_path: Path, relu: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nonsense")
    with server_process(tmp_path, str(relu), str(broken), "--max-batch", "4", ready=False) as server:
        said = wait_for(server.log, "1 of 2 ready at")
        assert f"listening on {server.url}; loading 'relu', 'broken'" in said
        assert "1, 2, 4" in said and "broken: " in said
        assert fetch("GET", f"{server.url}/v2/health/live").status_code == 200
        assert fetch("GET", f"{server.url}/v2/models/relu/ready").status_code == 200
        assert fetch("GET", f"{server.url}/v2/health/ready").status_code == 503
        assert server.stop() == 0
    events = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    assert [e["event"] for e in events if e["event"] != "request"] == [
        "model_ready",
        "model_failed",
        "models_loaded",
        "draining",
        "stopped",
    ]


def test_settings_come_from_the_environment_too(tmp_path: Path, relu: Path) -> None:
    environment = {"TRNRT_MODELS": str(relu), "TRNRT_API_KEYS": "sesame", "TRNRT_SHADOW": "1"}
    with server_process(tmp_path, env=environment) as server:
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, -1, 0, 2]}]}
        url = f"{server.url}/v2/models/relu/infer"
        assert fetch("POST", url, json=body).status_code == 401
        answer = fetch("POST", url, json=body, headers={"Authorization": "Bearer sesame"})
        assert answer.json()["outputs"][0]["data"] == [1, 0, 0, 2]
    assert "sesame" not in server.log.read_text()


def test_ctrl_c_ends_it_and_a_second_one_at_once(tmp_path: Path, relu: Path) -> None:
    with server_process(tmp_path, str(relu)) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(120) == 0
    # It would drain for longer than anybody waits here.
    with (
        server_process(tmp_path, str(relu), "--drain-timeout", "600") as server,
        half_a_request(server.port),
    ):
        server.process.send_signal(signal.SIGINT)
        wait_for(server.log, "draining")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(120) == 1


def test_a_shutdown_that_leaves_a_request_unanswered_ends_with_1(tmp_path: Path, relu: Path) -> None:
    with server_process(tmp_path, str(relu), "--drain-timeout", "0.5") as server, half_a_request(server.port):
        assert server.stop() == 1
        assert "drain_timeout" in server.log.read_text()


def test_while_it_drains_it_is_not_ready_and_says_so(tmp_path: Path, relu: Path) -> None:
    with server_process(tmp_path, str(relu)) as server, half_a_request(server.port) as finish:
        server.process.send_signal(signal.SIGTERM)
        wait_for(server.log, "draining")
        ready = fetch("GET", f"{server.url}/v2/health/ready")
        assert ready.status_code == 503 and ready.headers["connection"] == "close"
        assert fetch("POST", f"{server.url}/v2/models/relu/infer", json={"inputs": []}).status_code == 503
        assert fetch("GET", f"{server.url}/v2/health/live").status_code == 200
        assert b" 200 " in finish().split(b"\r\n")[0]
        assert server.process.wait(120) == 0


class half_a_request:  # noqa: N801
    """A request that the server has begun to read, and whose end is sent by what this gives; that gives the answer."""

    def __init__(self, port: int) -> None:
        data = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
        self._rest = data[20:]
        head = (
            "POST /v2/models/relu/infer HTTP/1.1",
            "Host: localhost",
            f"Content-Length: {len(data)}",
            "Expect: 100-continue",
        )
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._socket.sendall("\r\n".join((*head, "", "")).encode() + data[:20])

    def __enter__(self) -> Callable[[], bytes]:
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            said += self._socket.recv(1)
        assert said == b"HTTP/1.1 100 Continue\r\n\r\n"  # from here on the application waits for the rest
        return self._finish

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def _finish(self) -> bytes:
        self._socket.sendall(self._rest)
        answer = b""
        while part := self._socket.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_shutdown_while_it_starts_ends_with_0(tmp_path: Path, workers: str) -> None:
    models = [str(MODELS / f"digits_{name}.onnx") for name in ("cnn", "ffnn")]
    for moment in ("listening on", '"model_ready"'):
        # How long a model's thread takes to see that it shall end is not what this is about.
        limits = "--workers", workers, "--drain-timeout", "600"
        with server_process(tmp_path, *models, *limits, ready=False) as server:
            wait_for(server.log, moment)
            assert server.stop() == 0, server.log.read_text()


def test_port_0_takes_a_free_one_and_says_which(tmp_path: Path, relu: Path) -> None:
    with server_process(tmp_path, str(relu)) as server:
        assert server.port != 0 and f"1 of 1 ready at {server.url}\n" in wait_for(server.log, "ready at")
        assert fetch("GET", f"{server.url}/v2/health/ready").status_code == 200
