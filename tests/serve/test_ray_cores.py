"""NeuronCores on Ray: a process leases the one that it is shown, and nothing is placed where none is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray_quietly  # noqa: F401 - before whatever else imports it

from trnrt.backends.cores import Lease
from trnrt.errors import BackendError
from trnrt.serve import ray_replica

pytestmark = pytest.mark.xdist_group("ray")  # one Ray at a time

SCRIPT = """
import json, logging, os, ray
from trnrt.backends.cores import lease_for_worker
from trnrt.clusters import NEURON_CORES, _keep_quiet
from trnrt.serve.ray_replica import lease_when_free

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
left = ray.available_resources().get(NEURON_CORES, 0)
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


def test_a_core_is_waited_for_until_its_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_replica, "LEASE_POLL_S", 0.0)
    lease, tried = Lease((3,), 1, ()), list[int]()

    def free() -> Lease:
        tried.append(1)
        if len(tried) < 3:
            raise BackendError("0 of 1 NeuronCores are free")
        return lease

    assert ray_replica.lease_when_free(free) is lease and len(tried) == 3

    def never() -> Lease:
        raise BackendError("0 of 1 NeuronCores are free")

    with pytest.raises(BackendError, match="are free"):
        ray_replica.lease_when_free(never, seconds=0.0)
