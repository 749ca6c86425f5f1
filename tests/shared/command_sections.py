"""The generated pages of commands: a section for each, with its flags, from the command itself."""

from __future__ import annotations

from typing import Any

from trnrt.commands.verbs import Argument, Flag


def command_section(name: str, command: Any) -> list[str]:
    """The lines of a command's section: its name with the arguments, its text, and a table of its flags."""
    shown = (p.name for p in command.params if isinstance(p, Argument) and not p.hidden)
    arguments = " ".join(name.upper() for name in shown if name)
    lines = [f"## {name} {arguments}".rstrip(), "", " ".join((command.help or "").split()), ""]
    lines += ["| flag | meaning |", "|---|---|"]
    for parameter in command.params:
        if isinstance(parameter, Flag) and not parameter.hidden:
            flags = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
            lines.append(f"| {flags} | {' '.join((parameter.help or '').split()).replace('|', chr(92) + '|')} |")
    return [*lines, ""]
