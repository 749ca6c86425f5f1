"""A session in the place of a transformers model."""

from __future__ import annotations

from typing import Any

import torch
from transformers.utils import ModelOutput

from trnrt.session import InferenceSession


class SessionModel(torch.nn.Module):  # type: ignore[misc]
    """The model that a pipeline of transformers calls. It runs the session, which has the weights."""

    def __init__(self, session: InferenceSession, config: Any) -> None:
        super().__init__()
        self.session, self.config = session, config
        self.device, self.dtype = torch.device("cpu"), torch.float32

    def can_generate(self) -> bool:
        """Never: a session has no KV cache."""
        return False

    def forward(self, **inputs: Any) -> Any:
        """The model's outputs. Inputs that the model doesn't have are left out, as are those that are None."""
        names = [info.name for info in self.session.get_inputs()]
        feeds = {name: inputs[name].numpy(force=True) for name in names if inputs.get(name) is not None}
        made = self.session.run(None, feeds)
        outputs = zip(self.session.get_outputs(), made, strict=True)
        return ModelOutput({info.name: torch.from_numpy(array) for info, array in outputs})


def wrap_session(session: InferenceSession, config: Any) -> SessionModel:
    """The session as a model of the folder's architecture: a pipeline logs an error for class names it doesn't know."""
    name = (config.architectures or [SessionModel.__name__])[0]
    model: SessionModel = type(name, (SessionModel,), {"__doc__": SessionModel.__doc__})(session, config)
    return model
