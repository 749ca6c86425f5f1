"""The overlays of deploy/kustomize: by the published schema, and by what the server that they start really does."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import numpy as np
import pytest
from deploying import SERVERS, Manifest, manifest
from serving import MODELS, MadeUpRepository, app_of, ask, digits, doubling, fetch, server_process

from trnrt.cache import CACHE_VARIABLE
from trnrt.cache.plans import LIMIT_VARIABLE, size_limit
from trnrt.errors import OptionError
from trnrt.neuron.device import WORKER_VARIABLE
from trnrt.serve.processes.workers import MARGIN_S
from trnrt.serve.settings import ServeSettings, read_settings, variable_of

OLDEST = "1.27"
"""The first version that knows all fields; docs/deploy.md says so, too."""


@pytest.fixture(params=SERVERS)
def told(request: pytest.FixtureRequest) -> Manifest:
    return manifest(request.param)


def settings_of(told: Manifest, folder: Path, patch: pytest.MonkeyPatch) -> ServeSettings:
    """What the server in a pod makes of its environment and its file."""
    for name in [name for name in os.environ if name.startswith("TRNRT_")]:
        patch.delenv(name)
    for name, value in told.environment.items():
        if name.startswith("TRNRT_"):
            patch.setenv(name, value)
    file = folder / "trnrt.toml"
    file.write_text(told.file, encoding="utf-8")
    patch.setenv("TRNRT_CONFIG", str(file))
    return read_settings({})


@pytest.fixture
def settings(told: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServeSettings:
    return settings_of(told, tmp_path, monkeypatch)


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_the_manifests_fit_the_published_schema(told: Manifest, version: str) -> None:
    assert set(told.objects) == {"ConfigMap", "Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment"}
    for item in told.objects.values():
        kubernetes_validate.validate(item, version, strict=True)


def misspelt(deployment: dict[str, Any]) -> None:
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}


def wrongly_typed(deployment: dict[str, Any]) -> None:
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "60s"


def without_selector(deployment: dict[str, Any]) -> None:
    del deployment["spec"]["selector"]


def misplaced(deployment: dict[str, Any]) -> None:
    deployment["spec"]["template"]["spec"]["readOnlyRootFilesystem"] = True


@pytest.mark.parametrize("spoil", [misspelt, wrongly_typed, without_selector, misplaced])
def test_a_spoilt_manifest_does_not(told: Manifest, spoil: Callable[[dict[str, Any]], None]) -> None:
    deployment = copy.deepcopy(told.objects["Deployment"])
    spoil(deployment)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, OLDEST, strict=True)


def test_the_settings_are_valid_and_all_count(told: Manifest, settings: ServeSettings) -> None:
    others = {CACHE_VARIABLE, LIMIT_VARIABLE, WORKER_VARIABLE}
    known = {variable_of(field) for field in ServeSettings.model_fields} | others
    assert {name for name in told.environment if name.startswith("TRNRT_")} <= known
    for field, value in told.told.items():
        assert variable_of(field) not in told.environment, f"the environment wins over {field} in the file"
        assert getattr(settings, field) == value
    path = Path(told.environment["TRNRT_CONFIG"])
    volume, _ = told.mounts[str(path.parent)]
    assert volume["configMap"]["name"] == told.objects["ConfigMap"]["metadata"]["name"]
    assert set(told.objects["ConfigMap"]["data"]) == {path.name}


def test_keys_come_from_a_secret_that_is_not_here(told: Manifest) -> None:
    (keys,) = [item for item in told.container["env"] if item["name"] == "TRNRT_API_KEYS"]
    assert set(keys) == {"name", "valueFrom"} and set(keys["valueFrom"]) == {"secretKeyRef"}
    assert "optional" not in keys["valueFrom"]["secretKeyRef"]
    assert "insecure" not in told.told and "Secret" not in told.objects


def test_a_worker_has_a_core() -> None:
    neuron = manifest("neuron")
    resources = neuron.container["resources"]
    core = "aws.amazon.com/neuroncore"
    assert resources["limits"][core] == resources["requests"][core] == neuron.told["workers"]
    variables = {item["name"]: item.get("value") for item in neuron.container["env"]}
    assert variables["NEURON_LOGICAL_NC_CONFIG"] == neuron.image.environment["NEURON_LOGICAL_NC_CONFIG"] == "1"
    # What AWS's device plugin sets must reach the runtime.
    assert not [name for name in neuron.environment if name.startswith("NEURON_RT_")]
    types = neuron.pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (wanted,) = types["nodeSelectorTerms"][0]["matchExpressions"]
    assert {name.partition(".")[0] for name in wanted["values"]} == {neuron.told["target"]}


def test_probes_are_answered_as_they_expect(told: Manifest) -> None:
    """Alive at once and without a key; ready, and with that started, only when every model is."""
    loading = doubling()
    loading.state, loading.reason = "loading", "it compiles"
    for kind, probe in told.probes:
        path = probe["httpGet"]["path"]
        early = ask(app_of(MadeUpRepository(loading, api_keys=["key"])), "GET", path)
        late = ask(app_of(MadeUpRepository(doubling(), api_keys=["key"])), "GET", path)
        assert (early.status_code, late.status_code) == (200 if kind == "livenessProbe" else 503, 200), kind


def test_times_fit_into_each_other(told: Manifest, settings: ServeSettings) -> None:
    program, seconds = told.container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    # A supervisor gives its workers the drain timeout and MARGIN_S, and then as much again to be killed.
    assert told.pod["terminationGracePeriodSeconds"] >= int(seconds) + settings.drain_timeout + 2 * MARGIN_S
    startup = told.container["startupProbe"]
    assert told.deployment["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"]
    for _, probe in told.probes:
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]


def test_ports_agree(told: Manifest, settings: ServeSettings) -> None:
    (port,) = told.container["ports"]
    (service,) = told.objects["Service"]["spec"]["ports"]
    assert port["containerPort"] == service["port"] == settings.port == int(told.image.last("EXPOSE").value)
    assert {service["targetPort"], *(probe["httpGet"]["port"] for _, probe in told.probes)} == {port["name"]}


def test_selectors_find_the_pods(told: Manifest) -> None:
    labels = told.deployment["template"]["metadata"]["labels"]
    (spread,) = told.pod["topologySpreadConstraints"]
    budget = told.objects["PodDisruptionBudget"]["spec"]
    assert told.objects["Service"]["spec"]["selector"] == labels
    for selector in (told.deployment["selector"], budget["selector"], spread["labelSelector"]):
        assert selector == {"matchLabels": labels}
    assert budget["maxUnavailable"] < told.deployment["replicas"]
    # One at least takes part in a rollout, or it can't go on.
    update = told.deployment["strategy"]["rollingUpdate"]
    assert update["maxUnavailable"] == 0 and update["maxSurge"] >= 1


def test_a_service_sets_no_port(told: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes' links say where a service called trnrt is in TRNRT_PORT, and the server would read that."""
    assert told.pod["enableServiceLinks"] is False
    monkeypatch.setenv("TRNRT_PORT", "tcp://10.0.0.1:8000")
    with pytest.raises(OptionError, match="TRNRT_PORT"):
        read_settings({})


def test_the_container_may_do_little(told: Manifest) -> None:
    own, pod = told.container["securityContext"], told.pod["securityContext"]
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert told.pod["automountServiceAccountToken"] is False
    assert pod["runAsNonRoot"] is True and pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert told.image.last("USER").value == f"{pod['runAsUser']}:{pod['runAsGroup']}"


def bytes_of(quantity: str, patch: pytest.MonkeyPatch) -> int:
    """4Gi as a number of bytes, by the cache's own reading of sizes."""
    patch.setenv(LIMIT_VARIABLE, quantity if quantity.endswith("B") else f"{quantity}B")
    return size_limit()


def test_what_is_written_is_written_to_volumes(told: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    writable = {path for path, (_, may) in told.mounts.items() if may}
    workdir = told.image.last("WORKDIR").value
    written = [Path(told.environment[CACHE_VARIABLE]), Path(workdir), Path("/tmp")]
    written += [Path(value) for name, value in told.environment.items() if name == "NEURON_COMPILE_CACHE_URL"]
    for path in written:
        assert {str(parent) for parent in (path, *path.parents)} & writable, path
    # The cache refuses a folder that is another's or that others may write to, and a volume's own is.
    assert told.environment[CACHE_VARIABLE] not in writable
    volumes = {path: told.mounts[path][0]["emptyDir"]["sizeLimit"] for path in writable}
    sizes = {path: bytes_of(size, monkeypatch) for path, size in volumes.items()}
    assert bytes_of(told.environment[LIMIT_VARIABLE], monkeypatch) < sizes["/cache"]
    disk = told.container["resources"]["requests"]["ephemeral-storage"]
    assert bytes_of(disk, monkeypatch) >= sum(sizes.values())


def test_only_the_port_of_requests_is_open(told: Manifest) -> None:
    policy = told.objects["NetworkPolicy"]["spec"]
    (port,) = told.container["ports"]
    assert policy["podSelector"] == told.deployment["selector"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": port["name"]}]}] and policy["egress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def test_images_are_of_a_version(told: Manifest) -> None:
    name, _, tag = told.container["image"].rpartition(":")
    assert name.endswith(f"-{told.name}") and tag and tag != "latest"


def test_a_server_starts_with_what_the_manifest_says(tmp_path: Path) -> None:
    """The CPU pod's environment, file, probes and health check, and SIGTERM, on this machine; folders are moved."""
    told = manifest("cpu")
    config, models = tmp_path / "trnrt.toml", tmp_path / "models"
    config.write_text(told.file, encoding="utf-8")
    models.mkdir()
    (models / "digits_cnn.onnx").write_bytes((MODELS / "digits_cnn.onnx").read_bytes())
    moved = {"TRNRT_CONFIG": config, "TRNRT_MODEL_DIR": models, CACHE_VARIABLE: tmp_path / "volume" / "cache"}
    env = {**told.environment, "PATH": os.environ["PATH"], **{name: str(path) for name, path in moved.items()}}
    with server_process(tmp_path, "--host", "127.0.0.1", env=env) as server:
        for _, probe in told.probes:
            assert fetch("GET", server.url + probe["httpGet"]["path"]).status_code == 200
        rows, shown = digits(1)
        body = {"instances": rows.tolist()}
        assert fetch("POST", f"{server.url}/predict", json=body).status_code == 401
        answer = fetch("POST", f"{server.url}/predict", json=body, headers={"X-API-Key": "key"}).json()
        assert np.array_equal(answer["predictions"], [str(shown[0])])
        python, *rest = told.image.health
        assert python == "python"
        check = [sys.executable, *rest]
        env = {**os.environ, "TRNRT_PORT": str(server.port)}
        assert subprocess.run(check, env=env).returncode == 0
        assert server.stop() == 0
        assert subprocess.run(check, env=env, stderr=subprocess.DEVNULL).returncode != 0
