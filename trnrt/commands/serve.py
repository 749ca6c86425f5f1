"""``trnrt serve``: predictions over HTTP.

The flags and their defaults are those of ``trnrt.serve.settings`` (a test compares them). That module can't be imported
here: the server's packages may be missing, and ``trnrt --help`` must not wait for them.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from enum import Enum, StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from trnrt.commands.options import TARGETS, Backend, DType, Engine, Fallback
from trnrt.errors import BackendError

NEEDED = ("fastapi", "httptools", "multipart", "prometheus_client", "pydantic_settings", "uvicorn", "uvloop")
"""What the server is made of, beside trnrt itself."""


class LogLevel(StrEnum):
    """What is logged at least."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_PANELS = {
    "Planning": ("--target", "--dtype", "--fallback", "--shape"),
    "Device": ("--backend", "--lnc", "--cores", "--compiled"),
    "Batches and limits": (
        "--batching/--no-batching",
        "--max-batch",
        "--max-delay-ms",
        "--max-queue",
        "--max-concurrency",
        "--max-body-mib",
        "--max-tensor-elements",
        "--request-timeout",
        "--drain-timeout",
    ),
    "Workers": ("--workers", "--engine", "--replicas", "--replica-cpus", "--address"),
}


def _flag(name: str, told: str, metavar: str | None = None, default: str | None = None) -> Any:
    """A flag that was not given is None: the environment or the file may have it."""
    panel = next((panel for panel, flags in _PANELS.items() if name in flags), None)
    return typer.Option(name, help=told, metavar=metavar, show_default=default or False, rich_help_panel=panel)


Models = Annotated[
    list[Path] | None, typer.Argument(metavar="MODELS", help="The models, .onnx files.", show_default=False)
]
ConfigFlag = Annotated[Path | None, _flag("--config", "A TOML file of these settings.", "FILE")]
ModelDirFlag = Annotated[Path | None, _flag("--model-dir", "Serve every .onnx file of this folder, too.", "DIR")]
HostFlag = Annotated[str | None, _flag("--host", "The address to listen on.", "ADDRESS", "127.0.0.1")]
PortFlag = Annotated[int | None, _flag("--port", "The port to listen on; 0 takes a free one.", "N", "8000")]
WorkersFlag = Annotated[int | None, _flag("--workers", "Processes that share the port.", "N", "1")]
EngineFlag = Annotated[
    Engine | None,
    _flag("--engine", "What runs the models: workers of this command, or replicas of Ray Serve.", None, "local"),
]
ReplicasFlag = Annotated[int | None, _flag("--replicas", "With --engine ray: replicas of each model.", "N", "1")]
ReplicaCpusFlag = Annotated[
    float | None, _flag("--replica-cpus", "With --engine ray: CPUs that are set aside for a replica.", "N", "0.5")
]
AddressFlag = Annotated[
    str | None,
    _flag(
        "--address", "With --engine ray: a cluster that runs, as auto or HOST:PORT; none starts one here.", "ADDRESS"
    ),
]
BatchingFlag = Annotated[
    bool | None, _flag("--batching/--no-batching", "Merge requests of one model into batches.", None, "batching")
]
MaxBatchFlag = Annotated[int | None, _flag("--max-batch", "Rows that are merged into one batch at most.", "ROWS", "32")]
MaxDelayFlag = Annotated[
    float | None,
    _flag("--max-delay-ms", "How long a request waits for others that are on their way, milliseconds.", "MS", "2.0"),
]
MaxQueueFlag = Annotated[
    int | None, _flag("--max-queue", "Requests that wait for one model; more are refused with 429.", "N", "256")
]
MaxConcurrencyFlag = Annotated[
    int | None,
    _flag("--max-concurrency", "Requests that a worker answers at once; more are refused with 503.", "N", "512"),
]
MaxBodyFlag = Annotated[int | None, _flag("--max-body-mib", "The largest body of a request, MiB.", "MIB", "64")]
MaxElementsFlag = Annotated[
    int | None, _flag("--max-tensor-elements", "The most elements of one input tensor.", "N", "16777216")
]
RequestTimeoutFlag = Annotated[
    float | None,
    _flag(
        "--request-timeout",
        "How long a request may take, seconds; then its work is dropped (504).",
        "SECONDS",
        "30.0",
    ),
]
DrainTimeoutFlag = Annotated[
    float | None,
    _flag(
        "--drain-timeout",
        "How long a shutdown waits for accepted requests, seconds; then it exits with 1.",
        "SECONDS",
        "30.0",
    ),
]
InsecureFlag = Annotated[
    bool | None,
    _flag("--insecure/--no-insecure", "Listen on other addresses than this machine's own without keys."),
]
AdminFlag = Annotated[bool | None, _flag("--admin/--no-admin", "Allow loading and unloading models over HTTP.")]
ShadowFlag = Annotated[
    float | None,
    _flag(
        "--shadow",
        "Share of requests that onnxruntime runs again in the background, for /metrics.",
        "SHARE",
        "0.0",
    ),
]
TargetFlag = Annotated[
    str | None, _flag("--target", "The hardware, or a target's file: the device that is present, else trn2.", TARGETS)
]
DTypeFlag = Annotated[DType | None, _flag("--dtype", "What weights and activations are computed in.", None, "float32")]
BackendFlag = Annotated[
    Backend | None, _flag("--backend", "What runs the models; auto takes a device if present.", None, "auto")
]
LncFlag = Annotated[
    int | None,
    _flag(
        "--lnc",
        "Physical NeuronCores in a logical one: what NEURON_LOGICAL_NC_CONFIG says, else 1. With 2, both do the same "
        "work.",
        "[1|2]",
    ),
]
CoresFlag = Annotated[
    int | None,
    _flag("--cores", "NeuronCores to load each model on, for batches in slices; a worker's own.", "N", "1"),
]
CompiledFlag = Annotated[
    Path | None,
    _flag("--compiled", "NeuronCore: run what trnrt compile --backend neuron wrote here, and compile nothing.", "DIR"),
]
FallbackFlag = Annotated[
    Fallback | None,
    _flag(
        "--fallback", "What runs on the CPU the nodes that the device can't; none refuses such a model.", None, "none"
    ),
]
ShapeFlag = Annotated[
    list[str] | None,
    _flag(
        "--shape",
        "Sizes of an input that the file leaves open, as image=3x224x224, in every model that has it.",
        "[NAME=]SIZES",
    ),
]
LogLevelFlag = Annotated[LogLevel | None, _flag("--log-level", "What is logged, to stderr.", None, "info")]


def serve_command(
    context: typer.Context,
    models: Models = None,
    config: ConfigFlag = None,
    model_dir: ModelDirFlag = None,
    host: HostFlag = None,
    port: PortFlag = None,
    workers: WorkersFlag = None,
    engine: EngineFlag = None,
    replicas: ReplicasFlag = None,
    replica_cpus: ReplicaCpusFlag = None,
    address: AddressFlag = None,
    batching: BatchingFlag = None,
    max_batch: MaxBatchFlag = None,
    max_delay_ms: MaxDelayFlag = None,
    max_queue: MaxQueueFlag = None,
    max_concurrency: MaxConcurrencyFlag = None,
    max_body_mib: MaxBodyFlag = None,
    max_tensor_elements: MaxElementsFlag = None,
    request_timeout: RequestTimeoutFlag = None,
    drain_timeout: DrainTimeoutFlag = None,
    insecure: InsecureFlag = None,
    admin: AdminFlag = None,
    shadow: ShadowFlag = None,
    target: TargetFlag = None,
    dtype: DTypeFlag = None,
    backend: BackendFlag = None,
    lnc: LncFlag = None,
    cores: CoresFlag = None,
    compiled: CompiledFlag = None,
    fallback: FallbackFlag = None,
    shape: ShapeFlag = None,
    log_level: LogLevelFlag = None,
) -> None:
    """Serve models over HTTP: the Open Inference Protocol, a simple /predict, metrics, and a page to try them.

    Every setting can also be an environment variable (TRNRT_MAX_BATCH) or a line of the file that --config names
    (max_batch = 32). API keys are set with TRNRT_API_KEYS only. Exits with 0 after a shutdown that answered everything.
    """
    given = {name: value for name, value in context.params.items() if value not in (None, [], ())}
    raise typer.Exit(serve({name: v.value if isinstance(v, Enum) else v for name, v in given.items()}))


def _exit_early(_number: int, _frame: object) -> None:
    """A signal that comes before there is a worker to answer it: nothing was accepted, and no process started yet.

    It does not raise: that may happen wherever Python is, and in a finalizer, or where everything is caught, it would
    be dropped, and the server would start as if nobody had told it.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, RuntimeError, ValueError):  # nobody reads it, or it is written to right now
            stream.flush()
    os._exit(0)


def serve(flags: dict[str, Any]) -> int:
    """Serve with the settings that these flags say; the exit code."""
    # The first process of a container gets no signal that it has no handler for, and the imports below take a while.
    signal.signal(signal.SIGTERM, _exit_early)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        told = f"the server's packages are not installed ({', '.join(missing)})"
        raise BackendError(told, hint="pip install 'trnrt[serve]'")
    from trnrt.serve.settings import read_settings

    settings = read_settings(flags)
    if settings.engine == "local":
        from trnrt.serve.processes import running

        return running.serve(settings)
    from trnrt.predict import clusters

    clusters.require()
    from trnrt.serve.ray import running as ray_running

    return ray_running.serve(settings)
