"""A model that was imported: as read, and able to make its graph for concrete input shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trnrt.importer.records import GraphView, ReadModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ImportedModel(ReadModel):
    """The result of ``import_model``: a model to be prepared by ``bind``.

    ``apart``: the model as its file declares it, if that gives each input a batch of its own, and here they are one.
    """

    apart: ImportedModel | None = None

    def bind(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, NDArray[Any]] | None = None,
        *,
        of_any_size: bool = False,
    ) -> GraphView:
        """The graph for these input shapes, one for each input: all of it static, folded and cleaned up.

        ``values`` has those of the ``parameters``, which become constants; others are ignored. ``of_any_size``: accept
        tensors that are too large to compute, for callers that only need the graph.

        Raises:
            InputError: if a shape or a parameter's value is missing, or doesn't fit what the model declares.
            ModelFileError: if the graph contradicts itself.
            UnsupportedModelError: if an input is no tensor, or a tensor is too large.
        """
        from trnrt.importer.binding import bind

        return bind(self, shapes, values or {}, of_any_size=of_any_size)
