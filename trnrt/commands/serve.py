"""``trnrt serve``: predictions over HTTP and gRPC.

The flags and their defaults are those of ``trnrt.serve.settings`` (a test compares them). That module can't be imported
here: the server's packages may be missing, and ``trnrt --help`` must not wait for them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from click.exceptions import Exit

from trnrt.commands.members import Backend, DType, Engine, Fallback, Narrow
from trnrt.commands.options import (
    BUDGET,
    CALIBRATION,
    LENGTHS,
    NARROW,
    PAD,
    TARGET_NAMES,
    TARGETS,
    SampleFlag,
    flag,
    lower_target,
    read_buckets,
    read_budget,
    read_lengths,
)
from trnrt.commands.sampling import add_model
from trnrt.commands.verbs import argument
from trnrt.errors import BackendError

NEEDED = ("fastapi", "httptools", "multipart", "orjson", "prometheus_client", "pydantic_settings", "uvicorn", "uvloop")
"""The server's packages."""


class LogLevel(StrEnum):
    """The least level to log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Serving:
    """The server's settings. None is not given: the environment or the file may have it."""

    models: Annotated[
        list[Path] | None,
        argument(
            metavar="MODELS",
            help="The models: .onnx files, and bundles of `trnrt compile -o DIR`.",
            callback=add_model,
            stand_in=SampleFlag,
        ),
    ] = None
    config: Path | None = flag("Server", "--config", metavar="FILE", help="A TOML file of these settings.")
    model_dir: Path | None = flag(
        "Server",
        "--model-dir",
        metavar="DIR",
        help="Also serve the .onnx files and bundles of this folder, and each version in NAME/VERSION/model.onnx.",
    )
    follow_links: bool | None = flag(
        "Server",
        "--follow-links/--no-follow-links",
        help="Follow links in --model-dir to files outside it.",
    )
    versions: str | None = flag(
        "Server",
        "--versions",
        metavar="[latest|all|2,3]",
        show_default="latest",
        help="The versions to serve of each model that is a folder of versions.",
    )
    canary: list[str] | None = flag(
        "Server",
        "--canary",
        metavar="[NAME:]2=10%",
        help="Give a version a share of its model's requests; the highest other version has the rest. Repeatable.",
    )
    host: str | None = flag(
        "Server", "--host", metavar="ADDRESS", show_default="127.0.0.1", help="The address to listen on."
    )
    port: int | None = flag(
        "Server", "--port", metavar="N", show_default="8000", help="The port to listen on; 0 takes a free one."
    )
    grpc_port: int | None = flag(
        "Server",
        "--grpc-port",
        metavar="N",
        help="Also serve the Open Inference Protocol over gRPC on this port; 0 takes a free one. Off by default.",
    )
    workers: int | None = flag(
        "Workers", "--workers", metavar="N", show_default="1", help="Processes that share the port."
    )
    instances: int | None = flag(
        "Workers",
        "--instances",
        metavar="N",
        show_default="1",
        help="Copies of each model in a worker that compute at the same time, each on its own thread or NeuronCores.",
    )
    engine: Engine | None = flag(
        "Workers",
        "--engine",
        show_default="local",
        help="What runs the models: workers of this command, or replicas of Ray Serve.",
    )
    replicas: int | None = flag(
        "Workers", "--replicas", metavar="N", show_default="1", help="With --engine ray: replicas of each model."
    )
    replica_cpus: float | None = flag(
        "Workers",
        "--replica-cpus",
        metavar="N",
        show_default="0.5",
        help="With --engine ray: CPUs to reserve for a replica.",
    )
    address: str | None = flag(
        "Workers",
        "--address",
        metavar="ADDRESS",
        help="With --engine ray: a running cluster, as auto or HOST:PORT. By default one is started here.",
    )
    batching: bool | None = flag(
        "Batches and limits",
        "--batching/--no-batching",
        show_default="batching",
        help="Merge requests of one model into batches.",
    )
    max_batch: int | None = flag(
        "Batches and limits", "--max-batch", metavar="ROWS", show_default="32", help="The most rows of a merged batch."
    )
    buckets: Sequence[int] | None = flag(
        "Batches and limits",
        "--buckets",
        metavar="1,4,16",
        help="The batch sizes to compile for; the largest is the most rows of a merged batch. By default 1, 2, 4 and "
        "so on up to --max-batch.",
        parser=read_buckets,
    )
    max_delay_ms: float | None = flag(
        "Batches and limits",
        "--max-delay-ms",
        metavar="MS",
        show_default="2.0",
        help="How long a request waits for others that are arriving, milliseconds.",
    )
    max_queue: int | None = flag(
        "Batches and limits",
        "--max-queue",
        metavar="N",
        show_default="256",
        help="Requests that may wait for one model; more are refused with 429.",
    )
    max_wait_ms: float | None = flag(
        "Batches and limits",
        "--max-wait-ms",
        metavar="MS",
        show_default="500.0",
        help="How long a request may wait for its batch, as estimated, milliseconds; others are refused with 429.",
    )
    max_rows: int | None = flag(
        "Batches and limits",
        "--max-rows",
        metavar="N",
        show_default="1024",
        help="The most rows of a request; at least the model's own batch.",
    )
    max_concurrency: int | None = flag(
        "Batches and limits",
        "--max-concurrency",
        metavar="N",
        show_default="512",
        help="Requests that a worker answers at once; more are refused with 503.",
    )
    max_body_mib: int | None = flag(
        "Batches and limits",
        "--max-body-mib",
        metavar="MIB",
        show_default="64",
        help="The largest body of a request, MiB.",
    )
    max_json_mib: int | None = flag(
        "Batches and limits",
        "--max-json-mib",
        metavar="MIB",
        show_default="16",
        help="The largest JSON of a request, MiB; larger tensors are sent as binary data.",
    )
    max_tensor_elements: int | None = flag(
        "Batches and limits",
        "--max-tensor-elements",
        metavar="N",
        show_default="16777216",
        help="The most elements of one input tensor.",
    )
    request_timeout: float | None = flag(
        "Batches and limits",
        "--request-timeout",
        metavar="SECONDS",
        show_default="30.0",
        help="How long a request may take, seconds; then its work is dropped (504).",
    )
    drain_timeout: float | None = flag(
        "Batches and limits",
        "--drain-timeout",
        metavar="SECONDS",
        show_default="30.0",
        help="How long a shutdown waits for accepted requests, seconds; then it exits with 1.",
    )
    max_connections: int | None = flag(
        "Connections",
        "--max-connections",
        metavar="N",
        show_default="1024",
        help="Open connections of a worker; beyond them only health is answered.",
    )
    max_header_bytes: int | None = flag(
        "Connections",
        "--max-header-bytes",
        metavar="BYTES",
        show_default="32768",
        help="The largest request line and headers together, bytes (431; 414 for the target alone).",
    )
    max_headers: int | None = flag(
        "Connections",
        "--max-headers",
        metavar="N",
        show_default="100",
        help="The most header fields of a request, and the most trailer fields (431).",
    )
    max_buffered_mib: int | None = flag(
        "Connections",
        "--max-buffered-mib",
        metavar="MIB",
        show_default="256",
        help="Answers that a worker holds for clients that read slowly, MiB together; more are refused with 503.",
    )
    header_timeout: float | None = flag(
        "Connections",
        "--header-timeout",
        metavar="SECONDS",
        show_default="10.0",
        help="How long a request's head may take, and a new connection until it begins, seconds (408).",
    )
    body_timeout: float | None = flag(
        "Connections",
        "--body-timeout",
        metavar="SECONDS",
        show_default="20.0",
        help="How long a body may pause, seconds (408); after this time it needs 1024 bytes a second.",
    )
    write_timeout: float | None = flag(
        "Connections",
        "--write-timeout",
        metavar="SECONDS",
        show_default="30.0",
        help="How long an answer may stay unread, seconds; then its connection is closed.",
    )
    keep_alive_timeout: float | None = flag(
        "Connections",
        "--keep-alive-timeout",
        metavar="SECONDS",
        show_default="75.0",
        help="How long a connection stays open without a request, seconds.",
    )
    allowed_host: list[str] | None = flag(
        "Connections",
        "--allowed-host",
        metavar="HOST[:PORT]",
        help="A name that clients and web pages may use for this server, as behind a proxy; * allows any.",
    )
    insecure: bool | None = flag(
        "Server", "--insecure/--no-insecure", help="Allow addresses beyond this machine without API keys."
    )
    admin: bool | None = flag(
        "Server", "--admin/--no-admin", help="Allow loading and unloading models over HTTP and gRPC."
    )
    shadow: float | None = flag(
        "Server",
        "--shadow",
        metavar="SHARE",
        show_default="0.0",
        help="Share of requests that onnxruntime runs again in the background, for /metrics.",
    )
    target: str | None = flag(
        "Planning",
        "--target",
        choices=TARGET_NAMES,
        parser=lower_target,
        metavar=TARGETS,
        help="The hardware, or a target's file. By default this machine's device, else trn2.",
    )
    dtype: DType | None = flag(
        "Numbers", "--dtype", show_default="float32", help="The dtype of weights and activations."
    )
    calibration: Path | None = flag("Numbers", "--calibration", metavar="DATA.npz", help=CALIBRATION)
    narrow: Narrow | None = flag("Numbers", "--narrow", show_default="faster", help=NARROW)
    backend: Backend | None = flag(
        "Device", "--backend", show_default="auto", help="What runs the models; auto uses a device if there is one."
    )
    lnc: int | None = flag(
        "Device",
        "--lnc",
        metavar="[1|2]",
        help="Physical cores per logical NeuronCore; 2 divide the work where that is predicted to be faster. "
        "By default NEURON_LOGICAL_NC_CONFIG, else 1.",
    )
    cores: int | None = flag(
        "Device",
        "--cores",
        metavar="N",
        show_default="1",
        help="NeuronCores of each worker to load a model on: they share a batch.",
    )
    compiled: Path | None = flag(
        "Advanced",
        "--compiled",
        metavar="DIR",
        help="NeuronCore: run what `trnrt compile --backend neuron` wrote into DIR, and compile nothing.",
    )
    route: str | None = flag(
        "Advanced",
        "--route",
        metavar="ROUTE",
        help="NeuronCore: how AWS's packages compile and run kernels: neff, trace or torchneuron.",
    )
    allow_unsupported_device: bool | None = flag(
        "Advanced",
        "--allow-unsupported-device/--no-allow-unsupported-device",
        help="NeuronCore: run on trn1 and inf2, too, though AWS doesn't state that NKI supports them.",
    )
    fallback: Fallback | None = flag(
        "Numbers",
        "--fallback",
        show_default="none",
        help="What runs unsupported nodes, on the CPU; none refuses such a model.",
    )
    shape: list[str] | None = flag(
        "Planning",
        "--shape",
        metavar="[NAME=]SIZES",
        help="The sizes that an input leaves open, as image=3x224x224, in every model that has it.",
    )
    lengths: Sequence[int] | None = flag(
        "Planning",
        "--lengths",
        metavar="32,64,128",
        help=f"{LENGTHS} In every model with an open length.",
        parser=read_lengths,
    )
    pad: list[str] | None = flag("Planning", "--pad", metavar="INPUT=N", help=PAD)
    max_instructions: int | None = flag(
        "Advanced", "--max-instructions", metavar="[N|none]", parser=read_budget, help=BUDGET
    )
    log_level: LogLevel | None = flag(
        "Server", "--log-level", show_default="info", help="The least level to log, to stderr."
    )
    otlp_endpoint: str | None = flag(
        "Server",
        "--otlp-endpoint",
        metavar="URL",
        help="Send traces of requests to this OpenTelemetry collector, by OTLP over HTTP, as http://127.0.0.1:4318. "
        "By default OTEL_EXPORTER_OTLP_ENDPOINT, else none.",
    )
    trace_ratio: float | None = flag(
        "Server",
        "--trace-ratio",
        metavar="SHARE",
        show_default="1.0",
        help="Share of requests to trace, of those that belong to no caller's trace.",
    )


def serve_command(serving: Serving) -> None:
    """Serve models over HTTP: the Open Inference Protocol, a simple /predict, metrics, and a page to try them.

    Every setting can also be an environment variable (TRNRT_MAX_BATCH) or a line of the --config file (max_batch = 32).
    API keys are set with TRNRT_API_KEYS or, by their hash, in the file. Exits with 0 after a shutdown that answered
    every request.
    """
    given = {name: value for name, value in vars(serving).items() if value not in (None, [])}
    raise Exit(serve({name: v.value if isinstance(v, Enum) else v for name, v in given.items()}))


def _exit_early(_number: int, _frame: object) -> None:
    """Exit on a signal that comes before the first worker: no request was accepted, and no process started yet.

    It does not raise: an exception is lost in a finalizer, or where everything is caught, and the server would start
    all the same.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, RuntimeError, ValueError):  # its reader is gone, or a write is under way
            stream.flush()
    os._exit(0)


def serve(flags: dict[str, Any]) -> int:
    """Serve with the settings of these flags; return the exit code."""
    # A container's first process gets no signal without a handler, and the imports below take a while.
    signal.signal(signal.SIGTERM, _exit_early)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        problem = f"the server's packages are not installed ({', '.join(missing)})"
        raise BackendError(problem, hint="pip install 'trnrt[serve]'")
    from trnrt.serve.settings import read_settings

    settings = read_settings(flags)
    if settings.grpc_port is not None and find_spec("grpc") is None:
        problem = "--grpc-port needs the package grpcio, which is not installed"
        raise BackendError(problem, hint="pip install 'trnrt[serve,grpc]'")
    if settings.engine == "local":
        from trnrt.serve.processes import running

        return running.serve(settings)
    from trnrt.predict import clusters

    clusters.require()
    from trnrt.serve.ray import running as ray_running

    return ray_running.serve(settings)
