"""The few parts of PyTorch that put arrays into a module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fake_neuron.documented import REFERENCE, NotDocumented, documented

Array = NDArray[Any]


class DType:
    """A dtype of torch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numpy = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)

    def __repr__(self) -> str:
        return f"torch.{self.name}"


# Those that numpy has, too, with ml_dtypes.
DTYPES = {
    name: DType(name)
    for name in REFERENCE["dtypes"]
    if name == "bfloat16" or (name in np.sctypeDict and np.dtype(name).name == name)
}
globals().update(DTYPES)


class Tensor:
    """An array on a device: "cpu"; "xla" while a module is traced; "neuron" with TorchNeuron."""

    def __init__(self, array: Array, dtype: DType, device: str = "cpu") -> None:
        self.array, self.dtype, self.device = array, dtype, device
        self.shape = array.shape

    @documented("torch.Tensor.numpy", method=True)
    def numpy(self, force: bool) -> Array:
        if self.dtype.name == "bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        if self.device != "cpu" or force:
            raise NotDocumented("array of a tensor", "a tensor on a device is no array")
        return self.array

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs or args not in (("neuron",), ("cpu",)):
            raise NotDocumented("device by its name", f"Tensor.to{args}{kwargs or ''}")
        return Tensor(self.array, self.dtype, args[0])

    @documented("torch.Tensor.view", method=True)
    def view(self, dtype: DType) -> Tensor:
        if not isinstance(dtype, DType) or dtype.numpy.itemsize != self.dtype.numpy.itemsize:
            raise NotDocumented("view of another size", f"view({dtype!r}) of {self.dtype} changes the shape")
        return Tensor(self.array.view(dtype.numpy), dtype)


@documented("torch.from_numpy")
def from_numpy(ndarray: Array) -> Tensor:
    if type(ndarray) is not np.ndarray or ndarray.dtype.name not in REFERENCE["from_numpy_dtypes"]:
        raise TypeError(f"can't convert {type(ndarray).__name__} of type {getattr(ndarray, 'dtype', None)}")
    if not ndarray.flags.writeable:
        raise NotDocumented("read-only array", "from_numpy of a read-only array: writing to it is undefined")
    if any(stride < 0 for stride in ndarray.strides):
        raise ValueError("At least one stride in the given numpy array is negative")
    return Tensor(ndarray, DTYPES[ndarray.dtype.name])


class Parameter(Tensor):
    """A tensor that belongs to a module."""

    @documented("torch.nn.Parameter", method=True)
    def __init__(self, data: Any, requires_grad: bool) -> None:
        if not isinstance(data, Tensor):
            raise NotDocumented("parameter of a tensor", f"Parameter({type(data).__name__})")
        if requires_grad and data.dtype.numpy.kind in "iub":
            raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
        super().__init__(data.array, data.dtype)


class Module:
    """The base class of modules."""

    def __init__(self) -> None:
        self.parameters_by_name: dict[str, Parameter] = {}
        self.training = True

    def __getattr__(self, name: str) -> Any:
        parameters = self.__dict__.get("parameters_by_name")
        if parameters is None or name not in parameters:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return parameters[name]

    @documented("torch.nn.Module.register_parameter", method=True)
    def register_parameter(self, name: str, param: Any) -> None:
        if "parameters_by_name" not in self.__dict__:
            raise AttributeError("cannot assign parameter before Module.__init__() call")
        if not isinstance(param, Parameter) or "." in name or not name:
            raise NotDocumented("registered parameter", f"register_parameter({name!r}, {type(param).__name__})")
        self.parameters_by_name[name] = param

    @documented("torch.nn.Module.eval", method=True)
    def eval(self) -> Module:
        self.training = False
        return self

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)


nn = SimpleNamespace(Module=Module, Parameter=Parameter)


def is_tensor(value: Any, device: str | None = None) -> bool:
    """Whether a value is a tensor (of a device)."""
    return isinstance(value, Tensor) and device in (None, value.device)


def dtype_name(tensor: Tensor) -> str:
    """As numpy and ml_dtypes call it."""
    return tensor.dtype.name


def from_array(array: Array, device: str) -> Tensor:
    """An array as a tensor, whatever its dtype."""
    return Tensor(array, DTYPES[array.dtype.name], device)


def on_xla(tensor: Tensor) -> Tensor:
    """A tensor as it is while a module is traced."""
    return Tensor(tensor.array, tensor.dtype, "xla")


def parameters(module: Any) -> dict[str, Parameter]:
    """The parameters of a module, by name."""
    return module.parameters_by_name if isinstance(module, Module) else {}
