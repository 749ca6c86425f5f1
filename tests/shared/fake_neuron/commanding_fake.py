"""``trnrt`` on the fake, as a script: in this process, and in each that it starts, which import this file, too.

``FAKE_NEURON`` names the machine's folder. What goes wrong in a process its own file there tells, ``faults-PID``: a
message of the runtime's for each run, or "hang".
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from fake_neuron import Faults, Hardware
from fake_neuron.installing_fake import install, versions
from trnrt.cli import main
from trnrt.neuron import backend as neuron
from trnrt.serve.hosting import devices

FOLDER = Path(os.environ["FAKE_NEURON"])


class TheFiles:
    """The faults of this process, as its file tells at that moment."""

    compiling = loading = ""
    gathering = None
    wrong = wide_integers = wrong_shape = False

    @property
    def _told(self) -> str:
        path = FOLDER / f"faults-{os.getpid()}"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def hanging(self) -> Event | None:
        """An event that never comes."""
        return Event() if self._told == "hang" else None

    @property
    def running(self) -> str:
        """What the runtime says."""
        return self._told


own = FOLDER / f"machine-{os.getpid()}"
own.mkdir()
install(pytest.MonkeyPatch(), own, Hardware(faults=cast(Faults, TheFiles())), versions())
tempfile.tempdir = str(FOLDER)  # where leases are: the machine is one
devices.LONGEST_RUN_S = 0.5
neuron.GRACE_S = 3.0  # whoever waits no longer than a run may take is told so first, on a busy machine, too

if __name__ == "__main__":
    main()
