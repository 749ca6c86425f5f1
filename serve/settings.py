"""What an operator can set, once: flags, environment, TOML file and the docs all derive from these fields.

A flag (``--max-batch``) wins over the environment (``TRNRT_MAX_BATCH``), which wins over the file of ``--config``
(``max_batch = 32``), which wins over the default.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from trnrt.errors import OptionError

PREFIX = "TRNRT_"
MULTIPROC = "PROMETHEUS_MULTIPROC_DIR"
"""Where several workers put their numbers: the supervisor sets it, before anybody imports prometheus_client."""
NO_FLAG = ("api_keys", "models")
"""Fields without a flag of their own: a key on a command line can be read by everybody; models are arguments."""

_OF_RAY = dict.fromkeys(("replicas", "replica_cpus", "address"), "say --engine ray, too; workers are --workers")
_OF_WORKERS = {
    "workers": "say how many with --replicas",
    "admin": "a model is loaded anew by serving its new file again, and rolls over without a failed request",
}


class ServeSettings(BaseSettings):
    """How a server is set up. Construct it with what the flags say; the rest is looked up."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    config: Path | None = Field(default=None, description="A TOML file of these settings.")
    models: Annotated[list[Path], NoDecode] = Field(default=[], description="The models, .onnx files.")
    model_dir: Path | None = Field(default=None, description="Also serve every .onnx file of this folder.")
    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port to listen on; 0 takes a free one.")
    workers: int = Field(default=1, ge=1, le=64, description="Processes that share the port.")
    engine: Literal["local", "ray"] = Field(
        default="local", description="What runs the models: workers of this command, or replicas of Ray Serve."
    )
    replicas: int = Field(default=1, ge=1, le=1024, description="With --engine ray: replicas of each model.")
    replica_cpus: float = Field(
        default=0.5, gt=0, le=256, description="With --engine ray: CPUs to reserve for a replica."
    )
    address: str | None = Field(
        default=None,
        description="With --engine ray: a running cluster, as auto or HOST:PORT. By default one is started here.",
    )
    batching: bool = Field(default=True, description="Merge requests of one model into batches.")
    max_batch: int = Field(default=32, ge=1, le=1024, description="The most rows of a merged batch.")
    max_delay_ms: float = Field(
        default=2.0,
        ge=0,
        le=10_000,
        description="How long a request waits for others that are arriving, milliseconds.",
    )
    max_queue: int = Field(
        default=256, ge=1, description="Requests that may wait for one model; more are refused with 429."
    )
    max_concurrency: int = Field(
        default=512, ge=1, description="Requests that a worker answers at once; more are refused with 503."
    )
    max_body_mib: int = Field(default=64, ge=1, le=2048, description="The largest body of a request, MiB.")
    max_tensor_elements: int = Field(default=1 << 24, ge=1, description="The most elements of one input tensor.")
    request_timeout: float = Field(
        default=30.0, gt=0, le=3600, description="How long a request may take, seconds; then its work is dropped (504)."
    )
    drain_timeout: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="How long a shutdown waits for accepted requests, seconds; then it exits with 1.",
    )
    api_keys: Annotated[list[SecretStr], NoDecode] = Field(
        default=[],
        description="Keys, separated by commas; clients must send one of them. Without keys everybody is let in.",
    )
    insecure: bool = Field(default=False, description="Allow addresses beyond this machine without API keys.")
    admin: bool = Field(default=False, description="Allow loading and unloading models over HTTP.")
    shadow: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of requests that onnxruntime runs again in the background, for /metrics.",
    )
    target: str | None = Field(
        default=None, description="The hardware, or a target's file. By default this machine's device, else trn2."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="The dtype of weights and activations."
    )
    backend: Literal["auto", "simulator", "neuron"] = Field(
        default="auto", description="What runs the models; auto uses a device if there is one."
    )
    lnc: int | None = Field(
        default=None,
        ge=1,
        le=2,
        description="Physical cores per logical NeuronCore; with 2, both do the same work. By default "
        "NEURON_LOGICAL_NC_CONFIG, else 1.",
    )
    cores: int = Field(
        default=1, ge=1, description="NeuronCores of each worker to load a model on: they share a batch."
    )
    compiled: Path | None = Field(
        default=None,
        description="NeuronCore: run what `trnrt compile --backend neuron` wrote into DIR, and compile nothing.",
    )
    fallback: Literal["none", "onnxruntime"] = Field(
        default="none", description="What runs unsupported nodes, on the CPU; none refuses such a model."
    )
    shape: Annotated[list[str], NoDecode] = Field(
        default=[],
        description="The sizes that an input leaves open, as image=3x224x224, in every model that has it.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level to log, to stderr."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file that one of these names."""
        config = init_settings().get("config") or env_settings().get("config")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=config)

    @field_validator("models", "api_keys", "shape", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Texts, as the environment has them, are lists with commas between; nothing between them is nothing."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("target")
    @classmethod
    def _check_target(cls, target: str | None) -> str | None:
        """A target that there is; of a file its whole path, as other processes look for it from other folders."""
        if target is None:
            return None
        from trnrt.nki.machine.targets import portable_name

        try:
            return portable_name(target)
        except OptionError as error:
            raise ValueError(f"{error}; {error.hint}" if error.hint else str(error)) from None

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, keys: list[SecretStr]) -> list[SecretStr]:
        """An empty key would let everybody in who sends none."""
        if not all(key.get_secret_value().strip() for key in keys):
            raise ValueError("a key is empty")
        return keys

    @model_validator(mode="after")
    def _check_exposure(self) -> ServeSettings:
        """Who listens for others says whom it answers."""
        if not (self.api_keys or self.insecure or is_loopback(self.host)):
            raise ValueError(
                f"{self.host} can be reached from other machines, and there are no keys: set {PREFIX}API_KEYS to keys "
                "of your choice with commas between, or say --insecure to answer everybody"
            )
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> ServeSettings:
        """Each engine has settings that mean nothing to the other."""
        others = _OF_WORKERS if self.engine == "ray" else _OF_RAY
        wrong = [name for name in others if getattr(self, name) != type(self).model_fields[name].default]
        if wrong:
            raise ValueError(f"{flag_of(wrong[0])} has no meaning with --engine {self.engine}: {others[wrong[0]]}")
        return self


def read_settings(flags: Mapping[str, Any]) -> ServeSettings:
    """The settings that these flags, the environment and the file make. OptionError names what is wrong, and where."""
    config = flags.get("config") or os.environ.get(f"{PREFIX}CONFIG")
    if config is not None:
        _check_file(Path(config))
    try:
        return ServeSettings(**flags)
    except ValidationError as error:
        raise OptionError("; ".join(_error_text(dict(item)) for item in error.errors())) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; a name other than localhost may be anybody's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def flag_of(field: str) -> str:
    """The flag that sets a field; what has none is set in the environment."""
    if field == "models":
        return "MODELS"
    return variable_of(field) if field in NO_FLAG else "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    """The environment variable that sets a field."""
    return PREFIX + field.upper()


def _check_file(path: Path) -> None:
    """OptionError unless it is TOML."""
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"can't read the settings in {str(path)!r}: {(error.strerror or str(error)).lower()}"
        ) from None
    except ValueError as error:
        raise OptionError(f"{str(path)!r} is not TOML: {error}", hint="one setting a line: max_batch = 32") from None


def _error_text(item: Mapping[str, Any]) -> str:
    """One of pydantic's errors in the words of this program; a key's value is never shown."""
    field = str(item["loc"][0]) if item["loc"] else ""
    if not field:
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"the settings' file has {field!r}, which is no setting"
    given = "" if field == "api_keys" else f", not {item['input']!r}"
    return f"{flag_of(field)} ({variable_of(field)}): {item['msg'].removeprefix('Value error, ').lower()}{given}"
