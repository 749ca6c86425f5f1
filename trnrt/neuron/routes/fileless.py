"""The common part of routes that keep no compiled file: AWS's package compiles when the kernel is called."""

from __future__ import annotations

from pathlib import Path

from trnrt.errors import BackendError
from trnrt.neuron.routes import Job


class FilelessRoute:
    """See ``Route``. ``when``: the calls at which AWS's package compiles."""

    name: str
    when: str
    suffix = ""
    has_weights = True
    is_portable = False
    most_cores: int | None = 1

    def compile(self, job: Job, file: Path) -> None:
        """Refuse: there is nothing to keep."""
        raise BackendError(
            f"the route {self.name} compiles at {self.when} and keeps no file of trnrt's",
            hint="compile by --route neff, which keeps a file",
        )

    def find_neff(self, file: Path) -> Path | None:
        """Return None: no page says where AWS's package keeps it, if at all."""
        return None
