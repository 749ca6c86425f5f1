"""The targets: the data of each kind of NeuronCore and of the machines that have it, one file each.

A target is a file of this folder (``trn1.toml`` ...), or a user's own file in the place of a name. All of trnrt reads a
target's properties from here, and never decides by its name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.nki.errors import OptionError
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.modes import add_generation
from trnrt.nki.machine.pace import TIMING_VARIABLE, Timing
from trnrt.nki.machine.reading import TableReader, merge

if TYPE_CHECKING:
    from trnrt.nki.machine.overlays import Overlay

DEFAULT_TARGET = "trn2"

_FOLDER = Path(__file__).parent
_SUFFIX = ".toml"
_LARGEST_FILE = 2**20


@dataclass(frozen=True, slots=True)
class Device:
    """The chip, and how AWS's software uses it. ``cores``: physical NeuronCores of a chip.

    ``families``: the first letters of its EC2 instance types. ``most_lnc``: the most physical cores of a logical core;
    ``default_lnc``: the runtime's default, 0 if that is not documented. ``nki_supported``: AWS states that NKI kernels
    run on it, by ``nki_supported_source``. ``nki_for`` and ``nki_against``: pages of the SDK that contradict each other
    on that.
    """

    families: tuple[str, ...]
    cores: int
    cores_source: str
    most_lnc: int
    default_lnc: int
    nki_supported: bool
    nki_supported_source: str
    nki_for: tuple[str, ...]
    nki_against: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """The link between the host and a NeuronCore: GB/s, and the fixed microseconds of a transfer."""

    gbps: float
    gbps_source: str
    latency_us: float
    latency_us_source: str


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An EC2 instance type: its chips, virtual CPUs and host memory, and the source of these figures."""

    name: str
    chips: int
    vcpus: int
    memory_gib: int
    source: str


@dataclass(frozen=True, slots=True)
class Target:
    """The parameters of one NeuronCore generation. Sizes are bytes of one partition.

    ``aliases``: other names for it in AWS's NEURON_PLATFORM_TARGET_OVERRIDE.
    """

    name: str
    aliases: tuple[str, ...]
    generation: int
    partitions: int
    sbuf_bytes: int
    sbuf_reserved_bytes: int
    psum_banks: int
    psum_bank_bytes: int
    stationary_max: int
    moving_max: int
    moving_max_16bit: int
    matmul_dtypes: tuple[str, ...]
    psum_matmul_dtypes: tuple[str, ...]
    matmul_crosses_banks: bool
    accumulates_on_foreign: bool
    activation_scalar_bias: bool
    scalar_engine_tensor_copy: bool
    scalar_engine_tensor_scalar: bool
    bit_accurate_transpose: bool
    hardware_dge: bool
    dma_priorities: bool
    device: Device
    host_link: Link
    instances: tuple[InstanceType, ...]
    timing: Timing

    @property
    def note(self) -> str:
        """A note for readers of predictions for this target; "" for most targets."""
        if self.device.nki_supported:
            return ""
        return f"running NKI kernels on {self.name} is outside AWS's statement ({self.device.nki_supported_source})"

    @property
    def has_double_rows(self) -> bool:
        """True if the tensor engine multiplies 8-bit floats at twice the rate of 16 bits (trainium2_arch.rst)."""
        return self.generation >= 3

    @property
    def sbuf_usable_bytes(self) -> int:
        return self.sbuf_bytes - self.sbuf_reserved_bytes

    @property
    def psum_bytes(self) -> int:
        return self.psum_banks * self.psum_bank_bytes


@dataclass(frozen=True, slots=True)
class TargetFile:
    """A user's own target and its file."""

    target: Target
    path: Path
    content: bytes


_given: dict[str, TargetFile] = {}
"""The users' own targets by name, once their files are read: plans, profiles and reports only store the name."""


@cache
def target_names() -> tuple[str, ...]:
    """The names of the targets that are part of trnrt."""
    return tuple(sorted(path.stem for path in _FOLDER.glob(f"*{_SUFFIX}")))


def known_targets() -> list[Target]:
    """The targets that are part of trnrt, then those whose files this process has read; as in their files, without
    TRNRT_TIMING's numbers."""
    return [*map(_own_target, target_names()), *(given.target for given in _given.values())]


def overlay_in_use() -> Overlay | None:
    """The overlay in TRNRT_TIMING; OptionError if that is none."""
    path = os.environ.get(TIMING_VARIABLE)
    return overlay_at(path) if path else None


def overlay_of(name: str) -> Overlay | None:
    """The overlay in use, if it is for this target."""
    overlay = overlay_in_use()
    return overlay if overlay is not None and overlay.like == get_target(name).name else None


@cache
def overlay_at(path: str) -> Overlay:
    """The overlay in a file, read once; OptionError if it is wrong, or for no target of trnrt."""
    from trnrt.nki.machine.overlays import read_overlay

    overlay = read_overlay(Path(path))
    if overlay.like not in target_names():
        hint = f"it is one of {', '.join(target_names())}"
        raise OptionError(f"{path}: like = {overlay.like!r} is no target of trnrt", hint=hint)
    return overlay


@cache
def _overlaid(name: str, overlay: Overlay) -> Target:
    target = _own_target(name)
    return replace(target, timing=overlay.apply(target.timing))


def get_target(name: str | os.PathLike[str]) -> Target:
    """The target with this name, alias or file; OptionError if there is none, or the file is wrong.

    A name that ends in ``.toml``, or has a folder, is a file; case doesn't matter in the name of another one. A target
    of TRNRT_TIMING's overlay has its numbers.
    """
    found, overlay = _find_target(os.fspath(name)), overlay_in_use()
    return found if overlay is None or overlay.like != found.name else _overlaid(found.name, overlay)


def _find_target(text: str) -> Target:
    """The target with its own numbers."""
    if text.endswith(_SUFFIX) or os.sep in text:
        return _read_given(Path(text))
    if text in target_names():
        return _own_target(text)
    if text in _given:
        return _given[text].target
    lower = text.lower()
    if lower in target_names():
        return _own_target(lower)
    found = next((target for target in known_targets() if lower in map(str.lower, target.aliases)), None)
    if found is None:
        raise OptionError(f"unknown target {text!r}", hint=_target_hint())
    return found


def file_of(name: str) -> TargetFile | None:
    """The file of a user's own target; None for one that is part of trnrt."""
    return _given.get(name)


def portable_name(name: str | os.PathLike[str]) -> str:
    """The name by which another process of this machine finds the target: its own, or its file's absolute path."""
    given = _given.get(get_target(name).name)
    return os.fspath(name) if given is None else str(given.path)


def cache_name(name: str) -> str:
    """The target's name, with a digest of its data if it is a user's own or has an overlay's numbers."""
    own = name not in _given and overlay_of(name) is None
    return name if own else f"{name}@{data_digest(name)}"


def data_digest(name: str) -> str:
    """A digest of the target's data: what its predictions depend on, beside the code."""
    import hashlib  # it loads OpenSSL

    return hashlib.sha256(repr(get_target(name)).encode()).hexdigest()[:16]


def place_of(name: str) -> str:
    """The path of the target's file, for people."""
    given = _given.get(name)
    return f"trnrt/nki/machine/{name}{_SUFFIX}" if given is None else given.path.name


@cache
def _own_target(name: str) -> Target:
    return _parse(name + _SUFFIX, (_FOLDER / f"{name}{_SUFFIX}").read_bytes())


def _read_given(path: Path) -> Target:
    """The target of a user's file. A name has one target in a process: another one of the same name is an error."""
    target, content = _load(path.absolute(), *_stamp(path), str(path))
    name, before = target.name, _given.get(target.name)
    if name in target_names() or before is not None:
        known = _own_target(name) if before is None else before.target
        if known == target:
            return known
        where = "is part of trnrt" if before is None else f"was read from {before.path} with other values"
        raise OptionError(f"{path}: name = {name!r}, and {name} {where}", hint="give it another name")
    add_generation(target.generation)
    _given[name] = TargetFile(target, path.absolute(), content)
    return target


def _stamp(path: Path) -> tuple[int, int]:
    """Time and size of the file, which change when it does; OptionError if there is no such file."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"can't read the target in {str(path)!r}: {reason}", hint=_target_hint()) from None
    return found.st_mtime_ns, found.st_size


def _target_hint() -> str:
    return f"targets are {', '.join((*target_names(), *_given))}, or a file such as ./trn4{_SUFFIX}"


@cache
def _load(path: Path, changed: int, size: int, shown: str) -> tuple[Target, bytes]:
    """The target in a file, and the file's bytes; read again after a change."""
    if size > _LARGEST_FILE or not path.is_file():
        raise OptionError(f"{shown} is no file of a target", hint=f"it is a TOML file of at most {_LARGEST_FILE} bytes")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OptionError(f"can't read the target in {shown!r}: {error.strerror}") from None
    return _parse(shown, content), content


def _parse(file: str, content: bytes) -> Target:
    """The target that a file describes; OptionError names a wrong key."""
    reader = TableReader(file)
    try:
        data: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise reader.refuse(f"it is not TOML: {error}", "one key a line: sbuf_bytes = 229376") from None
    if (like := data.pop("like", None)) is not None:
        data = _like(reader, like, data)
    target: Target = reader.table(Target, data)
    _check_values(reader, target)
    return target


def _like(reader: TableReader, like: object, changes: dict[str, Any]) -> dict[str, Any]:
    """The data of another target with these changes. No measurement was compared with the result."""
    if like not in target_names():
        raise reader.refuse(f"like = {like!r}", f"it is one of {', '.join(target_names())}")
    if "name" not in changes:
        raise reader.refuse("name is missing", f'it is not {like} any more: name = "..."')
    base = tomllib.loads((_FOLDER / f"{like}{_SUFFIX}").read_text(encoding="utf-8"))
    base["timing"]["compared"] = False
    return merge(base, changes)


def _check_values(reader: TableReader, target: Target) -> None:
    """Check values that depend on other values."""
    _check_dtypes(reader, "matmul_dtypes", target.matmul_dtypes)
    _check_dtypes(reader, "psum_matmul_dtypes", target.psum_matmul_dtypes)
    if target.sbuf_reserved_bytes >= target.sbuf_bytes:
        what = f"sbuf_reserved_bytes = {target.sbuf_reserved_bytes}"
        raise reader.refuse(what, f"it is less than sbuf_bytes, {target.sbuf_bytes}")
    if target.partitions % target.timing.dma.engines:
        what = f"timing.dma.engines = {target.timing.dma.engines}"
        raise reader.refuse(what, f"each serves as many of the {target.partitions} partitions")
    if "other" not in dict(target.timing.tensor.peak_tflops):
        raise reader.refuse("timing.tensor.peak_tflops.other is missing", "it is the rate of all other dtypes")
    if target.device.default_lnc > target.device.most_lnc:
        what = f"device.default_lnc = {target.device.default_lnc}"
        raise reader.refuse(what, f"it is at most device.most_lnc, {target.device.most_lnc}")
    if not target.instances:
        raise reader.refuse("instances is empty", "it has one table an EC2 instance type: capacity is counted in them")
    for k, one in enumerate(target.timing.uncertain):
        for end, values in (("least", one.least), ("most", one.most)):
            for name, value in values:
                reader.named_value(Timing, name, value, f"timing.uncertain[{k}].{end}")


def _check_dtypes(reader: TableReader, key: str, names: Iterable[str]) -> None:
    for name in names:
        try:
            as_dtype(name)
        except TypeError as error:
            raise reader.refuse(f"{key} has {name!r}", str(error)) from None
