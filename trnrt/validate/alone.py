"""A step alone: its lines of a plan's kernel module as a module of their own, run by any backend."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.backends import Backend, LoadedKernel
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.placing import tile_shape
from trnrt.planner.plan import DeviceTensor, Layout, Plan, StepReport, StoredTensor

Array = NDArray[Any]

# Identifiers of a plan never start with an underscore.
_ENTRY = "_step"
_RESULT = "_result"


class PlanReader:
    """A plan's kernel module by lines: the dtype of each stored tensor, and the weights that a step reads."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._lines = plan.source.splitlines()
        self._imports = [node for node in ast.parse(plan.source).body if isinstance(node, ast.ImportFrom)]
        self._brought = {line.split("=")[0].strip(): line.strip() for line in self._lines if " = prefetch(" in line}
        self._dtypes = {tensor.name: tensor.dtype for tensor in plan.inputs}
        for step in plan.steps:
            self._dtypes[step.output] = self._allocated(step)

    def dtype(self, stored: str) -> np.dtype[Any]:
        """What a stored tensor is held in."""
        return as_dtype(self._dtypes.get(stored, self.plan.dtype)).numpy

    def is_constant(self, source: StoredTensor) -> bool:
        """Whether a source is a weight, not something computed."""
        return source.identifier in self.plan.weights

    def fed(self, step: StepReport) -> list[StoredTensor]:
        """The sources that are fed to a step: each once, without constants."""
        sources = {source.name: source for source in step.sources if not self.is_constant(source)}
        return list(sources.values())

    def alone(self, step: StepReport) -> Plan:
        """The plan of one step: it takes sources as ONNX stores them, and returns the result in its stored shape."""
        call = "\n".join(self._lines[step.lines[0] - 1 : step.lines[1]])
        names = {node.id for node in ast.walk(_parsed(call)) if isinstance(node, ast.Name)}
        brought = [line for tile, line in self._brought.items() if tile in names]
        names |= {node.id for line in brought for node in ast.walk(_parsed(line)) if isinstance(node, ast.Name)}
        weights = {name: array for name, array in self.plan.weights.items() if name in names}
        fed = self.fed(step)
        arguments = {source.name: _argument(source, k) for k, source in enumerate(fed)}
        body = [*brought, *(line for source in fed for line in self._load(source, arguments[source.name]))]
        allocation = self._lines[step.lines[0] - 2].replace("buffer=nl.private_hbm", "buffer=nl.shared_hbm")
        result = allocation.split("=")[0].strip()
        body += [allocation.strip(), *_dedented(call)]
        dtype = self._dtypes[step.output]
        loading = {f"load_{s.layout}" for s in fed if s.layout != Layout.HBM.value}
        prefetching = ["from trnrt.kernels.prefetch import prefetch"] if brought else []
        if step.layout != Layout.HBM.value:
            loading.add(f"store_{step.layout}")
            body.append(f"{_RESULT} = nl.ndarray({step.shape}, dtype=nl.{dtype}, buffer=nl.shared_hbm)")
            body.append(f"_store_{step.layout}({_RESULT}, {result})")
            result = _RESULT
        body.append(f"return ({result},)")
        source = self._module(step, loading, prefetching, [*arguments.values(), *weights], body)
        return replace(
            self.plan,
            name=f"{self.plan.name}_{step.name}",
            entry=_ENTRY,
            inputs=tuple(DeviceTensor(arguments[s.name], s.shape, self.dtype(s.name).name) for s in fed),
            weights=weights,
            results=(DeviceTensor(step.output, step.shape, dtype),),
            outputs=(),
            host=(),
            constants={},
            steps=(),
            nodes=(),
            source=source,
        )

    def _allocated(self, step: StepReport) -> str:
        """The dtype in the line that allocates a step's result."""
        line = self._lines[step.lines[0] - 2]
        keywords = [node for node in ast.walk(_parsed(line)) if isinstance(node, ast.keyword)]
        value = next(keyword.value for keyword in keywords if keyword.arg == "dtype")
        assert isinstance(value, ast.Attribute), line
        return value.attr

    def _load(self, source: StoredTensor, argument: str) -> list[str]:
        """Bring an argument to where the step wants it."""
        layout = Layout(source.layout)
        if layout is Layout.HBM:
            return []
        tile = f"{tile_shape(layout, source.shape)}, dtype=nl.{self._dtypes[source.name]}, buffer=nl.sbuf"
        return [
            f"{source.identifier} = nl.ndarray({tile})",
            f"_load_{source.layout}({source.identifier}, {argument})",
        ]

    def _module(
        self, step: StepReport, loading: set[str], more: list[str], arguments: list[str], body: list[str]
    ) -> str:
        home = next(node.module for node in self._imports if step.kernel in {alias.name for alias in node.names})
        layouts = [f"from trnrt.kernels.layouts import {name} as _{name}" for name in sorted(loading)]
        return "\n".join(
            [
                '"""One step of a plan, alone."""',
                "",
                f"from {home} import {step.kernel}",
                *layouts,
                *more,
                "from trnrt.nki import nki, nl",
                "",
                "",
                "@nki.jit",
                f"def {_ENTRY}({', '.join(arguments)}):",
                *(f"    {line}" for line in body),
                "",
            ]
        )


def _argument(source: StoredTensor, position: int) -> str:
    """The name of an argument: what is in HBM is read as it is."""
    return source.identifier if source.layout == Layout.HBM.value else f"_fed{position}"


def _parsed(lines: str) -> ast.Module:
    return ast.parse("\n".join(_dedented(lines)))


def _dedented(lines: str) -> list[str]:
    """Lines of a function's body as those of a module."""
    return [line.removeprefix("    ") for line in lines.splitlines()]


class LoneStep:
    """A step that is loaded alone; it may be run on several feeds."""

    def __init__(self, reader: PlanReader, step: StepReport, backend: Backend, directory: Path) -> None:
        plan = reader.alone(step)
        content = plan.source.encode("utf-8")
        path = directory / "step.py"
        path.write_bytes(content)
        self._fed = reader.fed(step)
        self._dtypes = [reader.dtype(source.name) for source in self._fed]
        self._kernel: LoadedKernel = backend.load(plan, path, content)

    def run(self, stored: Mapping[str, Array]) -> Array:
        """The result for sources by name, each in its stored shape."""
        with np.errstate(all="ignore"):
            feeds = [
                np.ascontiguousarray(stored[source.name], dtype).reshape(source.shape)
                for source, dtype in zip(self._fed, self._dtypes, strict=True)
            ]
            (result,) = self._kernel.run(feeds)
        return np.array(result)
