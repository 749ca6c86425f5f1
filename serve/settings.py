"""The server's settings: their types, limits and defaults.

A flag (``--max-batch``) wins over the environment (``TRNRT_MAX_BATCH``), which wins over the file of ``--config``
(``max_batch = 32``), which wins over the default. ``trnrt.commands.serve`` has the help text of each flag.
"""

from __future__ import annotations

import ipaddress
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
"""The folder of several workers' metrics: the supervisor sets it before anything imports prometheus_client."""
NO_FLAG = ("api_keys", "models")
"""Fields without a flag: everybody on a machine can read a command line's keys; models are arguments."""

_OF_RAY = dict.fromkeys(("replicas", "replica_cpus", "address"), "say --engine ray, too; workers are --workers")
_OF_WORKERS = {
    "workers": "say how many with --replicas",
    "admin": "a model is loaded anew by serving its new file again, and rolls over without a failed request",
}


class ServeSettings(BaseSettings):
    """Constructed from the flags given; the rest comes from the environment, the file and the defaults."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    config: Path | None = None
    models: Annotated[list[Path], NoDecode] = Field(default=[], description="The models, .onnx files.")
    model_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)
    engine: Literal["local", "ray"] = "local"
    replicas: int = Field(default=1, ge=1, le=1024)
    replica_cpus: float = Field(default=0.5, gt=0, le=256)
    address: str | None = None
    batching: bool = True
    max_batch: int = Field(default=32, ge=1, le=1024)
    max_delay_ms: float = Field(default=2.0, ge=0, le=10_000)
    max_queue: int = Field(default=256, ge=1)
    max_concurrency: int = Field(default=512, ge=1)
    max_body_mib: int = Field(default=64, ge=1, le=2048)
    max_json_mib: int = Field(default=16, ge=1, le=2048)
    max_tensor_elements: int = Field(default=1 << 24, ge=1)
    request_timeout: float = Field(default=30.0, gt=0, le=3600)
    drain_timeout: float = Field(default=30.0, ge=0, le=3600)
    api_keys: Annotated[list[SecretStr], NoDecode] = Field(
        default=[],
        description="Keys, separated by commas; clients must send one of them. Without keys everybody is let in.",
    )
    insecure: bool = False
    admin: bool = False
    shadow: float = Field(default=0.0, ge=0, le=1)
    target: str | None = None
    dtype: Literal["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"] = "float32"
    calibration: Path | None = None
    narrow: Literal["faster", "all"] = "faster"
    backend: Literal["auto", "simulator", "neuron"] = "auto"
    lnc: int | None = Field(default=None, ge=1, le=2)
    cores: int = Field(default=1, ge=1)
    compiled: Path | None = None
    route: Literal["neff", "trace", "torchneuron", "jit"] | None = None
    allow_unsupported_device: bool = False
    fallback: Literal["none", "onnxruntime"] = "none"
    shape: Annotated[list[str], NoDecode] = []
    lengths: Annotated[list[Annotated[int, Field(ge=1)]], NoDecode] = []
    pad: Annotated[list[str], NoDecode] = []
    max_instructions: int | None = Field(default=None, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

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
        if config is not None:
            _check_file(Path(config))
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=config)

    @field_validator("max_instructions", mode="before")
    @classmethod
    def _read_budget(cls, value: Any) -> Any:
        """``none`` as 0."""
        return 0 if isinstance(value, str) and value.strip().lower() == "none" else value

    @field_validator("models", "api_keys", "shape", "lengths", "pad", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Split texts, as in the environment, at their commas."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("target")
    @classmethod
    def _check_target(cls, target: str | None) -> str | None:
        """Look the target up; make a file's path absolute, as other processes have other working directories."""
        if target is None:
            return None
        from trnrt.nki.machine.targets import portable_name

        try:
            return portable_name(target)
        except OptionError as error:
            raise ValueError(f"{error}; {error.hint}" if error.hint else str(error)) from None

    @field_validator("pad")
    @classmethod
    def _check_numbers(cls, pad: list[str]) -> list[str]:
        """Refuse texts other than INPUT=NUMBER."""
        from trnrt.running.lengths import parse_pad

        try:
            for text in pad:
                parse_pad(text)
        except OptionError as error:
            raise ValueError(f"{error}; {error.hint}") from None
        return pad

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, keys: list[SecretStr]) -> list[SecretStr]:
        """Refuse an empty key: it would let in everybody who sends none."""
        if not all(key.get_secret_value().strip() for key in keys):
            raise ValueError("a key is empty")
        return keys

    @model_validator(mode="after")
    def _check_exposure(self) -> ServeSettings:
        """Refuse to listen for other machines without keys."""
        if not (self.api_keys or self.insecure or is_loopback(self.host)):
            raise ValueError(
                f"{self.host} can be reached from other machines, and there are no keys: set {PREFIX}API_KEYS to keys "
                "of your choice with commas between, or say --insecure to answer everybody"
            )
        return self

    @model_validator(mode="after")
    def _check_pads(self) -> ServeSettings:
        """Refuse pads without lengths."""
        if self.pad and not self.lengths:
            raise ValueError("--pad has no meaning without --lengths: name the lengths to compile for, too")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> ServeSettings:
        """Refuse settings of the other engine."""
        others = _OF_WORKERS if self.engine == "ray" else _OF_RAY
        wrong = [name for name in others if getattr(self, name) != type(self).model_fields[name].default]
        if wrong:
            raise ValueError(f"{flag_of(wrong[0])} has no meaning with --engine {self.engine}: {others[wrong[0]]}")
        return self


def read_settings(flags: Mapping[str, Any]) -> ServeSettings:
    """The settings from these flags, the environment and the file. OptionError names the wrong value and its place."""
    try:
        return ServeSettings(**flags)
    except ValidationError as error:
        raise OptionError("; ".join(_error_text(dict(item)) for item in error.errors())) from None


def is_loopback(host: str) -> bool:
    """True if only this machine reaches the address; any name but localhost may be reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def flag_of(field: str) -> str:
    """The flag that sets a field; without one, the environment variable."""
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
    """One of pydantic's errors in our words; never a key's value."""
    field = str(item["loc"][0]) if item["loc"] else ""
    if not field:
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"the settings' file has {field!r}, which is no setting"
    given = "" if field == "api_keys" else f", not {item['input']!r}"
    return f"{flag_of(field)} ({variable_of(field)}): {item['msg'].removeprefix('Value error, ').lower()}{given}"
