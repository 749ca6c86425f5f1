"""``--sample NAME``, which stands in for MODEL in every verb: a model inside the package, with its own rows.

The verbs get the sample's file as their model. The flag is read first, and kept in click's context: the callbacks of
the model and of the flags for data look there.
"""

from __future__ import annotations

from pathlib import Path

import click

from trnrt.errors import OptionError
from trnrt.samples import SAMPLES, Sample, find_sample

_KEY = "trnrt.sample"
_NAME_KEY = "trnrt.sample.name"
OWN_DATA = Path("<the sample's rows>")
"""The value of a flag for data that is given without a file."""

SAMPLE_HELP = f"Instead of MODEL: a model inside the package, with its own rows ({', '.join(SAMPLES)})."
_NAMES = ", ".join(SAMPLES)


def keep_sample(name: str | None) -> str | None:
    """Keep the sample for the callbacks of the other parameters; OptionError if there is none of this name."""
    if name is not None:
        click.get_current_context().meta[_KEY] = find_sample(name)
    return name


def chosen_sample() -> Sample | None:
    """The sample that stands in for the verb's model; None if a model is given, or outside a verb."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_KEY)


def choose_model(model: Path | None) -> Path:
    """The given model's path, or the sample's; OptionError for none and for both."""
    sample = chosen_sample()
    if sample is None and model is None:
        raise OptionError(
            "no model: MODEL is missing", hint=f"name an .onnx file or a bundle, or try --sample NAME: {_NAMES}"
        )
    if sample is not None and model is not None:
        raise OptionError(f"{str(model)!r} and --sample {sample.name} both name a model", hint="leave one of them out")
    return model if sample is None else sample.model  # type: ignore[return-value]


def choose_model_to_cut(model: Path | None) -> Path:
    """As ``choose_model``; but with a sample, what looks like MODEL is one more name for ``add_name``."""
    if chosen_sample() is not None and model is not None:
        click.get_current_context().meta[_NAME_KEY] = str(model)
        model = None
    return choose_model(model)


def add_name(names: list[str] | None) -> list[str] | None:
    """The names that follow --outputs, with the one that looked like MODEL."""
    name = click.get_current_context().meta.get(_NAME_KEY)
    return names if name is None else [name, *(names or [])]


def add_model(models: list[Path] | None) -> list[Path] | None:
    """The given models, and the sample."""
    sample = chosen_sample()
    return models if sample is None else [*(models or []), sample.model]


def choose_data(path: Path | None) -> Path | None:
    """The file of rows and labels; the sample's own for a flag without a value."""
    return path if path != OWN_DATA else _required_data()


def choose_files(files: list[str] | None) -> list[str] | None:
    """The files of rows; the sample's own for a flag without a value."""
    return files and [str(_required_data()) if file == str(OWN_DATA) else file for file in files]


def choose_rows(files: list[str] | None) -> list[str]:
    """The files of rows, by default the sample's own; OptionError for none."""
    data = own_data()
    if files:
        return files
    if data is None:
        raise OptionError("--input is missing: the rows to predict", hint="give -i PATH; a --sample has its own rows")
    return [str(data)]


def own_data() -> Path | None:
    """The rows and labels of the sample; None without a sample."""
    sample = chosen_sample()
    return None if sample is None else sample.data


def _required_data() -> Path:
    data = own_data()
    if data is None:
        raise OptionError("--data has no file", hint="give --data FILE.npz; only a --sample has rows of its own")
    return data
