"""Our functions take the arguments of NKI, in its order and with its defaults."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

from trnrt.nki import nisa, nki, nl
from trnrt.nki.machine.operators import Operator
from trnrt.nki.sim import tensor

API = json.loads((Path(tensor.__file__).parent / "nki_api_0_6.json").read_text(encoding="utf-8"))["modules"]
ADDED_BY_0_7 = json.loads((Path(tensor.__file__).parent / "nki_api_0_7.json").read_text(encoding="utf-8"))["modules"]
MODULES = {"nki": nki, "nki.isa": nisa, "nki.language": nl}
# What trnrt adds, after the arguments of NKI.
ADDED = {"nki.simulate": ["target", "strict", "precise", "capacity", "nki"]}
ENUMS = ("engine", "reduce_cmd", "dge_mode", "oob_mode", "matmul_perf_mode", "nc_version")


def functions() -> list[tuple[str, Callable[..., Any], Sequence[Sequence[str]]]]:
    """(name, ours, its arguments in NKI) of every function and view method that we have."""
    found = []
    for module, ours in MODULES.items():
        changed = {name: entry["parameters"] for name, entry in ADDED_BY_0_7[module]["functions"].items()}
        for name, arguments in (API[module]["functions"] | changed).items():
            function = getattr(ours, name, None)
            if function is not None and not isinstance(function, Operator):
                found.append((f"{module}.{name}", function, arguments))
    for name, arguments in API["nki.language"]["classes"]["NkiTensor"]["methods"].items():
        method = getattr(nl.NkiTensor, name, None)
        if inspect.isfunction(method) and not name.startswith("__"):
            found.append((f"NkiTensor.{name}", method, arguments))
    return found


def shown(default: object) -> str:
    """A default as the API's data writes it."""
    if isinstance(default, nl.MemoryRegion):
        return default.name
    if isinstance(default, Operator):
        return default.name
    return f"{type(default).__name__.lower()}.{default.name}" if isinstance(default, Enum) else repr(default)


FUNCTIONS = functions()


def test_there_are_functions() -> None:
    names = {name for name, _, _ in FUNCTIONS}
    assert {"nki.jit", "nki.isa.dma_copy", "nki.language.ndarray", "NkiTensor.reshape"} <= names
    assert len(names) > 25


@pytest.mark.parametrize(("name", "function", "arguments"), FUNCTIONS, ids=[name for name, _, _ in FUNCTIONS])
def test_arguments_are_those_of_nki(
    name: str, function: Callable[..., Any], arguments: Sequence[Sequence[str]]
) -> None:
    """Ours are the first ones of NKI's, so that none is missing in between; what is left out fails by its name."""
    ours = list(inspect.signature(function).parameters.values())
    while ours and ours[-1].name in ADDED.get(name, []):
        ours.pop()
    arguments = [argument for argument in arguments if argument != ["*"]]
    for parameter, (argument, *default) in zip(ours, arguments, strict=False):
        if argument.startswith("*"):
            assert str(parameter).startswith(argument)
            continue
        assert parameter.name == argument
        if default == ["..."]:
            continue  # the reference leaves it out; its text says what it is
        assert [shown(parameter.default)] * (parameter.default is not parameter.empty) == default
    assert len(ours) <= len(arguments)
    if name.startswith("nki.isa."):
        assert len(ours) == len(arguments)


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_nki_s_members(name: str) -> None:
    ours = getattr(nisa, name)
    members = {member.name: repr(member.value) for member in ours}
    assert members == API["nki.isa"]["classes"][name]["members"]


def test_modes_show_their_nki_name() -> None:
    assert repr(nisa.reduce_cmd.reset_reduce) == "reduce_cmd.reset_reduce"
    assert nisa.reduce_cmd.load_reduce.value == 4
    assert nisa.dge_mode.hwdge.value == 2
    assert nisa.engine.vector.value == 5


def test_what_the_modules_offer_is_in_nki() -> None:
    """Nothing that a kernel could come to rely on here and miss on the device."""
    known = set[str]()
    for language in (API["nki.language"], ADDED_BY_0_7["nki.language"]):
        constants = {constant.partition(":")[0] for constant in language["constants"]}
        known |= {*language["functions"], *language["classes"], *constants}
    offered = {name for name in dir(nl) if name.isidentifier() and not name.startswith("_")} - {"annotations"}
    assert offered <= known


@pytest.mark.parametrize(("namespace", "folder"), [(nisa, "instructions"), (nl, "lang")])
def test_each_public_function_of_a_family_is_offered(namespace: ModuleType, folder: str) -> None:
    """`nisa` and `nl` list their families' names, to load a family when a kernel uses it."""
    package = import_module(f"trnrt.nki.sim.{folder}")
    families = [import_module(f"{package.__name__}.{family.name}") for family in iter_modules(package.__path__)]
    public = {name: family for family in families for name in getattr(family, "__all__", ())}
    assert public
    assert {name for name in public if getattr(namespace, name, None) is not getattr(public[name], name)} == set()
    assert public.keys() <= set(dir(namespace))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = namespace.no_such_name
