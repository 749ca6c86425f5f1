"""The instances of a model: copies of it in one process that compute at the same time.

Each has a thread and compiled programs of its own, and on a device its own NeuronCores. They share the queue, the plans
and the golden input, so an answer does not depend on which of them computed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.serve.hosting.lanes import Lane
from trnrt.serve.hosting.loading import LoadedModel
from trnrt.serve.hosting.threads import ComputeThread, type_and_text
from trnrt.serve.processes.logs import log


@dataclass(frozen=True)
class Instance:
    """One copy of a model, and its thread."""

    loaded: LoadedModel
    thread: ComputeThread

    async def release(self, lane: Lane) -> None:
        """Release the device, and end the thread.

        If the thread still computes what nobody waits for, that comes after it, and nobody waits for it.
        """
        # Now, not at the next garbage collection: it occupies the device until then.
        if lane.computing:
            self.thread.submit(self._close)
        else:
            await self.thread.call(self._close)
        self.thread.stop()

    def _close(self) -> None:
        """On the thread. An error is only logged: the model is gone either way, and the others must go on."""
        try:
            self.loaded.close()
        except Exception as error:
            log("error", "release_failed", path=str(self.loaded.source), error=type_and_text(error))


def start_instances(name: str, loaded: LoadedModel, thread: ComputeThread) -> tuple[Instance, ...]:
    """A loaded model's instances. ``thread``: the first one's, which has loaded it."""
    others = (Instance(twin, ComputeThread(f"compute {name} {k}")) for k, twin in enumerate(loaded.twins, start=2))
    return (Instance(loaded, thread), *others)
