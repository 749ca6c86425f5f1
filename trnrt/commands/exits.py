"""The end of a command line: trnrt's errors become messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from click.exceptions import Exit

from trnrt.errors import OptionError, TrnrtError, UnsupportedModelError
from trnrt.report.console import complain
from trnrt.text import reason_text

INTERRUPTED = 130
PIPE_CLOSED = 141


@contextmanager
def exit_codes() -> Iterator[None]:
    """Run a verb within: its errors are printed, and become Exit with their code."""
    try:
        yield
        sys.stdout.flush()
    except TrnrtError as error:
        complain(str(error), _hint(error))
        raise Exit(error.exit_code) from error
    except MemoryError as error:
        complain(
            f"not enough memory: {error}" if str(error) else "not enough memory", "use fewer rows, or smaller inputs"
        )
        raise Exit(OptionError.exit_code) from error
    except BrokenPipeError as error:
        _close_stdout()
        raise Exit(PIPE_CLOSED) from error
    except OSError as error:  # on stdout, such as a full disk; files raise errors of their own
        _close_stdout()
        complain(f"can't write the result: {reason_text(error)}")
        raise Exit(OptionError.exit_code) from error
    except KeyboardInterrupt as error:
        complain("interrupted")
        raise Exit(INTERRUPTED) from error


def call(app: Callable[[], object]) -> None:
    """Run a whole command line; exit with the code of its outcome."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may hold characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _close_stdout()
        sys.exit(PIPE_CLOSED)


def _hint(error: TrnrtError) -> str | None:
    if isinstance(error, UnsupportedModelError):  # each blocker has a hint
        hints = dict.fromkeys(blocker.hint for blocker in error.blockers if blocker.hint)
        text = "; ".join(hints)
        if len(error.blockers) > 1:
            text = text.replace("runs this node on the CPU", "runs these nodes on the CPU")
        return f"{text}; " * bool(text) + "`trnrt inspect` shows what each node needs, and where to cut the model"
    return error.hint


def _close_stdout() -> None:
    # Otherwise the rest of the buffer is flushed at exit, into a closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
