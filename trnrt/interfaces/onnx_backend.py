"""``onnx.backend.base.Backend`` over trnrt: for tools that speak ONNX's own interface, and for its conformance suite.

    >>> import onnx
    >>> from trnrt.interfaces import onnx_backend
    >>> outputs = onnx_backend.prepare(onnx.load("model.onnx")).run([image])     # doctest: +SKIP

``trnrt.InferenceSession`` does more (names, batches, notes, profiles). ``trnrt.backends`` is something else: what runs
kernels, the simulator or a NeuronCore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep, namedtupledict

from trnrt.errors import InputError, OptionError, TrnrtError
from trnrt.session import InferenceSession

Array = NDArray[Any]

DEVICES = ("CPU",)
"""Devices by onnx's names: arrays are the host's, whatever backend the session computes on."""

_OPTIONS = ("target", "dtype", "backend", "fallback", "cache_dir")


class TrnrtRep(BackendRep):  # type: ignore[misc]
    """A prepared model, to ``run`` as often as needed; ``session`` runs it."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self._outputs = [info.name for info in session.get_outputs()]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, also readable by name, for ``inputs``: a mapping by name, the model's inputs in order, or the
        array of its only input.

        Raises:
            InputError: if the inputs don't fit the model.
            UnsupportedModelError: if the model has no kernels for them.
        """
        outputs = self.session.run(None, self._feeds(inputs), **kwargs)
        made: tuple[Any, ...] = namedtupledict("Outputs", self._outputs)(*outputs)
        return made

    def _feeds(self, inputs: Any) -> dict[str, Array]:
        names = [info.name for info in self.session.get_inputs()]
        if isinstance(inputs, Mapping):
            return dict(inputs)
        given = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(given) != len(names):
            raise InputError(
                f"{len(given)} inputs were given; the model has {len(names)}: {', '.join(names) or 'none'}"
            )
        # Numpy's scalars are arrays of no dimension here.
        return dict(zip(names, (np.asarray(a) if isinstance(a, np.generic) else a for a in given), strict=True))


class TrnrtBackend(Backend):  # type: ignore[misc]
    """The backend. Keyword arguments are those of ``trnrt.InferenceSession``: target, dtype, backend, fallback."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether the model can be read and, if its inputs have fixed shapes, planned; runs nothing.

        True for a readable model whose shapes are open, or depend on values.
        """
        try:
            _session(model, device, kwargs).partition(1)
        except InputError:
            return True
        except TrnrtError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TrnrtRep:
        """A model that is ready to run. Each shape is compiled on its first run.

        Raises:
            ModelFileError: if the model is broken.
            OptionError: for an unknown device or option.
        """
        return TrnrtRep(_session(model, device, kwargs))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """``prepare`` and ``run`` in one."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node for ``inputs``, an array for each input that the node names.

        ``opset_version``: the version of ONNX's operators; by default the newest that onnx knows. ``outputs_info``: the
        outputs' dtypes and shapes, used if onnx can't infer dtypes.
        """
        version = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        model = _model_of(node, [np.asarray(array) for array in inputs], outputs_info, version)
        given = {info.name: np.asarray(array) for info, array in zip(model.graph.input, inputs, strict=True)}
        return cls.run_model(model, given, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether arrays of this device are accepted: only the host's, "CPU"."""
        return device.partition(":")[0] in DEVICES


def _session(model: ModelProto, device: str, options: Mapping[str, Any]) -> InferenceSession:
    if not TrnrtBackend.supports_device(device):
        raise OptionError(
            f"unknown device {device!r}",
            hint="use CPU: arrays are the host's; backend= and target= choose what computes",
        )
    # The suite hands its tolerances to the backend, too.
    known = {name: value for name, value in options.items() if name not in ("rtol", "atol")}
    if wrong := [name for name in known if name not in _OPTIONS]:
        raise OptionError(f"unknown option {wrong[0]!r}", hint=f"options are {', '.join(_OPTIONS)}")
    return InferenceSession(model.SerializeToString(), **known)


def _model_of(
    node: NodeProto,
    arrays: Sequence[Array],
    outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    version: int,
) -> ModelProto:
    names = [name for name in node.input if name]
    if len(arrays) != len(names):
        raise InputError(f"{len(arrays)} inputs were given; the node names {len(names)}: {', '.join(names) or 'none'}")
    kinds = dict(zip(names, arrays, strict=True))
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in kinds.items()
    ]
    outputs = [name for name in node.output if name]
    if outputs_info is None:
        infos = [onnx.ValueInfoProto(name=name) for name in outputs]
    else:
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in zip(outputs, outputs_info, strict=True)
        ]
    graph = onnx.helper.make_graph([node], node.op_type, inputs, infos)
    imports = [onnx.helper.make_opsetid("" if node.domain in ("", "ai.onnx") else node.domain, version)]
    if node.domain not in ("", "ai.onnx"):
        imports.append(onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version()))
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnx.shape_inference.infer_shapes(model) if outputs_info is None else model


is_compatible = TrnrtBackend.is_compatible
prepare = TrnrtBackend.prepare
run_model = TrnrtBackend.run_model
run_node = TrnrtBackend.run_node
supports_device = TrnrtBackend.supports_device
