"""The generated pages of commands: a section for each, with its flags, from the command itself."""

from __future__ import annotations

from typing import Any

from trnrt.commands.verbs import Argument, Flag


def command_section(name: str, command: Any) -> list[str]:
    """The lines of a command's section: its name with the arguments, its text, and a table of its flags."""
    shown = (p.name for p in command.params if isinstance(p, Argument) and not p.hidden)
    arguments = " ".join(name.upper() for name in shown if name)
    lines = [f"## {name} {arguments}".rstrip(), "", " ".join((command.help or "").split()), ""]
    shown_flags = [one for one in command.params if isinstance(one, Flag) and not one.hidden]
    if not shown_flags:
        return lines
    lines += ["| flag | meaning |", "|---|---|"]
    for parameter in shown_flags:
        flags = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
        lines.append(f"| {flags} | {' '.join((parameter.help or '').split()).replace('|', chr(92) + '|')} |")
    return [*lines, ""]
