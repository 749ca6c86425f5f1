"""The application of Ray Serve: ``serve run trnrt.serve.ray_app:build models=m.onnx replicas=2``.

Two tiers. Fronts are the ingress: the HTTP application of ``app``, which checks a request before anything is queued.
Each model is a deployment of its own, whose replicas have Ray's batcher and a session. It takes two, because Ray asks
nobody again for what a replica has accepted and then died with: its client gets a 500. A front can ask again.
"""
# No annotations from the future: Ray looks at that of ``build`` to know what its arguments are.

from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from ray import serve
from ray.serve import Application

from trnrt.predict.clusters import NEURON_CORES
from trnrt.serve.hosting.devices import on_device
from trnrt.serve.hosting.files import model_files
from trnrt.serve.hosting.versions import version_of
from trnrt.serve.ray.front import Front
from trnrt.serve.ray.messages import Share
from trnrt.serve.ray.replica import ModelReplica
from trnrt.serve.settings import ServeSettings

NAME = "trnrt"
FRONT = "front"
REPLICAS_OF_A_FRONT = 2
"""To take a request in and to pass it on costs about as much as to compute a small one. Fronts take none of the CPUs
that are set aside, as Ray's own proxies don't."""
HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 10.0, 60.0
SPARE = 64
"""Requests beyond ``max_concurrency`` that a front is sent: it is to refuse them itself, and to answer health."""
STARTS = 3
"""How often a replica is tried that can't load its model: mostly it never will."""
QUIET = {"enable_access_log": False, "log_level": "WARNING"}
"""The fronts log every request themselves."""


class RaySettings(ServeSettings):
    """The arguments of ``build``: the server's settings."""

    engine: Literal["local", "ray"] = Field(default="ray", description="Ray.")


def build(settings: RaySettings) -> Application:
    """The application for these settings. TrnrtError where a model's file can't be read."""
    return application(settings)


def application(settings: ServeSettings) -> Application:
    """The application: fronts, and a deployment for each model."""
    sources: dict[str, Any] = {}
    keyless = settings.model_copy(update={"api_keys": []})  # what a replica need not know
    for name, path in model_files(settings).items():
        version = version_of(path)
        share = Share(name, _paths(path), version, keyless)
        replica = serve.deployment(name=deployment_of(name), **_replica_options(settings))(ModelReplica)
        sources[name] = (replica.bind(share), version)
    front = serve.deployment(name=FRONT, **_front_options(settings))(serve.ingress()(Front))
    return front.bind(settings, sources)


def deployment_of(model: str) -> str:
    """What Ray calls a model's deployment: Ray has a meaning of its own for ``#``; no two models get one name."""
    return f"model-{model.replace('~', '~7E').replace('#', '~23')}"


def _replica_options(settings: ServeSettings) -> dict[str, Any]:
    return {
        "num_replicas": settings.replicas,
        "ray_actor_options": {"num_cpus": settings.replica_cpus, "resources": needed_resources(settings)},
        # A batch that is computed, and the next one that gathers; the rest waits in front, where it can be refused.
        "max_ongoing_requests": 2 * settings.max_batch + 2,
        "max_queued_requests": settings.max_queue,
        "graceful_shutdown_timeout_s": settings.drain_timeout,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "max_constructor_retry_count": STARTS,
        # Of several, one after the other makes room for its successor. A lone one must stay until that is ready.
        "max_surge_percent": 100 if settings.replicas == 1 else 0,
        "logging_config": QUIET,
    }


def _front_options(settings: ServeSettings) -> dict[str, Any]:
    return {
        # Two where there are two replicas: one that dies takes the requests within it along, and the other goes on.
        "num_replicas": max(min(2, settings.replicas), settings.replicas // REPLICAS_OF_A_FRONT),
        "ray_actor_options": {"num_cpus": 0},
        "max_ongoing_requests": settings.max_concurrency + SPARE,
        "graceful_shutdown_timeout_s": settings.drain_timeout,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": HEALTH_PERIOD_S,
        "max_constructor_retry_count": STARTS,
        "max_surge_percent": 100,
        "logging_config": QUIET,
    }


def needed_resources(settings: ServeSettings) -> dict[str, float]:
    """What a replica needs beside CPUs: on Neuron the cores that the model is loaded on."""
    if settings.backend == "neuron" or on_device(settings):
        return {NEURON_CORES: settings.cores}
    return {}


def _paths(path: Path) -> tuple[Path, ...]:
    """Where replicas look for a file: by its name within their working directory, then where it is here."""
    return (path,) if path.is_absolute() else (path, path.resolve())
