"""A machine for the fake nrtpy, and NEFFs for it."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trnrt.neuron.worker.client import NeffWorker
from trnrt.planner.plan import DeviceTensor

FAKES = Path(__file__).parents[1] / "neuron" / "fakes"
ROOT = Path(__file__).parents[2]
Tensor = tuple[str, tuple[int, ...], str]


def make_python(folder: Path) -> Path:
    """A Python environment with the fake nrtpy, and with what the fake needs to compute; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    paths = [FAKES, ROOT / "tests" / "shared", ROOT, sysconfig.get_path("purelib")]
    (packages / "fakes.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    info = packages / "nrtpy-2.35.30.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nrtpy\nVersion: 2.35.30\n", encoding="utf-8")
    return folder / "bin" / "python"


def machine_text(target: str, devices: int = 0) -> str:
    """The machine, for the fakes of nki and of nrtpy. ``devices``: those that a process with nki sees."""
    made = {"target": target, "cores": 8, "bytes": 1 << 32}
    return json.dumps({**made, "version": "0.7.0", "devices": devices, "compiling": ""})


class Machine:
    """A folder that the fake takes for a machine with two cores, and that holds its NEFFs."""

    def __init__(self, folder: Path, memory: int = 1 << 26) -> None:
        self.folder = folder
        (folder / "machine.json").write_text(json.dumps({"target": "trn2", "cores": 2, "bytes": memory}))

    @property
    def environment(self) -> dict[str, str]:
        """The worker's, with the fake in it."""
        return {"FAKE_NRTPY": str(self.folder), "PYTHONPATH": str(FAKES)}

    def start(self, core: int = 0, **more: str) -> NeffWorker:
        """A worker on a core, with variables besides the fake's."""
        return NeffWorker(Path(sys.executable), core, environment=self.environment | more)

    def neff(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], compute: Sequence[str], name: str = "k", **more: Any
    ) -> Path:
        """Write a NEFF; ``more`` is how it fails."""
        path = self.folder / f"{name}.neff"
        neff = {"target": "trn2", "inputs": inputs, "outputs": outputs, "compute": compute} | more
        path.write_text(json.dumps(neff))
        return path

    def double(self, **more: Any) -> Path:
        """A NEFF that doubles ``x``, of 2x3 float32."""
        return self.neff([("x", (2, 3), "float32")], [("output_0", (2, 3), "float32")], ["2 * x"], **more)


X = DeviceTensor("x", (2, 3), "float32")
Y = DeviceTensor("y", (2, 3), "float32")
