"""NeuronCores on Ray: a process leases the one that it is shown, and nothing is placed where none is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray_quietly  # noqa: F401 - before whatever else imports it

from trnrt.errors import BackendError
from trnrt.neuron.cores import lease_cores
from trnrt.serve.ray import replica as ray_replica

SCRIPT = """
import json, logging, os, ray, time
from trnrt.neuron.cores import lease_for_worker
from trnrt.predict.clusters import NEURON_CORES, _keep_quiet
from trnrt.serve.ray.replica import lease_when_free

class Replica:
    def lease(self):
        shown = os.environ["NEURON_RT_VISIBLE_CORES"]
        return shown, lease_when_free(lease_for_worker).cores, os.environ["NEURON_RT_VISIBLE_CORES"]

_keep_quiet()
ray.init(
    num_cpus=1, resources={NEURON_CORES: 2}, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
)
made = ray.remote(num_cpus=0, resources={NEURON_CORES: 1})(Replica)
first, second = made.remote(), made.remote()
told = ray.get([first.lease.remote(), second.lease.remote()])
while left := ray.available_resources().get(NEURON_CORES, 0):  # what a node tells comes later than its answers
    time.sleep(0.05)
third = made.remote()
asked = third.lease.remote()
waits = not ray.wait([asked], timeout=1)[0]
ray.kill(first)
print(json.dumps({"told": told, "left": left, "waits": waits, "then": ray.get(asked)}))
"""


def test_each_process_leases_the_core_that_ray_shows_it(tmp_path: Path) -> None:
    own = {**os.environ, "TMPDIR": str(tmp_path), "RAY_TMPDIR": "/tmp"}  # where the leases are, and where Ray's sockets
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=180, env=own)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert sorted(found["told"]) == [["0", [0], "0"], ["1", [1], "1"]]
    assert (found["left"], found["waits"]) == (0, True)
    assert found["then"] == found["told"][0], "the next one has the core of the one that went"


def test_a_core_is_waited_for_until_nobody_else_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another process of Ray that is about to end, or a server outside: however long that takes."""
    told: list[str] = []
    outside = lease_cores([3], folder=tmp_path)

    def waited(_seconds: float) -> None:
        if len(told) == 2:
            outside.release()

    monkeypatch.setattr(time, "sleep", waited)
    monkeypatch.setattr(ray_replica, "LEASE_TOLD_S", 0.0)
    monkeypatch.setattr(ray_replica, "log", lambda _level, event, **fields: told.append(f"{event}: {fields['reason']}"))
    lease = ray_replica.lease_when_free(lambda: lease_cores([3], folder=tmp_path))
    assert lease is not None and lease.cores == (3,) and len(told) == 2
    assert (
        f"waiting_for_cores: 0 of 1 NeuronCores are free, and 1 is needed; the others are held by process {os.getpid()}"
        in told[0]
    )
    lease.release()


def test_what_does_not_become_free_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="1 of 1 NeuronCores are free, and 2 in a row are needed"):
        ray_replica.lease_when_free(lambda: lease_cores([3], 2, tmp_path))
