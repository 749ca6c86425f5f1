"""The server's settings: their types, limits and defaults.

A flag (``--max-batch``) wins over the environment (``TRNRT_MAX_BATCH``), which wins over the file of ``--config``
(``max_batch = 32``), which wins over the default. ``trnrt.commands.serve`` has the help text of each flag. In the file,
a table ``[model.NAME]`` has settings for one model (``settings_models``), ``[key.NAME]`` a key and its limits
(``settings_keys``).
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from trnrt.errors import OptionError
from trnrt.running.buckets import DEFAULT_BUCKETS
from trnrt.serve.settings_keys import Key, all_keys, read_keys
from trnrt.serve.settings_models import (
    AT_ONCE,
    BY_COMPILING,
    MOST_ROWS,
    Readers,
    check_buckets,
    read_tables,
    settings_of_table,
)
from trnrt.serve.settings_words import own_words

PREFIX = "TRNRT_"
LARGEST_FILE = 4 << 20
"""The largest file of settings, bytes: MOST_KEYS tables take about a tenth of that."""
MULTIPROC = "PROMETHEUS_MULTIPROC_DIR"
"""The folder of several workers' metrics: the supervisor sets it before anything imports prometheus_client."""
TABLES = ("model", "key")
"""Tables of the file, which no flag and no environment variable sets."""
NO_FLAG = ("api_keys", "models", *TABLES)
"""Fields without a flag: everybody on a machine can read a command line's keys; models are arguments."""
RELOADED = (
    *(
        "api_keys",
        *TABLES,
        "allowed_host",
        "insecure",
        "admin",
        "max_concurrency",
        "max_body_mib",
        "max_json_mib",
        "drain_timeout",
    ),
    *(*AT_ONCE, *BY_COMPILING),
)
"""The settings that a reload (SIGHUP) changes; all others need a restart."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_OF_RAY = dict.fromkeys(("replicas", "replica_cpus", "address"), "say --engine ray, too; workers are --workers")
_OF_WORKERS = {
    "workers": "say how many with --replicas",
    "instances": "say how many copies with --replicas",
    "admin": "a model is loaded anew by serving its new file again, and rolls over without a failed request",
    "versions": "Ray serves files, and no folders of versions",
    "canary": "Ray serves files, and no folders of versions",
    "grpc_port": "the workers of --engine local serve gRPC",
}


class ServeSettings(Readers, BaseSettings):
    """Constructed from the flags given; the rest comes from the environment, the file and the defaults."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,  # keys are among them; ``read_settings`` shows what may be shown
    )

    config: Path | None = None
    models: Annotated[list[Path], NoDecode] = Field(
        default=[], description="The models: .onnx files, and bundles of `trnrt compile -o DIR`."
    )
    model_dir: Path | None = None
    follow_links: bool = False
    versions: str = "latest"
    canary: Annotated[list[str], NoDecode] = []
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    grpc_port: int | None = Field(default=None, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)
    instances: int = Field(default=1, ge=1, le=64)
    engine: Literal["local", "ray"] = "local"
    replicas: int = Field(default=1, ge=1, le=1024)
    replica_cpus: float = Field(default=0.5, gt=0, le=256)
    address: str | None = None
    batching: bool = True
    max_batch: int = Field(default=32, ge=1, le=MOST_ROWS)
    buckets: Annotated[list[Annotated[int, Field(ge=1, le=MOST_ROWS)]], NoDecode] = []
    max_delay_ms: float = Field(default=2.0, ge=0, le=10_000)
    max_queue: int = Field(default=256, ge=1)
    max_wait_ms: float = Field(default=500.0, ge=0, le=3_600_000)
    max_rows: int = Field(default=1024, ge=1)
    max_concurrency: int = Field(default=512, ge=1)
    max_body_mib: int = Field(default=64, ge=1, le=2048)
    max_json_mib: int = Field(default=16, ge=1, le=2048)
    max_tensor_elements: int = Field(default=1 << 24, ge=1)
    request_timeout: float = Field(default=30.0, gt=0, le=3600)
    drain_timeout: float = Field(default=30.0, ge=0, le=3600)
    max_connections: int = Field(default=1024, ge=1, le=1_000_000)
    max_header_bytes: int = Field(default=32768, ge=1024, le=1 << 20)
    max_headers: int = Field(default=100, ge=8, le=10_000)
    max_buffered_mib: int = Field(default=256, ge=1)
    header_timeout: float = Field(default=10.0, gt=0, le=3600)
    body_timeout: float = Field(default=20.0, gt=0, le=3600)
    write_timeout: float = Field(default=30.0, gt=0, le=3600)
    keep_alive_timeout: float = Field(default=75.0, gt=0, le=3600)
    api_keys: Annotated[list[SecretStr], NoDecode] = Field(
        default=[],
        description="Keys, separated by commas; clients must send one of them. Without keys everybody is let in.",
    )
    allowed_host: Annotated[list[str], NoDecode] = []
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
    otlp_endpoint: str | None = None
    trace_ratio: float = Field(default=1.0, ge=0, le=1)
    model: Annotated[dict[str, dict[str, Any]], NoDecode] = Field(
        default={}, description="Tables of the file: settings that a model has of its own."
    )
    key: Annotated[dict[str, Key], NoDecode] = Field(
        default={}, description="Tables of the file: keys with names and limits.", repr=False
    )
    _flags: dict[str, Any] = PrivateAttr(default_factory=dict)
    _of_models: dict[str, ServeSettings] = PrivateAttr(default_factory=dict)

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

    @field_validator("model")
    @classmethod
    def _read_models(cls, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Check each table as these settings are checked."""
        return read_tables(cls, tables)

    @field_validator("key", mode="before")
    @classmethod
    def _read_keys(cls, tables: Any) -> dict[str, Key]:
        """Read the keys, and keep their hashes."""
        return read_keys(tables)

    @field_validator("versions", mode="before")
    @classmethod
    def _read_versions(cls, value: Any) -> Any:
        """One policy: a file may have a list, or a number."""
        texts = [str(one).strip() for one in (value if isinstance(value, list) else str(value).split(","))]
        if texts not in (["latest"], ["all"]) and not all(_VERSION.fullmatch(text) for text in texts):
            raise ValueError("it is latest, all, or versions with commas between, as 2,3")
        return ",".join(texts)

    @field_validator("canary")
    @classmethod
    def _check_canaries(cls, canaries: list[str]) -> list[str]:
        """Refuse texts other than [NAME:]VERSION=SHARE."""
        from trnrt.serve.hosting.catalog import parse_canary

        try:
            for text in canaries:
                parse_canary(text)
        except OptionError as error:
            raise ValueError(f"{error}; {error.hint}") from None
        return canaries

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        """Refuse what is no URL of HTTP: spans would be lost without a word."""
        parts = urlsplit(endpoint or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("it is the URL of a collector, as http://127.0.0.1:4318")
        return endpoint

    @field_validator("allowed_host")
    @classmethod
    def _check_hosts(cls, hosts: list[str]) -> list[str]:
        """Refuse what no Host header can be, such as a URL."""
        for host in hosts:
            if host != "*" and not _HOST.fullmatch(host):
                raise ValueError(f"{host!r} is no host; it is a name or an address, and perhaps a port, or * for any")
        return [host.lower() for host in hosts]

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
        if not (self.has_keys or self.insecure or is_loopback(self.host)):
            raise ValueError(
                f"{self.host} can be reached from other machines, and there are no keys: set {PREFIX}API_KEYS to keys "
                "of your choice with commas between, or say --insecure to answer everybody"
            )
        return self

    @model_validator(mode="after")
    def _check_access(self) -> ServeSettings:
        """Refuse keys that contradict each other or the rest."""
        all_keys(self.api_keys, self.key)
        for name, key in self.key.items():
            if key.admin and not self.admin:
                raise ValueError(f"[key.{name}]: admin = true has no meaning without --admin (admin = true at the top)")
            if key.rows_per_second is not None and self.engine == "ray":
                raise ValueError(f"[key.{name}]: rows_per_second has no meaning with --engine ray: leave it out")
        return self

    @model_validator(mode="after")
    def _check_models(self) -> ServeSettings:
        """Refuse settings of a model that contradict each other or the server's."""
        check_buckets("the settings", {field: getattr(self, field) for field in self.model_fields_set})
        for name, table in self.model.items():
            check_buckets(f"[model.{name}]", table)
            own = self.for_model(name)
            if own.pad and not own.lengths:
                raise ValueError(f"[model.{name}]: pad has no meaning without lengths: name the lengths, too")
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
        several = [name for name, table in self.model.items() if self.engine == "ray" and table.get("instances", 1) > 1]
        if several:
            text = f"[model.{several[0]}]: instances has no meaning with --engine ray: {_OF_WORKERS['instances']}"
            raise ValueError(text)
        return self

    @property
    def has_keys(self) -> bool:
        """True if requests need a key."""
        return bool(self.api_keys or self.key)

    @property
    def named_keys(self) -> dict[str, Key]:
        """All keys by name."""
        return all_keys(self.api_keys, self.key)

    @property
    def bucket_sizes(self) -> tuple[int, ...]:
        """The batch sizes to compile, ascending; the last one is the most rows of a merged batch."""
        if self.buckets:
            return tuple(self.buckets)
        return (*(size for size in DEFAULT_BUCKETS if size < self.max_batch), self.max_batch)

    @property
    def most_instances(self) -> int:
        """The instances of the model with the most of them."""
        return max([self.instances, *(self.for_model(name).instances for name in self.model)])

    def for_model(self, name: str) -> ServeSettings:
        """The settings for a model: these, with those of its table. These themselves if it has none."""
        if name not in self.model:
            return self
        if name not in self._of_models:
            self._of_models[name] = self.model_copy(update=settings_of_table(self.model[name]))
        return self._of_models[name]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values; its models' settings are made anew."""
        copied = super().model_copy(update=update, deep=deep)
        copied._of_models = {}
        return copied

    def read_again(self) -> ServeSettings:
        """The settings as the file, the key files and the environment have them now. OptionError as at the start."""
        return read_settings(self._flags)


def read_settings(flags: Mapping[str, Any]) -> ServeSettings:
    """The settings from these flags, the environment and the file. OptionError names the wrong value and its place."""
    try:
        settings = ServeSettings(**flags)
    except ValidationError as error:
        texts = [_error_text(dict(item)) for item in error.errors()]
        file = flags.get("config") or os.environ.get(variable_of("config"))
        place = f"{str(file)!r}: " if file and texts[0].startswith(("[", "the settings' file")) else ""
        raise OptionError(place + "; ".join(texts)) from None
    settings._flags = dict(flags)
    return settings


def check_names(settings: ServeSettings, models: Iterable[str]) -> None:
    """OptionError if a table, or a key's list, names a model that is none of ``models``."""
    known = list(models)
    named = [(f"[model.{name}]", name) for name in settings.model]
    named += [(f"[key.{key}] models", name) for key, own in settings.key.items() for name in own.models or ()]
    for place, name in named:
        if name not in known:
            raise OptionError(
                f"{str(settings.config)!r}: {place}: there is no model {name!r}; the models are {', '.join(known)}",
                hint="a model's name is its file's, without the ending",
            )


def is_loopback(host: str) -> bool:
    """True if only this machine reaches the address; any name but localhost may be reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_name(host: str) -> str:
    """The name or address in a Host header, in lower case, without the port and an address's brackets."""
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def flag_of(field: str) -> str:
    """The flag that sets a field; without one, the environment variable or the file's table."""
    if field == "models":
        return "MODELS"
    if field in TABLES:
        return f"[{field}.NAME]"
    return variable_of(field) if field in NO_FLAG else "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    """The environment variable that sets a field; the file's table if none does."""
    return f"[{field}.NAME]" if field in TABLES else PREFIX + field.upper()


def _check_file(path: Path) -> None:
    """OptionError unless it is TOML. Anything but a regular file of a sane size could block the server that reads it
    again, or fill its memory."""
    try:
        found = path.stat()
        if not (S_ISREG(found.st_mode) or S_ISDIR(found.st_mode)) or found.st_size > LARGEST_FILE:
            limit = f"is no regular file of up to {LARGEST_FILE >> 20} MiB"
            raise OptionError(f"can't read the settings in {str(path)!r}: it {limit}")
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
        near = [f"; did you mean {name!r}?" for name in get_close_matches(field, ServeSettings.model_fields, 1)]
        return f"the settings' file has {field!r}, which is no setting{''.join(near)}"
    if field in TABLES:
        read = item["type"] == "value_error"  # else its value is no table, and may be a key
        text = str(item["msg"]).removeprefix("Value error, ")
        return text if read else f"{flag_of(field)}: it is no table of the settings' file"
    given = "" if field in ("api_keys", "canary") else f", not {item['input']!r}"
    return f"{flag_of(field)} ({variable_of(field)}): {own_words(str(item['msg']))}{given}"
