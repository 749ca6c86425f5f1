"""Runs the listings of a page, in order, in one clean directory: commands, snippets of Python, and files that it shows.

Commands of trnrt and snippets run in this process, so that a page costs what its models cost. ``trnrt serve`` starts
a real server for the rest of the page; the page's port becomes its own.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commanding import trnrt
from page_listings import REASONS, Listing, listings

from trnrt.errors import InterfaceWarning

if TYPE_CHECKING:
    from serving import ServerProcess

ROOT = Path(__file__).parents[2]
PORT = "127.0.0.1:8000"
COMMAND_S = 120
# What differs from run to run or from CPU to CPU: times of this machine, errors, the last digits of sums, digests.
DIFFERS = re.compile(r"[\d,.]+ (?:ms|s|seconds)\b(?= on this machine)|(?<=largest error )[\d.e-]+|(?<=\.\d{5})\d+")


@dataclass
class Shown:
    """An output that a page shows, beside what was printed; ``listing`` is the output's own, if it has one."""

    place: str
    listing: Listing | None
    shown: str
    printed: str

    @property
    def stale(self) -> list[str]:
        """The pieces of what is shown that were not printed, in this order; ``...`` stands for anything."""
        there, at, missing = squeezed(self.printed), 0, []
        for line in self.shown.splitlines():
            for piece in filter(None, (squeezed(part) for part in line.split("..."))):
                found = there.find(piece, at)
                missing += [piece] if found < 0 else []
                at = max(at, found + len(piece)) if found >= 0 else at
        return missing


def squeezed(text: str) -> str:
    """A text without what differs, and with one space for several."""
    return re.sub(r"\s+", " ", DIFFERS.sub("#", text)).strip()


@dataclass
class Runner:
    """A page on its way: its directory is the current one."""

    page: Path
    stack: contextlib.ExitStack
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    ran: int = 0
    outputs: list[Shown] = field(default_factory=list)
    server: ServerProcess | None = None

    def run(self) -> None:
        """All listings."""
        printed: str | None = None
        for listing in listings(self.page):
            if listing.language == "text" and printed is not None:
                self.outputs.append(Shown(listing.place, listing, listing.text, printed))
            printed = None if is_left_out(listing) else self._listing(listing)

    def _listing(self, listing: Listing) -> str | None:
        """Run the listing, and return its output; None if there is nothing to run."""
        name = listing.title or listing.comment.removeprefix("file: ") * listing.comment.startswith("file: ")
        if name:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(listing.text, encoding="utf-8")
            return None
        if listing.is_python:
            return self._python(listing)
        all_printed = []
        for command, shown in listing.commands:
            all_printed.append(self._command(command, listing))
            if shown.strip():
                self.outputs.append(Shown(listing.place, None, shown, all_printed[-1]))
        return "".join(all_printed) if all_printed else None

    def _python(self, listing: Listing) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
            warnings.simplefilter("default", InterfaceWarning)  # a page may show what only warns
            exec(compile("\n" * listing.line + listing.text, str(self.page), "exec"), self.names)
        self.ran += 1
        return out.getvalue()

    def _command(self, command: str, listing: Listing) -> str:
        self.ran += 1
        words = shlex.split(command, comments=True)
        code = int(match[1]) if (match := re.fullmatch(r"exits with (\d)", listing.comment)) else 0
        if words[:2] == ["trnrt", "serve"]:
            return self._serve(words[2:])
        if words[0] == "trnrt" and not {"|", ">", "&&", ";"} & set(words):
            ran = trnrt(*words[1:])
            assert ran.code == code, f"{listing.place}: {command}\n{ran.err}{ran.out}"
            return ran.err + ran.out
        return self._shell(command, code, listing)

    def _serve(self, arguments: list[str]) -> str:
        from serving import server_process

        if "--port" in arguments:
            at = arguments.index("--port")
            arguments = arguments[:at] + arguments[at + 2 :]
        self.server = self.stack.enter_context(server_process(Path.cwd(), *arguments))
        return ""

    def _shell(self, command: str, code: int, listing: Listing) -> str:
        if self.server is not None:
            command = command.replace(f"http://{PORT}", self.server.url)
        command = re.sub(r"^python3? ", f"{sys.executable} ", command)
        command = re.sub(r"^pytest ", f"{sys.executable} -m pytest -p trnrt.nki.testing.plugin ", command)
        ran = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, timeout=COMMAND_S)
        assert ran.returncode == code, f"{listing.place}: {command}\n{ran.stderr}{ran.stdout}"
        return ran.stderr + ran.stdout


def is_left_out(listing: Listing) -> bool:
    """True if the page says why this listing isn't run here."""
    comment = listing.comment
    if comment.startswith("run by "):
        test = ROOT / comment.removeprefix("run by ")
        name = listing.page.stem
        assert re.search(rf"\b{name}\b", test.read_text(encoding="utf-8")), f"{listing.place}: {test} runs no {name}"
        return True
    if not comment.startswith("not run: "):
        return False
    reason = comment.removeprefix("not run: ")
    assert reason.startswith(REASONS), f"{listing.place}: {reason!r} is none of the reasons in page_listings.py"
    return True


def rewrite(page: Path, outputs: list[Shown]) -> None:
    """Write what was printed into the page, where a whole output is shown in a listing of its own."""
    text = page.read_text(encoding="utf-8")
    for output in outputs:
        if output.listing is not None and output.stale and "..." not in output.shown:
            text = text.replace(f"```text\n{output.shown}```", f"```text\n{output.printed.rstrip()}\n```")
    page.write_text(text, encoding="utf-8")


KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np


@nki.jit
def kernel(a, b, TILE=512):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for start in range(0, a.shape[1], TILE):
        a_sb = nl.ndarray((128, TILE), dtype=a.dtype, buffer=nl.sbuf)
        b_sb = nl.ndarray((128, TILE), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a_sb, src=a[:, start : start + TILE])
        nisa.dma_copy(dst=b_sb, src=b[:, start : start + TILE])
        nisa.tensor_tensor(dst=a_sb, data1=a_sb, data2=b_sb, op=nl.add)
        nisa.dma_copy(dst=out[:, start : start + TILE], src=a_sb)
    return out


add = kernel

if __name__ == "__main__":
    ones = np.ones((128, 512), np.float32)
    assert (kernel(ones, ones) == 2).all()
"""


def furnish(folder: Path) -> None:
    """Put the files into a folder that the reference pages name: a model, its data and labels, and kernels."""
    for name in ("models", "examples", "kernels", "tests"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "models" / "digits_cnn.onnx", folder / "model.onnx")
    for name in ("data", "test", "labelled", "calibration"):
        (folder / f"{name}.npz").symlink_to(ROOT / "models" / "digits_test.npz")
    for name in ("my_kernel", "old", "new"):
        (folder / f"{name}.py").write_text(KERNEL, encoding="utf-8")
