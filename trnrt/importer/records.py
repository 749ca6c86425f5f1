"""The importer's results: a model's signature, the model as read, and its graph for concrete shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray


@dataclass(frozen=True)
class OpenSizes:
    """Sizes for dimensions that a file leaves open, by their names, and by their denotations (DATA_BATCH)."""

    named: Mapping[str, int] = field(default_factory=dict)
    denoted: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.named or self.denoted)


@dataclass(frozen=True)
class GivenWeights:
    """Values for a model's weights: ``arrays`` by the weights' names, the contents of ``files`` with external data by
    their names in the model, and the ``folder`` of its other data files."""

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    folder: str | None = None

    def __bool__(self) -> bool:
        return bool(self.arrays or self.files or self.folder)


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as the file declares it.

    ``dtype`` is numpy's name ("float32", "bfloat16", "str" for strings). If it isn't a tensor, ``dtype`` is a
    description such as "seq(map(int64, float32))", and ``shape`` is ``()``. A dimension is an int, a symbol's name, or
    None if the file leaves it open.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, eq=False)
class GraphView:
    """A model for concrete input shapes: cleaned up, and static.

    Every tensor of ``model`` has a dtype and an integer shape without 0, except those of nodes for which ``unresolved``
    gives a reason. Nodes are in topological order and have unique names. Constants are initializers (there are no
    Constant nodes), and so are outputs that don't depend on the inputs. An output that the file declares to be an input
    is that input. ``notes`` describes what was rewritten.
    """

    model: ir.Model
    notes: tuple[str, ...]
    unresolved: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ReadModel:
    """A model that was read and checked; ``ImportedModel`` adds ``bind``, whose modules can import this class.

    ``inputs`` excludes initializers. ``batch`` is dimension 0 where all inputs (of rank 1 or more) share it: a symbol's
    name, "batch" where the file leaves it open without a name, or an int. It is an int only if the inputs have rank 2
    or more and every output starts with the same dimension, as otherwise dimension 0 counts something else. It is None
    if the model has no batch. ``opset`` is the version of ONNX's own operators. ``read`` returns the graph, and may
    have to read the file. ``parameters`` names inputs that are really attributes, such as the shape for a Reshape: a
    plan needs their values, and they don't count for ``batch``. ``digest`` is the SHA-256 of the file with its external
    data. ``batch_symbols``: the symbols in the file, if each input has its own: ``inputs`` and ``outputs`` have the
    first.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    metadata: dict[str, str]
    batch: int | str | None
    opset: int
    read: Callable[[], ir.Model] = field(repr=False)
    parameters: tuple[str, ...] = ()
    digest: str = ""
    batch_symbols: tuple[str, ...] = ()

    @cached_property
    def model(self) -> ir.Model:
        """The graph as read: share it, don't change it."""
        return self.read()
