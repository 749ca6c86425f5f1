"""The kept kernels: an archive of a commit's kernel modules, and of the kernels that they import.

Everything in it is text as that commit has it. Where it is unpacked, ``trnrt.kernels`` and ``trnrt.bench`` become
``trnrt_1e68255.kernels`` and ``trnrt_1e68255.bench`` in its imports, so that the kernels of both live in one process;
``trnrt.nki`` is the present one's.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType
from typing import Any

from trnrt.nki.seam import use_simulator

COMMIT = "1e68255"
PACKAGE = f"trnrt_{COMMIT}"
ARCHIVE = Path(__file__).parent / f"kernels_{COMMIT}.tar.xz"
CASES = "cases.json"
TARGETS = ("trn1", "trn2")

_MOVED = re.compile(r"^(\s*from )trnrt\.(?=kernels\b|bench\b)", re.MULTILINE)


class Library:
    """The content of an archive. ``files``: their bytes, by name. ``cases``: the cases to time."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(sorted(files.items()))
        self.cases: list[dict[str, Any]] = json.loads(self.files[CASES])

    @classmethod
    def read(cls, path: Path = ARCHIVE) -> Library:
        """The library of an archive."""
        with tarfile.open(path, "r:xz") as archive:
            return cls({one.name: _content(archive, one) for one in archive.getmembers()})

    def write(self, path: Path) -> None:
        """Write the archive: the same bytes for the same files."""
        with tarfile.open(path, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as archive:
            for name, content in self.files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))

    @cached_property
    def kernels_sha256(self) -> str:
        """The hash of all modules that the cases import: kernels, and the labs' entries."""
        digest = hashlib.sha256()
        for name, content in self.files.items():
            if name != CASES and not name.startswith("modules/"):
                digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()

    def sha256(self, module: str) -> str:
        """The hash of one module's text, as the commit has it."""
        return hashlib.sha256(self.files[_path(module)]).hexdigest()

    @contextmanager
    def unpack(self) -> Iterator[None]:
        """The files are in a folder that exists only inside this context; ``load`` works there."""
        with tempfile.TemporaryDirectory(prefix=f"{PACKAGE}-") as folder:
            for name, content in self.files.items():
                path = Path(folder, PACKAGE, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_MOVED.sub(rf"\1{PACKAGE}.", content.decode()), encoding="utf-8")
            sys.path.insert(0, folder)
            invalidate_caches()
            try:
                yield
            finally:
                sys.path.remove(folder)
                for module in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
                    del sys.modules[module]


def load(module: str) -> ModuleType:
    """A module of the unpacked library, such as ``modules.resnet18_trn2``, with the simulator as its NKI."""
    with use_simulator():
        return import_module(f"{PACKAGE}.{module}")


def _path(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    found = archive.extractfile(entry)
    if found is None:
        raise ValueError(f"{entry.name} in the archive is no file")
    return found.read()
