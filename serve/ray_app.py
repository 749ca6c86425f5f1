"""The application of Ray Serve: ``serve run trnrt.serve.ray_app:build models=m.onnx replicas=2``.

It has two tiers. Fronts are the ingress: the HTTP application of ``app``, which checks a request before it is queued.
Each model is a deployment of its own, whose replicas have Ray's batcher and a session. If a replica dies with a
request, Ray itself answers 500; a front can ask another replica.
"""
# No annotations from the future: Ray reads that of ``build`` to parse its arguments.

from pathlib import Path
from typing import Any, Literal

from ray import serve
from ray.serve import Application

from trnrt.errors import OptionError
from trnrt.predict.clusters import NEURON_CORES
from trnrt.serve.hosting.contents import digest_of
from trnrt.serve.hosting.devices import on_device
from trnrt.serve.hosting.policies import chosen_sources
from trnrt.serve.ray.front import Front
from trnrt.serve.ray.messages import Share
from trnrt.serve.ray.replica import ModelReplica
from trnrt.serve.settings import ServeSettings, check_names

NAME = "trnrt"
FRONT = "front"
REPLICAS_OF_A_FRONT = 2
"""Receiving and forwarding a request costs about as much as computing a small one. Like Ray's own proxies, fronts use
no reserved CPUs."""
HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 10.0, 60.0
SPARE = 64
"""Requests beyond ``max_concurrency`` that Ray sends to a front, which refuses them itself, and answers health."""
STARTS = 3
"""How often Ray starts a replica that can't load its model: it rarely succeeds later."""
QUIET = {"enable_access_log": False, "log_level": "WARNING"}
"""The fronts log every request themselves."""


class RaySettings(ServeSettings):
    """The arguments of ``build``: the server's settings."""

    engine: Literal["local", "ray"] = "ray"


def build(settings: RaySettings) -> Application:
    """The application for these settings. TrnrtError if a model's file can't be read."""
    return application(settings)


def application(settings: ServeSettings) -> Application:
    """The application: fronts, and a deployment for each model."""
    sources: dict[str, Any] = {}
    keyless = settings.model_copy(update={"api_keys": [], "key": {}})  # replicas do not need them
    files = served_files(settings)
    check_names(settings, files)
    for name, path in files.items():
        version = digest_of(path)
        own = keyless.for_model(name)
        share = Share(name, _paths(path), version, own)
        replica = serve.deployment(name=deployment_of(name), **_replica_options(own))(ModelReplica)
        sources[name] = (replica.bind(share), version)
    front = serve.deployment(name=FRONT, **_front_options(settings))(serve.ingress()(Front))
    return front.bind(settings, sources)


def served_files(settings: ServeSettings) -> dict[str, Path]:
    """The files by model. OptionError for a folder of versions or a bundle."""
    sources, _ = chosen_sources(settings)
    if versioned := [source for source in sources if source.is_versioned]:
        text = f"--engine ray serves no folders of versions, and {str(versioned[0].path)!r} is in one"
        raise OptionError(text, hint="serve it as NAME.onnx, or without --engine ray")
    if bundles := [source for source in sources if source.path.is_dir()]:
        text = f"--engine ray serves no bundles, and {str(bundles[0].path)!r} is one"
        raise OptionError(text, hint="serve the model's .onnx file, or without --engine ray")
    return {source.name: source.path for source in sources}


def deployment_of(model: str) -> str:
    """The name of a model's deployment, a different one for each model. Ray reserves ``#``, which no name has."""
    return f"model-{model}"


def _replica_options(settings: ServeSettings) -> dict[str, Any]:
    return {
        **_common_options(settings),
        "num_replicas": settings.replicas,
        "ray_actor_options": {"num_cpus": settings.replica_cpus, "resources": needed_resources(settings)},
        # One batch is computed and the next one gathers. The rest waits in the fronts, which can refuse it.
        "max_ongoing_requests": 2 * settings.bucket_sizes[-1] + 2,
        "max_queued_requests": settings.max_queue,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        # Several replicas make room for their successors one by one. A lone one stays until its successor is ready.
        "max_surge_percent": 100 if settings.replicas == 1 else 0,
    }


def _front_options(settings: ServeSettings) -> dict[str, Any]:
    return {
        **_common_options(settings),
        # At least two for two replicas: if one dies with its requests, the other continues.
        "num_replicas": max(min(2, settings.replicas), settings.replicas // REPLICAS_OF_A_FRONT),
        "ray_actor_options": {"num_cpus": 0},
        "max_ongoing_requests": settings.max_concurrency + SPARE,
        "max_surge_percent": 100,
    }


def _common_options(settings: ServeSettings) -> dict[str, Any]:
    return {
        "graceful_shutdown_timeout_s": settings.drain_timeout,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": HEALTH_PERIOD_S,
        "max_constructor_retry_count": STARTS,
        "logging_config": QUIET,
    }


def needed_resources(settings: ServeSettings) -> dict[str, float]:
    """A replica's resources beside CPUs: on Neuron, the cores that the model is loaded on."""
    if settings.backend == "neuron" or on_device(settings):
        return {NEURON_CORES: settings.cores}
    return {}


def _paths(path: Path) -> tuple[Path, ...]:
    """A replica's paths for a file: in its working directory, then the absolute path on this machine."""
    return (path,) if path.is_absolute() else (path, path.resolve())
