"""The files that are served, and their models' names."""

from __future__ import annotations

from pathlib import Path

from trnrt.cache.bundles import is_bundle, read_bundle
from trnrt.errors import ModelFileError, OptionError
from trnrt.serve.settings import ServeSettings


def model_files(settings: ServeSettings) -> dict[str, Path]:
    """The files of all models by name, the named ones first. OptionError if there is none, or two share a name."""
    files: dict[str, Path] = {}
    for path in [*settings.models, *folder_files(settings.model_dir)]:
        name = name_of(path)
        if name in files and path.resolve() != files[name].resolve():
            told = f"two models are called {name!r}: {str(files[name])!r} and {str(path)!r}"
            raise OptionError(told, hint="a model's name is its file's; rename one of them")
        files[name] = path
    if not files:
        raise OptionError("no models to serve", hint="name .onnx files, or a folder of them with --model-dir")
    return files


def name_of(path: Path) -> str:
    """The name of a model: its file's, without the ending; a bundle has a file in it.

    ModelFileError if there is no such file, or the folder is no bundle.
    """
    bundle = read_bundle(path)
    if bundle is not None:
        return bundle.model.stem
    if path.is_dir():
        hint = f"trnrt compile MODEL -o {path} makes one; --model-dir serves the .onnx files of a folder"
        raise ModelFileError(f"{str(path)!r} is a folder, and no bundle", hint=hint)
    if not path.is_file():
        raise ModelFileError(f"no such file: {str(path)!r}")
    return path.stem


def folder_files(folder: Path | None) -> list[Path]:
    """The models of a folder, files and bundles, sorted. OptionError if there is no such folder."""
    if folder is None:
        return []
    try:
        found = sorted(folder.iterdir())
        return [path for path in found if is_bundle(path) or (path.suffix == ".onnx" and path.is_file())]
    except OSError as error:
        raise OptionError(f"can't read --model-dir {str(folder)!r}: {(error.strerror or str(error)).lower()}") from None
