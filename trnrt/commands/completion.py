"""``trnrt completion``: the script that completes commands, flags and their values in a shell."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from trnrt.commands.verbs import argument
from trnrt.errors import OptionError


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(
    shell: Annotated[
        Shell | None, argument(metavar="SHELL", help="bash, zsh or fish. By default that of $SHELL.")
    ] = None,
) -> None:
    """Print the script that completes trnrt's commands, flags, samples, targets and dtypes in a shell.

    In ~/.bashrc or ~/.zshrc: eval "$(trnrt completion)". For fish: trnrt completion fish >
    ~/.config/fish/completions/trnrt.fish
    """
    import click
    from click.shell_completion import get_completion_class

    from trnrt.report.console import say

    name = Path(os.environ.get("SHELL", "")).name if shell is None else shell.value
    made = get_completion_class(name) if name in list(Shell) else None
    if made is None:
        raise OptionError(f"no completion for the shell {name!r} of $SHELL", hint="name bash, zsh or fish")
    app = click.get_current_context().find_root().command
    say(made(app, {}, "trnrt", "_TRNRT_COMPLETE").source())
