"""The start of every verb: a session and its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from trnrt.commands.members import Backend
from trnrt.commands.overriding import apply_plan
from trnrt.commands.records import SessionOptions
from trnrt.commands.sampling import chosen_sample
from trnrt.errors import InputError, OptionError
from trnrt.inputs.finite import odd_notes
from trnrt.inputs.images import ImageOptions
from trnrt.inputs.matching import LARGEST_INPUT, Inputs, Pictures, read_inputs
from trnrt.report.console import note
from trnrt.report.progress import working
from trnrt.text import count_text, quote, range_text, reason_text, shape_text, size_text

if TYPE_CHECKING:
    import numpy.typing as npt

    from trnrt.session import InferenceSession

_BYTES_DRAWN = 8
"""Bytes of a random value while it is drawn."""


@dataclass(frozen=True)
class Feeding:
    """A run's inputs: the first ``rows`` of files or of the sample, or random ones.

    ``rows`` is None for all of them, and for the model's fixed batch of random rows, else ``drawn``, else 1.
    """

    files: Sequence[str]
    images: ImageOptions
    rows: int | None
    seed: int
    drawn: int | None = None


def open_session(model: Path, options: SessionOptions) -> InferenceSession:
    """Read the model, choose target and backend, and apply a plan's file."""
    planning, overrides = options.planning, options.overrides
    with working("loading the runtime"):
        from trnrt.cache.places import is_bundle
        from trnrt.planner.choices import Choices
        from trnrt.session import InferenceSession

    with working(f"reading {model}"):
        session = InferenceSession(
            str(model),
            target=planning.target,
            dtype=planning.dtype.value if is_given("dtype") or not is_bundle(model) else None,
            backend=options.backend.value,
            fallback=planning.fallback_name,
            shapes=planning.shapes,
            buckets=options.buckets,
            choices=Choices(no_fuse=frozenset(overrides.no_fuse or ())),
            effort=options.effort if is_given("effort") or not is_bundle(model) else None,
            max_instructions=planning.max_instructions,
            cache=options.cache,
            calibration=planning.calibration,
            narrow=planning.narrow.value,
            device=options.device,
            lengths=options.sequences.lengths,
            pads=options.sequences.pads,
        )
    return session if overrides.plan is None else apply_plan(session, overrides.plan)


def is_given(name: str) -> bool:
    """True if the user gave this parameter of the verb; otherwise it has its default."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def note_backend(session: InferenceSession, options: SessionOptions) -> list[str]:
    """Print which backend ``auto`` chose, and why; return these notes."""
    notes = [f"runs on the {session.backend}: {session.backend_reason}"] if options.backend is Backend.AUTO else []
    note(*notes)
    return notes


def run_notes(session: InferenceSession) -> list[str]:
    """The notes on the session's last run; why it compiled comes first."""
    last = session.last_run
    doubts = [] if last.predicted is None else target_notes(session.target)
    return [*(f"compiled (not in the cache): {why}" for why in last.cache_notes), *last.notes, *doubts]


def target_notes(target: str) -> list[str]:
    """Notes for readers of predictions for a target; empty for most targets."""
    from trnrt.nki.machine.targets import get_target

    found = get_target(target).note
    return [found] if found else []


def feed(session: InferenceSession, feeding: Feeding) -> Inputs:
    """The arrays for a run, from files or drawn at random, with notes on them."""
    wanted, sample = session.model.inputs, chosen_sample()
    if feeding.files:
        read = read_inputs(feeding.files, wanted, metadata=session.metadata, images=feeding.images)
        return first_rows(read, feeding.rows)
    if feeding.images != ImageOptions():
        raise OptionError(
            "--preprocess, --layout, --color, --scale, --mean, --std and --fit need an image",
            hint="give one with --input",
        )
    if sample is not None:
        read = read_inputs([str(sample.data)], wanted, metadata=session.metadata, images=feeding.images)
        own = first_rows(read, feeding.rows or feeding.drawn)
        count = count_text(len(next(iter(own.feeds.values()))), "row")
        return replace(own, notes=[f"no --input: took {count} of the sample's own"])
    rows = feeding.rows or fixed_batch(session) or feeding.drawn or 1
    _check_size(session, rows)
    feeds = session.random_inputs(rows, feeding.seed)
    return Inputs(feeds, [_drawn_text(feeds, feeding.seed)] if feeds else [])


def first_rows(inputs: Inputs, rows: int | None) -> Inputs:
    """The first rows of inputs, None for all; with a note on each input that holds NaN or infinite values."""
    feeds, pictures = inputs.feeds, inputs.pictures
    if rows is not None:
        feeds = {name: array[:rows] if array.ndim else array for name, array in feeds.items()}
        pictures = {name: Pictures(one.paths[:rows], one.how) for name, one in pictures.items()}
    return Inputs(feeds, [*inputs.notes, *odd_notes(feeds)], pictures)


def fixed_batch(session: InferenceSession) -> int | None:
    """The model's fixed batch; None if it is symbolic or there is none."""
    batch = session.model.batch
    return batch if isinstance(batch, int) else None


def check_rows(session: InferenceSession, asked: int | None, flag: str) -> None:
    """OptionError if ``flag`` gives a number of rows to a model without a batch."""
    if asked is not None and session.model.batch is None:
        raise OptionError(f"{flag} gives a number of rows, and the model has no batch", hint=f"leave {flag} out")


def batch_text(session: InferenceSession, rows: int) -> str:
    """``3 rows``; ``1 run`` for a model without a batch."""
    return "1 run" if session.model.batch is None else count_text(rows, "row")


def prediction_text(session: InferenceSession) -> str:
    """The last run's predicted time on the device, to end a line with; "" if there is none."""
    predicted = session.last_run.predicted
    if predicted is None:
        return ""
    from trnrt.nki.machine.targets import get_target

    compared = get_target(session.target).timing.compared
    doubt = "" if compared else f" ({session.target}'s model was never compared with a measurement)"
    crossings = session.last_run.crossings_us
    cpu = f", including {crossings:,.1f} us of round trips to the CPU but not the CPU's own time" if crossings else ""
    return f"; predicted for the device: {range_text(predicted)}{cpu}{doubt}"


@contextmanager
def writing_errors(directory: Path) -> Iterator[None]:
    """Turn the errors of a directory that can't be written into OptionError."""
    try:
        yield
    except OSError as error:
        hint = "name a directory" if directory.exists() and not directory.is_dir() else None
        raise OptionError(f"can't write into {quote(str(directory))}: {reason_text(error)}", hint=hint) from error


def _drawn_text(feeds: Mapping[str, npt.NDArray[Any]], seed: int) -> str:
    """A note on random inputs; the ranges are those of ``InferenceSession.random_inputs``."""
    drawn = ", ".join(f"{quote(name)} {array.dtype} {shape_text(array.shape)}" for name, array in feeds.items())
    kinds = {array.dtype.kind in "iub" for array in feeds.values()}
    ranges = ["uniform in [0, 1)"] * (False in kinds) + ["integers in [0, 10)"] * (True in kinds)
    return f"no --input: drew random values for {drawn} ({', '.join(ranges)}, seed {seed})"


def _check_size(session: InferenceSession, rows: int) -> None:
    """Refuse random inputs too large for the machine's memory."""
    shapes = session.shapes_for(rows).values()
    values = sum(math.prod(shape) if session.model.batch is None else rows * math.prod(shape[1:]) for shape in shapes)
    if values * _BYTES_DRAWN > LARGEST_INPUT:
        raise InputError(
            f"{count_text(rows, 'random row')} of this model need {size_text(values * _BYTES_DRAWN)}; "
            f"the limit is {size_text(LARGEST_INPUT)}",
            hint="ask for fewer rows, or for smaller ones (--shape)",
        )
