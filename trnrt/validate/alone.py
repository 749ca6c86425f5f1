"""Run a step alone: its lines of a plan's kernel module as a module of their own, on any backend."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.backends import Backend, LoadedKernel
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.placing.placement import tile_shape
from trnrt.planner.placing.shares import CORE
from trnrt.planner.plan import DeviceTensor, Layout, Plan, StepReport, StoredTensor

Array = NDArray[Any]

# Identifiers of a plan never start with an underscore.
_ENTRY = "_step"
_RESULT = "_result"


class PlanReader:
    """Reads a plan's kernel module: the dtype of each stored tensor, and the weights and lines of each step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._lines = plan.source.splitlines()
        self._imports = [node for node in ast.parse(plan.source).body if isinstance(node, ast.ImportFrom)]
        self._brought: dict[str, list[str]] = {}  # the lines that load each tile of weights
        for line in self._lines:
            if " = prefetch(" in line or " = reserve(" in line:
                self._brought.setdefault(line.split("=")[0].strip(), []).append(line.strip())
        self._dtypes = {tensor.name: tensor.dtype for tensor in plan.inputs}
        self._dtypes |= {step.output: step.dtype for step in plan.steps}

    def dtype(self, stored: str) -> np.dtype[Any]:
        """The dtype of a stored tensor."""
        return as_dtype(self._dtypes.get(stored, self.plan.dtype)).numpy

    def fed_sources(self, step: StepReport) -> list[StoredTensor]:
        """The sources that are fed to a step: each once, without weights."""
        sources = {source.name: source for source in step.sources if source.identifier not in self.plan.weights}
        return list(sources.values())

    def count_rounds(self, step: StepReport) -> int:
        """How many times a step runs for the whole batch."""
        return (self.plan.batch or 1) // step.images if step.images else 1

    def take_part(self, shape: tuple[int, ...], step: StepReport) -> tuple[int, ...]:
        """The shape of the part of a whole batch's tensor that a step takes at a time; the batch may be joined with the
        dimensions behind it."""
        return (shape[0] // self.count_rounds(step), *shape[1:])

    def plan_step(self, step: StepReport) -> Plan:
        """The plan of one step: it takes sources in ONNX's layout, and returns the result in its stored shape.

        If the step takes a few images at a time, the plan is for these.
        """
        call = dedent("\n".join(self._lines[step.lines[0] - 1 : step.lines[1]]))
        names = {node.id for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Name)}
        brought = [line for tile, lines in self._brought.items() if tile in names for line in lines]
        names |= {node.id for line in brought for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Name)}
        weights = {name: array for name, array in self.plan.weights.items() if name in names}
        fed = [replace(source, shape=self.take_part(source.shape, step)) for source in self.fed_sources(step)]
        parts = dict(step.parts)
        arguments = {source.name: _argument(source, k, parts) for k, source in enumerate(fed)}
        dtype, result, shape = step.dtype, step.identifier, self.take_part(step.shape, step)
        body = [f"{CORE} = nl.program_id(0)"] if CORE in names else []
        body += [*brought] if step.part_of else [*brought, _allocation(result, Layout(step.layout), shape, dtype)]
        body += [line for source in fed for line in self._load(source, arguments[source.name], result, parts)]
        body += [f"{result} = {fed[0].identifier}{step.part_of}"] if step.part_of else []
        body += [*call.splitlines(), *([step.complete] if step.complete else [])]
        loading = {f"load_{s.layout}" for s in fed if s.layout != Layout.HBM.value}
        prefetching = ["from trnrt.kernels.prefetch import prefetch, reserve"] if brought else []
        if step.layout != Layout.HBM.value:
            loading.add(f"store_{step.layout}")
            body.append(_allocation(_RESULT, Layout.HBM, shape, dtype))
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
            results=(DeviceTensor(step.output, shape, dtype),),
            outputs=(),
            host=(),
            constants={},
            steps=(),
            nodes=(),
            source=source,
        )

    def _load(self, source: StoredTensor, argument: str, result: str, parts: Mapping[str, str]) -> list[str]:
        """The lines that load an argument into the step's layout; into its place in the result, if it is one of its
        ``parts``."""
        layout = Layout(source.layout)
        if source.name in parts:
            made = f"{source.identifier} = {result}{parts[source.name]}"
        elif layout is Layout.HBM:
            return []
        else:
            made = _allocation(source.identifier, layout, source.shape, self._dtypes[source.name])
        load = "nisa.dma_copy" if layout is Layout.HBM else f"_load_{source.layout}"
        return [made, f"{load}({source.identifier}, {argument})"]

    def _module(
        self, step: StepReport, loading: set[str], more: list[str], arguments: list[str], body: list[str]
    ) -> str:
        called = {line.partition("(")[0] for line in body}
        homes = {alias.name: node.module for node in self._imports for alias in node.names}
        homes |= {"exchange": "trnrt.kernels.exchange"} if step.complete else {}
        layouts = [f"from trnrt.kernels.layouts import {name} as _{name}" for name in sorted(loading)]
        return "\n".join(
            [
                '"""One step of a plan, alone."""',
                "",
                *(f"from {home} import {kernel}" for kernel, home in homes.items() if kernel in called),
                *layouts,
                *more,
                f"from trnrt.nki import {'nisa, ' * bool(step.parts)}nki, nl",
                "",
                "",
                "@nki.jit",
                f"def {_ENTRY}({', '.join(arguments)}):",
                *(f"    {line}" for line in body),
                "",
            ]
        )


def _argument(source: StoredTensor, position: int, parts: Mapping[str, str]) -> str:
    """The name of an argument; a step reads arguments in HBM directly, but those that are ``parts`` of its result."""
    is_read = source.layout == Layout.HBM.value and source.name not in parts
    return source.identifier if is_read else f"_fed{position}"


def _allocation(name: str, layout: Layout, shape: tuple[int, ...], dtype: str) -> str:
    stored, buffer = (shape, "shared_hbm") if layout is Layout.HBM else (tile_shape(layout, shape), "sbuf")
    return f"{name} = nl.ndarray({stored}, dtype=nl.{dtype}, buffer=nl.{buffer})"


class LoneStep:
    """A step that is loaded alone, for any number of runs."""

    def __init__(self, reader: PlanReader, step: StepReport, backend: Backend, directory: Path) -> None:
        plan = reader.plan_step(step)
        content = plan.source.encode("utf-8")
        path = directory / "step.py"
        path.write_bytes(content)
        self._fed = [(source, reader.take_part(source.shape, step)) for source in reader.fed_sources(step)]
        self._dtypes = [reader.dtype(source.name) for source, _ in self._fed]
        self._times = reader.count_rounds(step)
        self._kernel: LoadedKernel = backend.load(plan, path, content)

    def run(self, stored: Mapping[str, Array]) -> Array:
        """The result for sources by name, each in its stored shape."""
        with np.errstate(all="ignore"):
            feeds = [
                np.ascontiguousarray(stored[source.name], dtype).reshape(self._times, *shape)
                for (source, shape), dtype in zip(self._fed, self._dtypes, strict=True)
            ]
            results = [np.array(self._kernel.run([feed[k] for feed in feeds])[0]) for k in range(self._times)]
        return results[0] if self._times == 1 else np.concatenate(results)
