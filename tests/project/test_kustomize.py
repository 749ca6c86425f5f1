"""deploy/kustomize's components and deploy/kserve: by their operators' published schemas, and by our metrics."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from crds import FOLDER, validate
from deploying import DEPLOY, OVERLAYS, SERVERS, containerfile
from kustomizing import Item, build
from prometheus_client.parser import text_string_to_metric_families
from serving import MODELS, fetch, server_process

from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.limits import METRICS
from trnrt.serve.processes.workers import MARGIN_S
from trnrt.serve.settings import ServeSettings, variable_of

COMPONENTS = ("monitoring", "autoscaling")
KSERVE = DEPLOY / "kserve"


def with_components(folder: Path, overlay: str) -> Path:
    """A copy of deploy/kustomize in which an overlay has all components, as its comment says; the overlay."""
    shutil.copytree(DEPLOY / "kustomize", folder / "kustomize")
    copied = folder / "kustomize" / "overlays" / overlay
    file = copied / "kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    lines = ["# components:", *(f"#   - ../../components/{name}" for name in COMPONENTS)]
    assert "\n".join(lines) in text
    for line in lines:
        text = text.replace(line, line.removeprefix("# "))
    file.write_text(text, encoding="utf-8")
    return copied


def by_kind(items: list[Item]) -> dict[str, Item]:
    found = {item["kind"]: item for item in items}
    assert len(found) == len(items)
    return found


@pytest.fixture
def extended(tmp_path: Path) -> dict[str, Item]:
    """The overlay for CPUs with all components."""
    return by_kind(build(with_components(tmp_path, "cpu")))


def kubectl(folder: Path) -> list[Item]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=True)
    unhashed = re.sub(r"(?m)(name: trnrt)-[a-z0-9]{10}$", r"\1", done.stdout)
    assert unhashed.count("name: trnrt\n") >= 3 and unhashed != done.stdout
    return list(yaml.safe_load_all(unhashed))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="without kubectl there is nothing to compare with")
@pytest.mark.parametrize("overlay", SERVERS)
@pytest.mark.parametrize("extended", [False, True])
def test_kubectl_builds_the_same(overlay: str, extended: bool, tmp_path: Path) -> None:
    folder = with_components(tmp_path, overlay) if extended else OVERLAYS / overlay
    assert by_kind(kubectl(folder)) == by_kind(build(folder))


def test_overlays_differ_in_what_cores_need_alone() -> None:
    neuron, cpu = (by_kind(build(OVERLAYS / name)) for name in ("neuron", "cpu"))
    assert {kind for kind in neuron if neuron[kind] != cpu[kind]} == {"ConfigMap", "Deployment"}
    texts = [yaml.dump(item) for item in (cpu["Deployment"], cpu["ConfigMap"])]
    assert not [text for text in texts if "aws.amazon.com" in text or "NEURON" in text]


def test_every_file_is_used() -> None:
    used = {path.resolve() for path in DEPLOY.rglob("kustomization.yaml")}
    for path in list(used):
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
        named = [*told.get("resources", ()), *(patch["path"] for patch in told.get("patches", ()))]
        named += [name for one in told.get("configMapGenerator", ()) for name in one["files"]]
        used |= {(path.parent / name).resolve() for name in named}
    there = {path.resolve() for path in (DEPLOY / "kustomize").rglob("*") if path.is_file()}
    assert there == {path for path in used if path.is_file()}


# -- custom resources ----------------------------------------------------------------------------------------------


def kserve(name: str) -> Item:
    (found,) = yaml.safe_load_all((KSERVE / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def custom(kind: str, folder: Path) -> Item:
    files = {"ServingRuntime": "runtime.yaml", "InferenceService": "inference-service.yaml"}
    return kserve(files[kind]) if kind in files else by_kind(build(with_components(folder, "cpu")))[kind]


KINDS = ("ServiceMonitor", "ScaledObject", "ServingRuntime", "InferenceService")


@pytest.mark.parametrize("kind", KINDS)
def test_custom_resources_fit_their_published_schemas(kind: str, tmp_path: Path) -> None:
    validate(custom(kind, tmp_path))


def misspelt(item: Item) -> None:
    item["spec"]["nosuchfield"] = 1


def mistyped(item: Item) -> None:
    item["spec"] = [item["spec"]]


def emptied(item: Item) -> None:
    item["spec"].clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", [misspelt, mistyped, emptied])
def test_spoilt_ones_do_not(kind: str, spoil: Callable[[Item], None], tmp_path: Path) -> None:
    item = copy.deepcopy(custom(kind, tmp_path))
    spoil(item)
    with pytest.raises(jsonschema.ValidationError):
        validate(item)


def test_schemas_say_where_they_are_from() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.iterdir()]
    assert len(texts) == len(KINDS)
    for text in texts:
        assert re.search(r'"origin": "github.com/\S+ at [0-9a-f]{40}/\S+ \(Apache License 2.0\), trimmed', text)
        assert '"description"' not in text


def exported() -> set[str]:
    """The names of all samples that the server has."""
    metrics = Metrics()
    model = metrics.model("m")
    model.batch(1, 0.1, 10.0)
    model.pending(1)
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {sample.name for family in families for sample in family.samples}


def test_pods_are_scaled_by_metrics_that_are_there(extended: dict[str, Item]) -> None:
    spec = extended["ScaledObject"]["spec"]
    for trigger in spec["triggers"]:
        names = re.findall(r"trnrt_\w+", trigger["metadata"]["query"])
        assert names and set(names) <= exported()
        assert f'job="{extended["Service"]["metadata"]["name"]}"' in trigger["metadata"]["query"]
        assert float(trigger["metadata"]["threshold"]) > 0
    assert spec["scaleTargetRef"]["name"] == extended["Deployment"]["metadata"]["name"]
    assert spec["minReplicaCount"] > extended["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    waiting = {trigger["name"]: float(trigger["metadata"]["threshold"]) for trigger in spec["triggers"]}
    assert waiting["waiting-requests"] == ServeSettings().max_batch / 2
    assert "replicas" not in extended["Deployment"]["spec"], "it would be set again by every apply"


def test_prometheus_finds_the_service_and_sends_a_key(extended: dict[str, Item]) -> None:
    monitor, service = extended["ServiceMonitor"]["spec"], extended["Service"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["path"] == METRICS and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    (keys,) = [
        item["valueFrom"]["secretKeyRef"]
        for item in extended["Deployment"]["spec"]["template"]["spec"]["containers"][0]["env"]
        if item["name"] == "TRNRT_API_KEYS"
    ]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": keys}


# -- KServe --------------------------------------------------------------------------------------------------------


def runtime() -> tuple[Item, Item]:
    """The runtime's spec, and its container."""
    spec = kserve("runtime.yaml")["spec"]
    (container,) = spec["containers"]
    return spec, container


def environment(container: Item) -> dict[str, str]:
    return {item["name"]: item.get("value", "key") for item in container["env"]}


def test_the_runtimes_pod_fits_kubernetes_schema() -> None:
    spec, container = runtime()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {"containers": [container], "volumes": spec["volumes"]},
    }
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["capabilities"]) == (True, {"drop": ["ALL"]})
    user = f"{security['runAsUser']}:{security['runAsGroup']}"
    assert user == containerfile(SERVERS["cpu"]).last("USER").value


def test_a_service_names_the_runtime_and_a_format_and_protocol_of_it() -> None:
    spec, container = runtime()
    model = kserve("inference-service.yaml")["spec"]["predictor"]["model"]
    assert model["runtime"] == kserve("runtime.yaml")["metadata"]["name"]
    assert [model["modelFormat"]] == [
        {key: one[key] for key in ("name", "version")} for one in spec["supportedModelFormats"]
    ]
    assert model["protocolVersion"] in spec["protocolVersions"]
    assert container["name"] == "kserve-container", "KServe looks for it by this name"


def test_the_runtimes_settings_ports_and_times_agree() -> None:
    _, container = runtime()
    variables = environment(container)
    settings = {variable_of(name) for name in ServeSettings.model_fields} | {"TRNRT_CACHE_LIMIT"}
    assert set(variables) <= settings
    (port,) = container["ports"]
    probes = [container[kind]["httpGet"]["port"] for kind in ("readinessProbe", "livenessProbe")]
    assert {str(port["containerPort"]), *map(str, probes)} == {variables["TRNRT_PORT"]}
    default_grace_s = 30
    assert float(variables["TRNRT_DRAIN_TIMEOUT"]) + 2 * MARGIN_S <= default_grace_s
    assert re.fullmatch(r".*:\d+\.\d+\.\d+", container["image"])


def test_a_server_starts_as_the_runtime_says(tmp_path: Path) -> None:
    """With its environment, on this machine; folders are moved. Both versions of the protocol answer."""
    _, container = runtime()
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(MODELS / "digits_cnn.onnx", models)
    moved = {"TRNRT_MODEL_DIR": str(models), "TRNRT_CACHE": str(tmp_path / "cache")}
    env: dict[str, Any] = {**containerfile(SERVERS["cpu"]).environment, **environment(container), **moved}
    env.pop("PATH")
    with server_process(tmp_path, "--host", "127.0.0.1", "--max-batch", "1", env=env) as server:
        for kind in ("readinessProbe", "livenessProbe"):
            assert fetch("GET", server.url + container[kind]["httpGet"]["path"]).status_code == 200
        key = {"X-API-Key": "key"}
        for path in ("/v1/models/digits_cnn", "/v2/models/digits_cnn"):
            assert fetch("GET", server.url + path).status_code == 401
            assert fetch("GET", server.url + path, headers=key).json()["name"] == "digits_cnn"
        assert server.stop() == 0
