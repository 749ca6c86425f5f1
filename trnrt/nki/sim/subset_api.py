"""NKI's names and signatures as data, and the check of a file's names and calls against them.

``nki_api_0_6.json`` is the whole API of 0.6; ``nki_api_0_7.json`` has what 0.7 added, removed, changed and deprecated,
each with the page of the SDK's documentation that says so.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnrt.nki.level import DEFAULT_LEVEL, Level, choose_level
from trnrt.nki.machine.modes import nc_version
from trnrt.nki.sim.subset_source import Finding, SourceFile, bound_names, check_parsed, finding_at

_DATA = Path(__file__).with_name("nki_api_0_6.json")
_CHANGES = {Level.nki_0_7: Path(__file__).with_name("nki_api_0_7.json")}
# Modules of AWS's package that the data leaves out: their names are not checked. 0.7's data has nki.compiler.
_OTHER_MODULES = frozenset(
    [
        "nki.collectives",
        "nki.compiler",
        "nki.dtype",
        "nki.experimental",
        "nki.isa.constants",
        "nki.tensor",
        "nki.typing",
    ]
)
# Names of older releases, and their replacements in SDK 2.32's migration guide.
_REMOVED = {
    "nki.language.arange": "Slice the tensor, or use .ap()",
    "nki.language.mgrid": "Slice the tensor, or use .ap()",
    "nki.language.par_dim": "The first dimension is the partition dimension: write its size alone",
    "nki.isa.tensor_copy_dynamic_src": "Call nisa.tensor_copy with .ap(scalar_offset=...)",
    "nki.isa.tensor_copy_dynamic_dst": "Call nisa.tensor_copy with .ap(scalar_offset=...)",
    "nki.isa.nc_version.gen1": "NKI 0.6 starts at gen2",
}


@dataclass(frozen=True)
class Parameter:
    """``default`` is its text, None for no default; ``variadic`` marks ``*args`` and ``**kwargs``.

    ``by_name``: it is taken by name only.
    """

    name: str
    default: str | None
    variadic: bool
    by_name: bool = False


@dataclass(frozen=True)
class ApiClass:
    """``members`` are attributes and properties, with the text of their value or type."""

    bases: tuple[str, ...]
    members: Mapping[str, str]
    methods: Mapping[str, tuple[Parameter, ...]]

    @property
    def is_enum(self) -> bool:
        return "Enum" in self.bases


@dataclass(frozen=True)
class ApiModule:
    """``constants`` maps each name to the name of its type, "" if the data gives none."""

    functions: Mapping[str, tuple[Parameter, ...]]
    classes: Mapping[str, ApiClass]
    constants: Mapping[str, str]

    def names(self) -> set[str]:
        return {*self.functions, *self.classes, *self.constants}


@dataclass(frozen=True, eq=False)
class ApiTable:
    """The API of one release: modules by their dotted path.

    ``removed`` and ``deprecated``: what to use instead of a path that the release before has, or that it still has.
    """

    nki_version: str
    neuron_sdk: str
    modules: Mapping[str, ApiModule]
    removed: Mapping[str, str] = field(default_factory=dict)
    deprecated: Mapping[str, str] = field(default_factory=dict)

    def signature(self, path: str) -> tuple[Parameter, ...] | None:
        """The parameters of the function or class at ``path``; None if it is neither, or an enumeration."""
        module_path, _, name = path.rpartition(".")
        module = self.modules.get(module_path)
        if module is None:
            return None
        if name in module.functions:
            return module.functions[name]
        init = module.classes[name].methods.get("__init__") if name in module.classes else None
        return init[1:] if init is not None else None

    def unknown(self, path: str) -> tuple[str, set[str]] | None:
        """The shortest part of ``path`` that the release lacks, and the names it has there; None if it has all."""
        module_path = max((m for m in self.modules if path == m or path.startswith(m + ".")), key=len, default="")
        others = _OTHER_MODULES - self.modules.keys()
        if not module_path or any(path == m or path.startswith(m + ".") for m in others):
            return None
        rest = path[len(module_path) + 1 :].split(".") if path != module_path else []
        module = self.modules[module_path]
        if rest and rest[0] not in module.names() and not rest[0].startswith("__"):
            return f"{module_path}.{rest[0]}", module.names()
        if len(rest) > 1 and (cls := self._class_of(module, rest[0])) is not None:
            # A target's file may name a generation that the release lacks.
            known = {*cls.members, *cls.methods, *(vars(nc_version) if rest[0] == nc_version.__name__ else ())}
            if rest[1] not in known and not rest[1].startswith("__"):
                return f"{module_path}.{rest[0]}.{rest[1]}", known
        return None

    def _class_of(self, module: ApiModule, name: str) -> ApiClass | None:
        """The class that ``name`` is, or is a constant of, if all its attributes are known."""
        if name in module.classes:
            return module.classes[name]
        cls = module.classes.get(module.constants.get(name, ""))
        return None if cls is None or cls.is_enum else cls


def load_api(level: Level | str | None = None) -> ApiTable:
    """The API of NKI at a language level, by default the one that holds, from the package's data."""
    return _load(choose_level(level))


@functools.cache
def _load(level: Level) -> ApiTable:
    data = json.loads(_DATA.read_text(encoding="utf-8"))
    modules = {path: _module(entry) for path, entry in data["modules"].items()}
    if level not in _CHANGES:
        return ApiTable(data["nki_version"], data["neuron_sdk"], modules)
    changes = json.loads(_CHANGES[level].read_text(encoding="utf-8"))
    removed, deprecated = (
        {path: str(entry["instead"]) for path, entry in changes[what].items()} for what in ("removed", "deprecated")
    )
    modules = {path: _drop_removed(module, path, removed) for path, module in modules.items()}
    for path, entry in changes["modules"].items():
        modules[path] = _add_changes(modules.get(path, ApiModule({}, {}, {})), entry)
    return ApiTable(changes["nki_version"], changes["neuron_sdk"], modules, removed, deprecated)


def _drop_removed(module: ApiModule, path: str, removed: Mapping[str, str]) -> ApiModule:
    functions = {name: known for name, known in module.functions.items() if f"{path}.{name}" not in removed}
    return ApiModule(functions, module.classes, module.constants)


def _add_changes(module: ApiModule, entry: Any) -> ApiModule:
    """The module with what a release added or changed."""
    functions = {name: _parameters(function["parameters"]) for name, function in entry["functions"].items()}
    classes = {name: _class(cls) for name, cls in entry["classes"].items()}
    constants = dict(_split(text) for text in entry["constants"])
    return ApiModule(
        {**module.functions, **functions}, {**module.classes, **classes}, {**module.constants, **constants}
    )


def check_api(source: str, filename: str, api: ApiTable) -> list[Finding]:
    """Find names of ``nki``, ``nki.language`` and ``nki.isa`` that ``api`` does not have, and calls that do not fit.

    Checks the whole file, under any names that its imports give the modules. In a call with ``*`` or ``**``, checks the
    other arguments. A file that isn't Python has one finding, of rule "syntax".
    """
    return list(_check_api(source, filename, api))


@functools.lru_cache(maxsize=16)
def _check_api(source: str, filename: str, api: ApiTable) -> tuple[Finding, ...]:
    def check(file: SourceFile) -> Iterator[Finding]:
        for node, path in _uses(file, api):
            yield from _check_use(file, api, node, path)

    return tuple(check_parsed(source, filename, check))


def find_deprecated(source: str, filename: str, api: ApiTable) -> list[Finding]:
    """Find the names of a file that the release deprecates; none in a file that isn't Python."""
    return list(_find_deprecated(source, filename, api))


@functools.lru_cache(maxsize=16)
def _find_deprecated(source: str, filename: str, api: ApiTable) -> tuple[Finding, ...]:
    def find(file: SourceFile) -> Iterator[Finding]:
        for node, path in _uses(file, api):
            if path in api.deprecated:
                message = f"{path} is deprecated in NKI {api.nki_version}"
                yield finding_at(file, node, "api-deprecated", message, api.deprecated[path])

    return tuple(finding for finding in check_parsed(source, filename, find) if finding.rule != "syntax")


def advice(path: str, api: ApiTable) -> tuple[str, str]:
    """Say that ``path`` does not exist in the release, and what to use instead."""
    return _advice(*(api.unknown(path) or (path, set())), api)


def _advice(name: str, known: set[str], api: ApiTable) -> tuple[str, str]:
    message = f"{name} does not exist in NKI {api.nki_version}"
    later = _load(DEFAULT_LEVEL)
    came = f"It came with NKI {later.nki_version} (--nki {DEFAULT_LEVEL})"
    instead = api.removed.get(name) or _REMOVED.get(name) or (came if _came_later(name, api, later) else None)
    return message, instead or _suggestion(name.rpartition(".")[2], known, api)


def _came_later(path: str, api: ApiTable, later: ApiTable) -> bool:
    """True if the later release has a path that this one lacks."""
    return api.nki_version != later.nki_version and bool(api.unknown(path)) and later.unknown(path) is None


def _uses(file: SourceFile, api: ApiTable) -> Iterator[tuple[ast.AST, str]]:
    """Every whole attribute chain or name that resolves to a path of the API, and every import of such a path."""
    shadows = {n: bound_names(n) - _imported_names(n) for n in ast.walk(file.tree) if isinstance(n, ast.FunctionDef)}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            paths = [file.imports[alias.asname or alias.name] for alias in node.names if alias.name != "*"]
        elif isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(file.parents[node], ast.Attribute):
            first: ast.AST = node
            while isinstance(first, ast.Attribute):
                first = first.value
            name = first.id if isinstance(first, ast.Name) else ""
            shadowed = any(name in shadows.get(a, ()) for a in file.ancestors(node) if isinstance(a, ast.FunctionDef))
            paths = [file.path_of(node)] if name in file.imports and not shadowed else []
        else:
            paths = []
        yield from ((node, path) for path in paths if any(path.startswith(f"{m}.") for m in api.modules))


def _imported_names(function: ast.FunctionDef) -> set[str]:
    imports = [n for n in ast.walk(function) if isinstance(n, (ast.Import, ast.ImportFrom))]
    return {alias.asname or alias.name.split(".")[0] for node in imports for alias in node.names}


def _check_use(file: SourceFile, api: ApiTable, node: ast.AST, path: str) -> Iterator[Finding]:
    missing = api.unknown(path)
    parent = file.parents[node]
    if missing is not None:
        yield finding_at(file, node, "api-name", *_advice(*missing, api))
    elif isinstance(parent, ast.Call) and parent.func is node and (parameters := api.signature(path)) is not None:
        for rule, message in _misfits(parent, parameters):
            names = ", ".join(p.name for p in parameters)
            instead = f"It takes {names or 'none'}"
            yield finding_at(file, parent, rule, f"{path}() {message}", instead)


def _misfits(call: ast.Call, parameters: tuple[Parameter, ...]) -> Iterator[tuple[str, str]]:
    """The broken rule and the problem, for each argument that does not fit the parameters."""
    plain = [p for p in parameters if not p.variadic]
    by_order = [p for p in plain if not p.by_name]
    any_keyword = any(p.variadic and p.name.startswith("**") for p in parameters)
    any_position = any(p.variadic and not p.name.startswith("**") for p in parameters)
    expanded = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    if len(call.args) > len(by_order) and not any_position:
        yield "api-positional", f"takes at most {len(by_order)} positional arguments, not {len(call.args)}"
    by_position = {p.name for p in by_order[: len(call.args)]}
    by_name = [k.arg for k in call.keywords if k.arg is not None]
    for name in by_name:
        if name in by_position and not expanded:
            yield "api-argument", f"is given {name} twice"
        elif name not in {p.name for p in plain} and not any_keyword:
            yield "api-argument", f"has no argument {name}"
    missing = [p.name for p in plain if p.default is None and p.name not in by_position and p.name not in by_name]
    if missing and not expanded:
        yield "api-missing", f"needs {', '.join(missing)}"


def _suggestion(name: str, known: set[str], api: ApiTable) -> str:
    import difflib  # for a message only

    close = difflib.get_close_matches(name, sorted(known), n=3)
    release = api.neuron_sdk.rpartition(".")[0]
    return f"Did you mean {' or '.join(close)}?" if close else f"See the API reference of Neuron SDK {release}"


def _module(entry: Any) -> ApiModule:
    constants = dict(_split(text) for text in entry["constants"])
    functions = {name: _parameters(signature) for name, signature in entry["functions"].items()}
    return ApiModule(functions, {name: _class(cls) for name, cls in entry["classes"].items()}, constants)


def _class(entry: Any) -> ApiClass:
    members = {name: str(text) for name, text in entry["members"].items()}
    members |= {name: "property" for name, method in entry["methods"].items() if method == "property"}
    methods = {name: _parameters(method) for name, method in entry["methods"].items() if method != "property"}
    return ApiClass(tuple(entry["bases"]), members, methods)


def _parameters(signature: Any) -> tuple[Parameter, ...]:
    """``[["dst"], ["engine", "engine.unknown"], ["**kwargs"]]`` as parameters; a bare ``["*"]`` is none itself."""
    names = [p[0] for p in signature]
    star = names.index("*") if "*" in names else len(names)
    return tuple(
        Parameter(p[0], p[1] if len(p) > 1 else None, p[0].startswith("*"), at > star and not p[0].startswith("*"))
        for at, p in enumerate(signature)
        if at != star
    )


def _split(constant: str) -> tuple[str, str]:
    """``tile_size: _TileSize`` as name and type."""
    name, _, type_name = constant.partition(":")
    return name.strip(), type_name.strip()
