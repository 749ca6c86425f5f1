"""The fixture's value: it runs a kernel on the simulator, and its runs compare themselves with numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np

from trnrt.nki import scripts
from trnrt.nki.calls import describe
from trnrt.nki.errors import KernelError
from trnrt.nki.level import Level
from trnrt.nki.machine.dtypes import Array, DType, as_dtype
from trnrt.nki.machine.program import MemoryRegion, Program, Storage, View
from trnrt.nki.profiling import Profile, profile_programs
from trnrt.nki.sim.arguments import Given, host_arguments, map_tensors
from trnrt.nki.sim.kernel import Kernel, Simulated, simulate
from trnrt.nki.sim.trace import is_simulators
from trnrt.nki.testing.comparing import Mismatch, choose_tolerance, find_mismatch
from trnrt.nki.testing.writers import Element, element_at, explain

Expected = Any  # an array, a tuple of arrays, or a function that returns them
_SHARED = MemoryRegion.shared_hbm


class Simulation:
    """Runs kernels on a simulated target: the value of the fixture ``nki_simulate``.

    ``target``, ``level``: the hardware and the release of NKI of this test.
    """

    def __init__(self, target: str, level: Level) -> None:
        self.target, self.level = target, level
        self._simulated: dict[int, tuple[Any, Simulated]] = {}

    def __call__(self, kernel: Kernel | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Run:
        """Run ``kernel`` on arrays; it updates the arguments that the kernel writes.

        Raises:
            KernelError: if the kernel breaks a rule; its traceback has the lines of the kernel, and none of ours.
        """
        __tracebackhide__ = True
        known = self._simulated.get(id(kernel))
        simulated = self._simulate(kernel) if known is None else known[1]
        self._simulated[id(kernel)] = kernel, simulated
        before = _copy_inputs(host_arguments(simulated.function, args, kwargs))
        try:
            result = simulated(*args, **kwargs)
        except KernelError as error:
            error.args = (scripts.with_code(error),)
            raise _without_our_frames(error) from error.__cause__
        # Anew: a tensor that isn't on the CPU has other numbers now.
        return Run(simulated, host_arguments(simulated.function, args, kwargs), before, result)

    def _simulate(self, kernel: Any) -> Simulated:
        inner = getattr(kernel, "kernel", None)  # of the old namespace's nki.baremetal, nki.benchmark, nki.profile
        return simulate(inner if isinstance(inner, Kernel) else kernel, self.target, nki=self.level)


class Run:
    """A finished run of a kernel. ``given``: its arguments now; ``before``: copies from before the run.

    ``result``: what the kernel returned. ``label``: the call, such as ``add(f32[128,512], f32[128,512]) on trn2``.
    """

    def __init__(self, simulated: Simulated, given: Given, before: Given, result: Any) -> None:
        self.result = result
        self.label = f"{given.kernel}({describe(given.args, given.kwargs)}) on {simulated.target.name}"
        executor, self._arrays = simulated.prepare(given)
        self.programs: Sequence[Program] = executor.programs
        self._changes, self._before = executor.changes, before

    @property
    def writes(self) -> dict[str, Array]:
        """The arguments that the kernel writes, by their names, as they are now."""
        return {self._inputs[at].name: self._arrays[at] for at in self._changes}

    @cached_property
    def profile(self) -> Profile:
        """The predicted cost of the call on the device: ``run.profile.benchmark_us`` is the headline."""
        return profile_programs(self.programs)

    def equals(
        self,
        expected: Expected = None,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        writes: Mapping[str, Expected] | None = None,
    ) -> None:
        """Compare with ``expected``: an array, a tuple of them, or a function that makes them from the inputs.

        They are compared with what the kernel returned; if it returned nothing, with the arguments that it writes, in
        their order. ``writes``: arguments that the kernel writes, by name. A function is called as the kernel was,
        with numpy arrays as they were before the run; floats narrower than 32 bits come as float32. Each result has
        the tolerance of its dtype, unless ``rtol`` and ``atol`` set one: ``|got - expected| <= atol + rtol *
        |expected|``.

        Raises:
            AssertionError: which names the first wrong element, the worst, and the instruction that wrote the first.
        """
        __tracebackhide__ = True
        if expected is None and not writes:
            raise TypeError("equals() needs what to compare with: an array, a tuple, a function, or writes={...}")
        wanted = writes or {}
        pairs = [] if expected is None else list(self._pair(self._make_expected(expected)))
        pairs += [(*self._argument(name), self._make_expected(value)) for name, value in wanted.items()]
        for what, view, got, value in pairs:
            message = self._complaint(what, view, got, _as_array(what, value), rtol, atol)
            if message is not None:
                raise AssertionError(message)

    @property
    def _inputs(self) -> list[Storage]:
        return self.programs[0].inputs

    def _make_expected(self, expected: Expected) -> Any:
        return expected(*self._before.args, **self._before.kwargs) if callable(expected) else expected

    def _pair(self, expected: Any) -> Iterator[tuple[str, View, Array, Any]]:
        """(name, view, array, expected) of each result, or of each written argument."""
        program = self.programs[0]
        if program.outputs:
            results = self.result if isinstance(self.result, tuple) else (self.result,)
            arrays = [_as_array("the result", array) for array in results]
            names = ["the result"] if not program.returns_tuple else [f"result {n}" for n in range(len(arrays))]
            found = list(zip(names, program.outputs, arrays, strict=True))
        else:
            found = [self._argument(name) for name in self.writes]
        values = expected if isinstance(expected, (tuple, list)) and len(found) != 1 else (expected,)
        if isinstance(expected, (tuple, list)) and len(found) == 1 == len(expected):
            values = expected
        if len(values) != len(found):
            given = ", ".join(name for name, _, _ in found) or "nothing"
            wanted = "1 array" if len(values) == 1 else f"{len(values)} arrays"
            raise AssertionError(f"{program.kernel} gives {given}, and the test expects {wanted}")
        for (name, view, array), value in zip(found, values, strict=True):
            yield name, view, array, value

    def _argument(self, name: str) -> tuple[str, View, Array]:
        for at in self._changes:
            storage = self._inputs[at]
            if storage.name == name:
                return f"argument {name!r}", View(storage, storage.shape, storage.strides, 0), self._arrays[at]
        names = ", ".join(map(repr, self.writes)) or "none"
        raise AssertionError(f"{self.programs[0].kernel} doesn't write an argument {name!r}; it writes {names}")

    def _complaint(
        self, what: str, view: View, got: Array, expected: Array, rtol: float | None, atol: float | None
    ) -> str | None:
        """The text on a wrong array; None if the array is right."""
        tolerance = choose_tolerance(_format_of(view, got), rtol, atol)
        try:
            mismatch = find_mismatch(got, expected, tolerance)
        except AssertionError as error:
            return f"{self.label}: {what}: {error}"
        return None if mismatch is None else "\n".join(self._lines(what, view, mismatch, str(tolerance)))

    def _lines(self, what: str, view: View, mismatch: Mismatch, tolerance: str) -> Iterator[str]:
        first, worst = mismatch.first, mismatch.worst
        yield f"{self.label}: {what} is wrong in {mismatch.count:,} of {mismatch.size:,} elements"
        yield f"first: {first}"
        if worst.index != first.index:
            yield f"worst: {worst}"
        yield f"tolerance: {tolerance}"
        element = element_at(view, first.index)
        unwritten = bool(np.isnan(first.got)) and not np.isnan(first.expected)
        yield from explain(self.programs, self._on_cores(element), unwritten=unwritten)

    def _on_cores(self, element: Element) -> list[Element]:
        """The element in each core's program: the n-th tensor in shared HBM is the same on all."""
        shared = [[s for s in program.storages if s.buffer is _SHARED] for program in self.programs]
        place = next((at for at, storage in enumerate(shared[0]) if storage is element.storage), None)
        if place is None:
            return [element]
        return [Element(storages[place], element.number) for storages in shared]


def _copy_inputs(given: Given) -> Given:
    """The arguments of a call as a reference takes them: copies, and narrow floats as float32."""

    def copy(name: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        narrow = value.dtype.itemsize < 4 and value.dtype.kind not in "iub"
        return value.astype(np.float32) if narrow else value.copy()

    args = tuple(map_tensors(copy, "", value) for value in given.args)
    return Given(given.kernel, args, {name: map_tensors(copy, name, value) for name, value in given.kwargs.items()}, {})


def _as_array(what: str, value: Any) -> Array:
    """A result or an expected value as an array; TypeError if it is none."""
    if hasattr(value, "detach"):  # a PyTorch tensor
        value = host_arguments(_identity, (value,), {}).args[0]
    array = np.asarray(value)
    if array.dtype.kind in "OSUMmc":
        raise TypeError(f"{what}: {type(value).__name__} is no array of numbers")
    return array


def _identity(value: Any) -> Any:
    return value


def _format_of(view: View, got: Array) -> DType:
    """The format that an array was rounded to: that of the tensor, or of the caller's narrower array."""
    try:
        given = as_dtype(got.dtype)
    except TypeError:
        return view.dtype
    return given if given.is_float and given.itemsize < view.dtype.itemsize else view.dtype


def _without_our_frames(error: KernelError) -> KernelError:
    """The error, and what caused it, with only the user's frames in the tracebacks."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = _theirs(cause.__traceback__)
        cause = cause.__cause__
    return error


def _theirs(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    following = _theirs(traceback.tb_next)
    frame = traceback.tb_frame
    if is_simulators(frame.f_code):
        return following
    return TracebackType(following, frame, traceback.tb_lasti, traceback.tb_lineno)
