"""The files that are served, and their models' names."""

from __future__ import annotations

from pathlib import Path

from trnrt.errors import ModelFileError, OptionError
from trnrt.serve.settings import ServeSettings


def model_files(settings: ServeSettings) -> dict[str, Path]:
    """The files of all models by name, the named ones first. OptionError if there is none, or two share a name."""
    files: dict[str, Path] = {}
    for path in [*settings.models, *folder_files(settings.model_dir)]:
        if path.stem in files and path.resolve() != files[path.stem].resolve():
            told = f"two models are called {path.stem!r}: {str(files[path.stem])!r} and {str(path)!r}"
            raise OptionError(told, hint="a model's name is its file's; rename one of them")
        if not path.is_file():
            raise ModelFileError(f"no such file: {str(path)!r}")
        files[path.stem] = path
    if not files:
        raise OptionError("no models to serve", hint="name .onnx files, or a folder of them with --model-dir")
    return files


def folder_files(folder: Path | None) -> list[Path]:
    """The models of a folder, sorted. OptionError if there is no such folder."""
    if folder is None:
        return []
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".onnx" and path.is_file())
    except OSError as error:
        raise OptionError(f"can't read --model-dir {str(folder)!r}: {(error.strerror or str(error)).lower()}") from None
