"""``install``: the simulator under the names of AWS's package, so that ``import nki`` finds it.

If AWS's `nki` is missing (the PyPI package of that name is an empty placeholder and counts as missing), the modules of
``_CONTENTS`` are added to ``sys.modules``. They have AWS's names and hold the simulator's functions. A name that they
lack raises an error that says what to use instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trnrt.nki.level import Level, choose_level, set_default_level, use_level
from trnrt.nki.machine.dtypes import DTYPES, DType
from trnrt.nki.sim import compiler, isa, language
from trnrt.nki.sim.kernel import jit, simulate
from trnrt.nki.sim.tensor import NkiTensor

if TYPE_CHECKING:
    from trnrt.nki.sim.subset_api import ApiTable

__all__ = ["aws_nki_installed", "install", "install_briefly", "uninstall"]

SEAM_VARIABLE = "TRNRT_NKI"

# Left out of the simulator on purpose.
_LEFT_OUT = {
    "nki.collectives": "collectives between devices are left out of the simulator",
    "nki.compiler": "the compiler's own functions are left out of the simulator",
    "nki.experimental": "experimental functions are left out of the simulator",
    "neuronxcc": (
        "the old namespace (NKI Beta 1) is not installed here: `trnrt nki run FILE` and trnrt.nki.install(legacy=True) "
        "run its kernels as they are, `trnrt nki port FILE` rewrites them for today's nki, and `trnrt nki check FILE` "
        "lists what that changed"
    ),
}


class tensor(NkiTensor):  # noqa: N801 - NKI's name
    """A tensor parameter, for annotations: ``nt.tensor[128, 512]``. It checks nothing."""

    __slots__ = ()

    def __class_getitem__(cls, shape: Any) -> type[tensor]:
        return cls


class mutable_tensor(tensor):  # noqa: N801 - NKI's name
    """A tensor parameter that the kernel writes, for annotations."""

    __slots__ = ()


def aws_nki_installed() -> bool:
    """True if AWS's `nki` is installed. The PyPI package of that name is an empty placeholder without these modules."""
    with _hide_ours():
        return _is_importable("nki.language") and _is_importable("nki.isa")


def install(nki: Level | str | None = None, *, legacy: bool = False) -> bool:
    """Make ``import nki`` import the simulator in this process; return true if it does.

    ``nki``: the release of NKI, "0.6" or "0.7", whose names the modules have and whose language kernels are traced by;
    by default that of ``TRNRT_NKI_VERSION``, else 0.7. If AWS's package is installed, do nothing and return False,
    unless ``TRNRT_NKI=simulator``. A second call changes nothing, unless it names another release, or asks for more.
    ``legacy``: also the old namespace, ``neuronxcc.nki`` (Beta 1, SDK 2.26), unless AWS's package of it is installed.

    Raises:
        OptionError: if there is no such level.
    """
    level = choose_level(nki)
    if _State.saved is not None and (level is not _State.level or (legacy and not _State.legacy)):
        uninstall()
    if _State.saved is not None:
        return True
    if aws_nki_installed() and os.environ.get(SEAM_VARIABLE) != "simulator":
        return False
    neuronxcc = _is_importable("neuronxcc")
    wanted = [name for name in _CONTENTS if name.startswith("nki") or not (neuronxcc or legacy)]
    if "nki.compiler" not in _api(level).modules:
        wanted.remove("nki.compiler")
    modules = [_Module(name, _CONTENTS[name](level)) for name in wanted]
    _State.level, _State.legacy, _State.serves_legacy = level, legacy, legacy and not neuronxcc
    _State.chose = nki is not None
    if _State.chose:
        set_default_level(level)
    _State.saved = _remove_modules("nki") | ({} if neuronxcc else _remove_modules("neuronxcc"))
    for module in modules:
        _register(module)
    sys.meta_path.insert(0, _FINDER)
    return True


def uninstall() -> None:
    """Undo ``install``: restore the former meaning of ``import nki``."""
    if _State.saved is not None:
        sys.meta_path.remove(_FINDER)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Module)]:
            del sys.modules[name]
        sys.modules.update(_State.saved)
        namespaces = sys.modules.get("trnrt.nki.legacy.namespaces")
        if namespaces is not None:
            namespaces.remove_log_level()
        _State.saved, _State.level, _State.legacy, _State.serves_legacy = None, None, False, False
        if _State.chose:
            set_default_level(None)


@contextmanager
def install_briefly(nki: Level | str | None = None, *, legacy: bool = False) -> Iterator[bool]:
    """Install the simulator as ``nki`` inside the context; yields False if AWS's package stays in its place.

    ``nki`` and ``legacy``: as in ``install``; by default the level of an earlier installation stays.
    """
    before, had_legacy = _State.level, _State.legacy
    with use_level(nki):
        try:
            yield install(nki, legacy=legacy or had_legacy)
        finally:
            if before is None:
                uninstall()
            else:
                install(before, legacy=had_legacy)


class _State:
    """The modules that ``install`` removed from ``sys.modules``, and the level of its own ones; None if there are none.

    ``legacy``: the old namespace was asked for; ``serves_legacy``: it is ours, and made when it is imported.
    ``chose``: it chose the process's level, too.
    """

    saved: dict[str, ModuleType] | None = None
    level: Level | None = None
    legacy = False
    serves_legacy = False
    chose = False


class _Module(ModuleType):
    """One of our modules under AWS's name; a missing name raises an error that says what to use."""

    def __init__(self, name: str, contents: Mapping[str, Any]) -> None:
        super().__init__(name, f"{name}, on trnrt's simulated NeuronCore.")
        self.__spec__ = ModuleSpec(name, None, origin="trnrt", is_package=True)
        self.__path__: list[str] = []  # a package, so that `from nki.language import no_such_name` asks the finder
        self.__package__ = name
        self._contents = contents
        self.__all__ = [public for public in contents if not public.startswith("_")]

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._contents})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in self._contents:
            return self.__dict__.setdefault(name, self._contents[name])
        raise AttributeError(_refusal(f"{self.__name__}.{name}"), name=name, obj=self)


class _Finder:
    """Makes the modules of the old namespace with its first import, and refuses unregistered modules below ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "neuronxcc" and _State.serves_legacy:
            return _register_legacy()
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if isinstance(parent, _Module):
            # Without its name: Python drops a ModuleNotFoundError for the very name of a from-import.
            raise ModuleNotFoundError(_refusal(fullname))
        return None


class _Registered:
    """The loader of a module that is registered already."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has its contents."""


def _register_legacy() -> ModuleSpec:
    """Make the modules of the old namespace, for which today's kernels don't wait; give the spec of the top one."""
    from trnrt.nki.legacy.namespaces import CONTENTS, add_log_level

    for name, make in CONTENTS.items():
        _register(_Module(name, make()))
    add_log_level()
    spec: ModuleSpec = sys.modules["neuronxcc"].__dict__["__spec__"]
    loader: Any = _Registered()  # not a Loader of importlib.abc, whose import takes many other modules
    spec.loader = loader
    return spec


_FINDER = _Finder()


def _api(level: Level | None) -> ApiTable:
    """The names of NKI at a level. ``import trnrt.nki`` needs none, and must not wait for them."""
    from trnrt.nki.sim.subset_api import load_api

    return load_api(level)


def _refusal(path: str) -> str:
    """Why the simulator lacks ``path``, and what to use instead."""
    if _State.legacy and f"{path}.".startswith("neuronxcc."):
        from trnrt.nki.legacy.api import refuse

        return refuse(path)
    api = _api(_State.level)
    known = {part: why for part, why in _LEFT_OUT.items() if part not in api.modules}
    left_out = next((why for part, why in known.items() if f"{path}.".startswith(f"{part}.")), None)
    if left_out is not None:
        return f"{path}: {left_out}"
    if api.unknown(path) is None and path.rpartition(".")[0] in api.modules:
        return f"{path} is in NKI {api.nki_version}, but trnrt's simulator does not have it"
    from trnrt.nki.sim.subset_api import advice

    return ". ".join(advice(path, api))


def _register(module: _Module) -> None:
    name = module.__name__
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)


def _remove_modules(top: str) -> dict[str, ModuleType]:
    """Remove the module ``top`` and those below it from ``sys.modules``; return them."""
    names = [name for name in sys.modules if name == top or name.startswith(f"{top}.")]
    return {name: sys.modules.pop(name) for name in names}


def _is_importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except Exception:  # importing a placeholder's package may raise anything
        return False


@contextmanager
def _hide_ours() -> Iterator[None]:
    """Hide our own modules and finder while looking for AWS's."""
    if _State.saved is None:
        yield
        return
    ours = {name: module for name, module in sys.modules.items() if isinstance(module, _Module)}
    for name in ours:
        del sys.modules[name]
    sys.meta_path.remove(_FINDER)
    try:
        yield
    finally:
        sys.meta_path.insert(0, _FINDER)
        sys.modules.update(ours)


class _Public(Mapping[str, Any]):
    """The names of the API's module ``path`` that ``module`` has; each is loaded when it is asked for."""

    def __init__(self, module: ModuleType, path: str, level: Level) -> None:
        self._module = module
        self._names = sorted(_api(level).modules[path].names() & set(dir(module)))

    def __getitem__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _enumerations(level: Level) -> dict[str, Any]:
    public = _Public(isa, "nki.isa", level)
    return {name: value for name, value in vars(isa).items() if name in public and isinstance(value, type)}


# What each module holds at a level. There is an nki.compiler for kernels from 0.7 on.
_CONTENTS: dict[str, Callable[[Level], Mapping[str, Any]]] = {
    "nki": lambda level: {"jit": jit, "simulate": simulate},
    "nki.compiler": lambda level: _Public(compiler, "nki.compiler", level),
    "nki.language": lambda level: _Public(language, "nki.language", level),
    "nki.isa": lambda level: _Public(isa, "nki.isa", level),
    "nki.isa.constants": _enumerations,
    "nki.typing": lambda level: {"tensor": tensor, "mutable_tensor": mutable_tensor},
    "nki.dtype": lambda level: {"DType": DType, **DTYPES},
    "nki.tensor": lambda level: {"NkiTensor": NkiTensor},
    "neuronxcc": lambda level: {},
    "neuronxcc.nki": lambda level: {},
    "neuronxcc.nki.typing": lambda level: {"tensor": tensor, "mutable_tensor": mutable_tensor},
}
