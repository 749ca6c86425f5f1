"""What the fake Neuron SDK may do, from the SDK's reference text: its signatures, flags, values and status codes.

    git clone https://github.com/aws-neuron/aws-neuron-sdk            # the documentation
    pip download --no-deps torch==2.9.0 && unzip torch-*.whl -d torch  # PyTorch's own sources
    python tests/shared/neuron_reference.py aws-neuron-sdk torch       # writes tests/data/neuron/reference.json

Every fact is recorded with the page and line that it was read from. Nothing in this script or in what it writes is
taken from trnrt's calls: a name that trnrt uses and the text does not give is an error of the fake.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neuron_rules import OWN_RULES, SDK_RULES, TORCH_RULES

REFERENCE = Path(__file__).parents[1] / "data" / "neuron" / "reference.json"

_TORCH_NEURONX = "frameworks/torch/torch-neuronx/api-reference-guide/inference"
_FUNCTION_PAGES = (
    f"{_TORCH_NEURONX}/api-torch-neuronx-trace.rst",
    f"{_TORCH_NEURONX}/api-torch-neuronx-core-placement.rst",
    f"{_TORCH_NEURONX}/api-torch-neuronx-async-lazy-load.rst",
    f"{_TORCH_NEURONX}/api-torch-neuronx-data-parallel.rst",
)
_NKI = "nki/api/nki/__init__.py"
_COMPILER = "compiler/neuronx-cc/api-reference-guide/index.rst"
_LNC_SPELLED = ("nki/guides/use-neuron-profile.rst", "compiler/error-codes/EARG001.rst")
_TARGET_SPELLED = "nki/deep-dives/src/mxfp-matmul/mx_toplevel.py"
_RUNTIME = "neuron-runtime/guides/configuration-guide.rst"
_STATUS = "neuron-runtime/api/nrt_status.rst"
_RAISED = "libraries/nxd-inference/tutorials/trn2-llama3.3-70b-tutorial.rst"
_MANIFEST = "src/helperscripts/n2-manifest.json"
_PACKAGES = ("neuronx-cc", "nki", "torch-neuronx", "libneuronxla", "aws-neuronx-runtime-lib")

# PyTorch's functions: the file, and the function or docstring line that states the signature.
_TORCH_FUNCTIONS = (
    ("torch.jit.save", "torch/jit/_serialization.py", "save"),
    ("torch.jit.load", "torch/jit/_serialization.py", "load"),
    ("torch.nn.Parameter", "torch/nn/parameter.py", "__new__"),
    ("torch.nn.Module.register_parameter", "torch/nn/modules/module.py", "register_parameter"),
    ("torch.nn.Module.eval", "torch/nn/modules/module.py", "eval"),
)
_TORCH_DOCSTRINGS = (
    ("torch.from_numpy", "torch/_torch_docs.py", r"^from_numpy\((.*)\) -> Tensor"),
    ("torch.Tensor.numpy", "torch/_tensor_docs.py", r"^numpy\((.*)\) -> numpy\.ndarray"),
    ("torch.Tensor.view", "torch/_tensor_docs.py", r"^\.\. method:: view\((.*)\) -> Tensor"),
)

_PROFILE_SCHEMA = "tools/neuron-explorer/profile-schema-reference.rst"
_PROFILE_TABLES = (
    "Metadata",
    "Summary",
    "ExecutionInfo",
    "Instruction",
    "KernelInstructions",
    "KernelStackFrames",
    "SchemaFields",
    "Warning",
)
_PROFILE_VARIABLES = ("tools/neuron-explorer/environment-variables.rst", "nki/guides/use-neuron-profile.rst")

Facts = dict[str, Any]


class Sdk:
    """The documentation's git repository, bare or not."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.commit = self._git("rev-parse", "HEAD").strip()

    def lines(self, path: str) -> list[str]:
        return self._git("show", f"HEAD:{path}").splitlines()

    def text(self, path: str) -> str:
        return "\n".join(self.lines(path))

    def source(self, path: str, line: int) -> Facts:
        return {"repository": "aws-neuron/aws-neuron-sdk", "commit": self.commit, "path": path, "line": line}

    def _git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", self.directory, *arguments], check=True, capture_output=True, text=True
        ).stdout


def functions(sdk: Sdk) -> Iterator[Facts]:
    """Every ``.. py:function::`` of the pages of torch-neuronx, and nki.jit."""
    for path in _FUNCTION_PAGES:
        for number, line in enumerate(sdk.lines(path), 1):
            if found := re.match(r"\.\. py:(?:function|class):: ([\w.]+)\((.*)\)\s*$", line):
                yield {"name": found[1], "signature": found[2], "source": sdk.source(path, number)}
    for node in ast.parse(sdk.text(_NKI)).body:
        if isinstance(node, ast.FunctionDef):
            yield {
                "name": f"nki.{node.name}",
                "signature": ast.unparse(node.args),
                "source": sdk.source(_NKI, node.lineno),
            }


def torch_origin(directory: Path) -> Facts:
    """Which PyTorch the sources are of."""
    (metadata,) = directory.glob("torch-*.dist-info/METADATA")
    version = re.search(r"^Version: (\S+)", metadata.read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    return {"package": "torch", "version": version[1]}


def torch_functions(directory: Path) -> Iterator[Facts]:
    """The few functions of PyTorch that put arrays into a module, save it and load it."""
    origin = torch_origin(directory)
    for name, path, function in _TORCH_FUNCTIONS:
        tree = ast.parse((directory / path).read_text(encoding="utf-8"))
        node = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function)
        arguments = ast.unparse(node.args)
        bare = re.sub(r": (Optional\[\w+\]|\w+)", "", arguments)
        signature = re.sub(r"^(self|cls)(, )?", "", bare)
        yield {"name": name, "signature": signature, "source": {**origin, "path": path, "line": node.lineno}}
    for name, path, pattern in _TORCH_DOCSTRINGS:
        for number, line in enumerate((directory / path).read_text(encoding="utf-8").splitlines(), 1):
            if found := re.match(pattern, line):
                yield {"name": name, "signature": found[1], "source": {**origin, "path": path, "line": number}}
                break


def from_numpy_dtypes(directory: Path) -> list[str]:
    """The dtypes that torch.from_numpy says it takes."""
    text = (directory / "torch/_torch_docs.py").read_text(encoding="utf-8").partition("\nfrom_numpy(ndarray)")[2]
    stated = re.search(r"It currently accepts(.*?)\.\n", text, re.DOTALL)
    assert stated is not None
    return sorted(re.findall(r"``(?:numpy\.)?(\w+)``", stated[1]))


def dtypes(directory: Path) -> list[str]:
    """Every dtype that torch has a name for."""
    text = (directory / "torch/_C/__init__.pyi").read_text(encoding="utf-8")
    return sorted(re.findall(r"^(\w+): dtype = \.\.\.$", text, re.MULTILINE))


def compiler(sdk: Sdk) -> Facts:
    """neuronx-cc's flags with the line that lists each, the targets, and other spellings that pages use."""
    flags: Facts = {}
    targets: list[str] = []
    lines = sdk.lines(_COMPILER)
    for number, line in enumerate(lines, 1):
        if found := re.match(r"  - ``(--[\w-]+)(?: <\w+>)?``:", line):
            flags.setdefault(found[1], {"source": sdk.source(_COMPILER, number)})
            if found[1] == "--target":
                listed = takewhile_listed(lines[number:])
                targets = [value for value in listed if re.fullmatch(r"[a-z]+\d\w?", value)]
    for path in _LNC_SPELLED:
        for number, line in enumerate(sdk.lines(path), 1):
            if "compiler_args" in line and "--lnc" in line:
                flags.setdefault("--lnc", {"source": sdk.source(path, number)})
    other = [n for n, line in enumerate(sdk.lines(_TARGET_SPELLED), 1) if "--target trn3" in line]
    return {"flags": flags, "targets": targets, "also_target": {"trn3": sdk.source(_TARGET_SPELLED, other[0])}}


def takewhile_listed(lines: list[str]) -> list[str]:
    """The ``values`` of the list that follows, up to the next parameter."""
    found = []
    for line in lines:
        if line.startswith("  - "):
            break
        found += re.findall(r"^\s+- ``([\w-]+)``", line)
    return found


def variables(sdk: Sdk) -> Facts:
    """The runtime's environment variables: name -> default as the table states it."""
    lines = sdk.lines(_RUNTIME)
    found: Facts = {}
    for number, line in enumerate(lines, 1):
        if name := re.match(r"   \* - ``(NEURON_\w+)``", line):
            default = lines[number + 3].removeprefix("     - ")
            found[name[1]] = {"default": default, "source": sdk.source(_RUNTIME, number)}
    return found


def statuses(sdk: Sdk) -> Facts:
    """The runtime's status codes: name -> number."""
    pairs = re.findall(r"^ +(NRT_\w+) = (\d+),", sdk.text(_STATUS), re.MULTILINE)
    return {name: int(number) for name, number in pairs}


def raised(sdk: Sdk) -> Facts:
    """What torch-neuronx raises where a run fails: the only text of it that the pages have."""
    for number, line in enumerate(sdk.lines(_RAISED), 1):
        if found := re.search(r"RuntimeError: (Failed to execute the model status=\d+ message=.+)$", line):
            return {"text": found[1], "source": sdk.source(_RAISED, number)}
    raise LookupError(_RAISED)


def releases(sdk: Sdk) -> Facts:
    """What the newest releases hold: release -> package -> versions."""
    manifest = json.loads(sdk.text(_MANIFEST))
    found: Facts = {}
    for release in manifest["neuron_releases"][:3]:
        versions: dict[str, list[str]] = {}
        for package in release["packages"]:
            if package["name"] in _PACKAGES:
                versions.setdefault(package["name"], []).append(package["version"])
        found[release["neuron_version"]] = versions
    return found


def rules(sdk: Sdk, directory: Path) -> Facts:
    """What the fake does beyond signatures: rule -> what it says, and the line that states it, or that it is ours."""
    found: Facts = {}
    for rule, (says, path, pattern) in SDK_RULES.items():
        number = next(n for n, line in enumerate(sdk.lines(path), 1) if re.search(pattern, line))
        found[rule] = {"says": says, "source": sdk.source(path, number)}
    for rule, (says, path, pattern) in TORCH_RULES.items():
        lines = (directory / path).read_text(encoding="utf-8").splitlines()
        number = next(n for n, line in enumerate(lines, 1) if re.search(pattern, line))
        found[rule] = {"says": says, "source": {**torch_origin(directory), "path": path, "line": number}}
    return found | {rule: {"says": says, "ours": True} for rule, says in OWN_RULES.items()}


def profile_tables(sdk: Sdk) -> Facts:
    """The fields of the profiler's tables: table -> field -> type, unit, whether it is always there, line."""
    lines = sdk.lines(_PROFILE_SCHEMA)
    found: Facts = {}
    table = ""
    for number, line in enumerate(lines):
        if line and set(line) == {"~"}:
            table = lines[number - 1]
        field = re.fullmatch(r"   \* - ``(\w+)``", line)
        if field is not None and table in _PROFILE_TABLES:
            kind, unit, required = (re.sub(r"^ +- ?", "", text) for text in lines[number + 1 : number + 4])
            said = {"type": kind.partition(" ")[0], "unit": unit, "required": required == "Yes", "line": number + 1}
            found.setdefault(table, {})[field[1]] = said
    version = re.search(r"schema version ``([\d.]+)``", "\n".join(lines))
    assert version is not None
    return {"version": version[1], "source": sdk.source(_PROFILE_SCHEMA, 1), "tables": found}


def profile_variables(sdk: Sdk) -> Facts:
    """The variables that make a compiler keep the lines of the source: name -> value, and where that is written."""
    found: Facts = {}
    for path in _PROFILE_VARIABLES:
        for number, line in enumerate(sdk.lines(path), 1):
            if said := re.search(r"(?:export |environ\[\")(\w*DEBUG\w*)(?:\"\] = \"|=)(\w+)", line):
                found.setdefault(said[1], {"value": said[2], "source": sdk.source(path, number)})
    return found


def main(sdk_directory: str, torch_directory: str) -> None:
    """Write the reference anew."""
    sdk, torch = Sdk(sdk_directory), Path(torch_directory)
    reference = {
        "functions": [*functions(sdk), *torch_functions(torch)],
        "from_numpy_dtypes": from_numpy_dtypes(torch),
        "dtypes": dtypes(torch),
        "compiler": compiler(sdk),
        "variables": variables(sdk),
        "rules": rules(sdk, torch),
        "profile": {**profile_tables(sdk), "variables": profile_variables(sdk)},
        "statuses": {"values": statuses(sdk), "source": sdk.source(_STATUS, 1), "raised": raised(sdk)},
        "releases": {"packages": releases(sdk), "source": sdk.source(_MANIFEST, 1)},
    }
    REFERENCE.write_text(json.dumps(reference, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
