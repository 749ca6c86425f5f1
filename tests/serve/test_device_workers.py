"""The server on NeuronCores as an operator starts it: what it asks for, and a worker that ends with its core.

On the fake SDK, in this process and in those of a real server.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_neuron
import httpx
import pytest
from commanding import trnrt
from engines import RELU, run, save
from fake_neuron import Hardware
from fake_neuron.installing_fake import fake_machine
from serving import ServerProcess, events, metric, ready_workers, server_process, until, workers

from trnrt.neuron.cores import VISIBLE, _holders, failed_cores, leased_cores
from trnrt.serve.hosting.devices import LONGEST_RUN_S, device_options, lease_for
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.processes.workers import LONGEST_PAUSE_S, YOUNG_S, successor_pause
from trnrt.serve.settings import ServeSettings, variable_of

SCRIPT = Path(fake_neuron.__file__).with_name("commanding_fake.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of whoever runs the tests is no part of them."""
    for field in ServeSettings.model_fields:
        monkeypatch.delenv(variable_of(field), raising=False)
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """A trn2 instance with eight cores."""
    with fake_machine(monkeypatch, tmp_path) as hardware:
        yield hardware


def repository_of(path: Path, **settings: Any) -> Repository:
    """One model, loaded or not."""
    given = {"models": [path], "max_batch": 2, **settings}
    repository = Repository(ServeSettings(**given), Metrics())
    run(repository.start())
    return repository


# -- what is asked for ---------------------------------------------------------------------------------------------


def test_what_the_machine_can_not_do_is_refused_at_once(
    tmp_path: Path, machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    relu = save(tmp_path, "relu", RELU)
    for arguments, told in (
        (["--workers", "9"], "--workers 9 with --cores 1 needs 9 NeuronCores, and there are 8"),
        (["--workers", "3", "--cores", "3"], "needs 9 NeuronCores, and there are 8"),
        (["--lnc", "2", "--workers", "5"], "needs 5 NeuronCores, and there are 4"),
        (["--lnc", "3"], "--lnc (TRNRT_LNC)"),
        (["--cores", "0"], "--cores (TRNRT_CORES)"),
        (["--compiled", tmp_path / "none"], "--compiled: there is no folder"),
        (["--backend", "neuron", "--target", "trn1"], "this machine's device is trn2"),
    ):
        outcome = trnrt("serve", relu, *arguments)
        assert (outcome.code, outcome.out) == (2, "") and told in outcome.err, outcome.err
        assert "hint: " in outcome.err or "(TRNRT_" in outcome.err
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    outcome = trnrt("serve", relu, "--backend", "neuron", "--lnc", "1")
    assert outcome.code == 2 and "unset NEURON_LOGICAL_NC_CONFIG" in outcome.err
    monkeypatch.setenv(VISIBLE, "2-3")
    assert "and there are 2" in trnrt("serve", relu, "--workers", "3").err
    assert machine.visible is None, "the runtime was not started"


def test_models_are_loaded_on_the_cores_that_were_asked_for(
    tmp_path: Path, machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    relu = save(tmp_path, "relu", RELU)
    monkeypatch.setenv("TRNRT_CORES", "2")
    monkeypatch.setenv("TRNRT_LNC", "2")
    monkeypatch.setenv(VISIBLE, "1-3")
    lease = lease_for(ServeSettings(models=[relu]))
    assert lease is not None and (lease.cores, os.environ[VISIBLE]) == ((1, 2), "1-2")
    assert repository_of(relu).ready
    assert (machine.visible, machine.lnc) == ((1, 2), 2)
    assert set(machine.ran_on) == {0, 1}, "as the process numbers them"


def test_what_was_compiled_before_is_run_whichever_batch(tmp_path: Path, machine: Hardware) -> None:
    relu = save(tmp_path, "relu", RELU)
    for batch in ("1", "2"):
        folder = tmp_path / "compiled" / batch
        assert trnrt("compile", relu, "-o", folder, "--backend", "neuron", "--batch", batch).code == 0
    before = list(machine.compiled)
    assert repository_of(relu, compiled=tmp_path / "compiled").ready
    assert repository_of(relu, compiled=tmp_path / "compiled" / "1", max_batch=1).ready
    assert machine.compiled == before
    (reason,) = repository_of(relu, compiled=tmp_path / "compiled" / "1").reasons.values()
    assert reason.startswith("relu for 2x4: ")
    assert "1/relu.pt does not fit: it was compiled from another kernel module" in reason
    (reason,) = repository_of(relu, compiled=tmp_path / "compiled", dtype="bfloat16").reasons.values()
    assert reason.count("does not fit") == 2


def test_what_was_compiled_into_bundles_is_found_below_their_folder(tmp_path: Path, machine: Hardware) -> None:
    bundle = tmp_path / "models" / "relu"
    options = ("--backend", "neuron", "--buckets", "1,2")
    assert trnrt("compile", save(tmp_path, "relu", RELU), "-o", bundle, *options).code == 0
    before = list(machine.compiled)
    for compiled in (None, tmp_path / "models"):
        repository = repository_of(bundle, compiled=compiled)
        assert repository.ready, repository.reasons
    assert machine.compiled == before


def test_to_the_simulator_it_means_nothing(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"lnc": 2, "cores": 9, "compiled": tmp_path / "none"}
    assert repository_of(save(tmp_path, "relu", RELU), backend="simulator", **asked).ready
    assert lease_for(ServeSettings(backend="simulator", **asked)) is None
    assert lease_for(ServeSettings(**asked)) is None, "auto, without a device"


def test_a_run_hangs_when_it_takes_longer_than_any_request_may() -> None:
    assert device_options(ServeSettings(request_timeout=1)).timeout_s == LONGEST_RUN_S == 30
    assert device_options(ServeSettings(request_timeout=90)).timeout_s == 90


# -- workers -------------------------------------------------------------------------------------------------------


def test_a_successor_waits_ever_longer_unless_its_worker_served() -> None:
    assert successor_pause(YOUNG_S, 4.0) == 0.0
    for served_s in (None, 0.0, YOUNG_S - 1):
        pauses = [0.0]
        for _ in range(8):
            pauses.append(successor_pause(served_s, pauses[-1]))
        assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


@contextmanager
def on_the_fake(folder: Path, *arguments: str) -> Iterator[ServerProcess]:
    """A real server whose processes are all on one machine that is made up."""
    paths = os.pathsep.join([str(ROOT / "tests" / "shared"), str(ROOT)])
    env = {"PYTHONPATH": paths, "FAKE_NEURON": str(folder)}
    with server_process(folder, *arguments, "--backend", "neuron", env=env, program=[str(SCRIPT)]) as server:
        yield server


CLOSED, CLIENTS = 0, 4


def asked(server: ServerProcess, number: int) -> int:
    """The status of a request of its own connection; an answer is the right one."""
    row = [float(number), -1.0, 0.0, 2.0]
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": row}]}
    answer = httpx.post(f"{server.url}/v2/models/relu/infer", json=body, timeout=120)
    if answer.status_code == 200:
        assert answer.json()["outputs"][0]["data"] == [float(number), 0.0, 0.0, 2.0]
    else:
        assert answer.json()["error"]
    return answer.status_code


def asked_often(server: ServerProcess, count: int) -> Counter[int]:
    """How many requests had each status; ``CLOSED`` where the server ended the connection without an answer."""

    def one(number: int) -> int:
        try:
            return asked(server, number)
        except (httpx.RemoteProtocolError, httpx.ReadError):
            return CLOSED

    with ThreadPoolExecutor(CLIENTS) as pool:
        return Counter(pool.map(one, range(count)))


def test_a_worker_whose_core_hangs_ends_and_is_replaced(tmp_path: Path) -> None:
    relu = save(tmp_path, "relu", RELU)
    limits = ["--max-batch", "1", "--request-timeout", "4", "--drain-timeout", "5"]
    with on_the_fake(tmp_path, str(relu), "--workers", "2", "--cores", "2", *limits) as server:
        until(lambda: ready_workers(server, "relu") == 2)
        before = workers(server)
        assert _holders(tmp_path / "trnrt-cores") == sorted(before.values())
        assert len(list((tmp_path / "trnrt-cores").glob("core-*"))) == 4
        (tmp_path / f"faults-{before[0]}").write_text("hang")
        found: Counter[int] = Counter()
        while not (events(server, "core_lost") and found[200]):
            found += asked_often(server, 8)
        # 504: it waited for four seconds; 503: it came, or was in the queue, when the core was found to hang; 429: one
        # waited already behind the run that hangs; and a connection that the worker had taken is closed if its request
        # comes when the worker goes.
        assert set(found) <= {200, 429, 503, 504, CLOSED} and found[504] and found[200]
        assert found[CLOSED] <= CLIENTS
        until(lambda: len(events(server, "worker_started")) == 3)
        until(lambda: ready_workers(server, "relu") == 2)
        assert asked_often(server, 20) == {200: 20}
        assert workers(server)[0] != before[0] and workers(server)[1] == before[1]
        assert _holders(tmp_path / "trnrt-cores") == sorted(workers(server).values())
        (failed,) = failed_cores(tmp_path / "trnrt-cores")
        assert failed not in leased_cores(tmp_path / "trnrt-cores"), "the successor has others"
        assert metric(server, 'trnrt_device_errors_total{model="relu",version="1"}') == 1
        assert server.stop() == 0
    (error,) = events(server, "device_error")
    assert error["usable"] is False and "the device hangs" in error["error"] and error["worker"] == 0
    ended = events(server, "worker_ended")
    assert [(line["pid"], line["code"]) for line in ended[:1]] == [(before[0], 1)]


def test_a_lone_worker_ends_the_server_with_1(tmp_path: Path) -> None:
    relu = save(tmp_path, "relu", RELU)
    with on_the_fake(tmp_path, str(relu), "--max-batch", "1") as server:
        assert asked(server, 3) == 200
        (tmp_path / f"faults-{server.process.pid}").write_text("NRT_EXEC_HW_ERR_NC_UE(1202): uncorrectable")
        assert asked(server, 4) == 503
        assert server.process.wait(120) == 1
        (lost,) = events(server, "core_lost")
        assert lost["level"] == "error" and "can't use its NeuronCore again" in lost["told"]
        assert events(server, "stopped")
