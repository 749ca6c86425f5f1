"""Verbs: Python functions whose annotated parameters are the arguments and flags of click's commands.

A parameter is ``Annotated[type, option("--name", ...)]`` or ``Annotated[type, argument(...)]``. A record (a dataclass
of such fields) stands for all its fields. A verb becomes a command when it is called, or shown in ``--help``: reading
the annotations of every verb takes longer than most of them run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import click

from trnrt.errors import OptionError

Function = TypeVar("Function", bound=Callable[..., None])

PANELS = (
    "Model and inputs",
    "Server",
    "Demand",
    "Numbers",
    "Quantisation",
    "Comparison",
    "Planning",
    "Output",
    "Images",
    "Device",
    "Batches and limits",
    "Workers",
    "Connections",
    "Advanced",
)
"""The groups of flags in ``--help``, in order: what is used most comes first."""
RENAMED = {
    ("run", "--batch"): "--rows N gives the number of rows, and --buckets N the rows that the device computes at once",
    ("validate", "--samples"): "write --rows",
    ("quantize", "--samples"): "write --rows",
}
"""Flags of earlier releases, by verb: what to write instead."""
_ORDER = ("Arguments", *PANELS, "Options")


@dataclass(frozen=True)
class Declared:
    """A flag, or an argument if it has no ``names``.

    ``panel``: its group in ``--help``. ``min`` and ``max`` bound a number. ``parser`` reads a value from its text;
    ``callback`` checks a value, and returns it. ``choices``: values to complete in a shell. ``exists``: a path that
    must exist. ``writes``: the kind of path that the verb writes, "file" or "directory", checked before any work.
    ``show_default``: the text of the default in ``--help``, or whether to show it. ``bare``: the value of a flag that
    is given without one.
    ``stand_in``: a flag that can replace an argument. Its callback reads it first; it is no parameter of the verb.
    """

    names: tuple[str, ...] = ()
    help: str = ""
    metavar: str | None = None
    panel: str | None = None
    min: float | None = None
    max: float | None = None
    parser: Callable[[str], Any] | None = None
    callback: Callable[[Any], Any] | None = None
    envvar: str | None = None
    choices: tuple[str, ...] = ()
    exists: bool = False
    writes: str = ""
    hidden: bool = False
    show_default: bool | str = True
    bare: Any = None
    stand_in: Declared | None = None


def option(*names: str, **details: Any) -> Declared:
    """A flag; ``details`` are fields of ``Declared``."""
    return Declared(names, **details)


def argument(**details: Any) -> Declared:
    """An argument without a name on the command line; ``details`` are fields of ``Declared``."""
    return Declared(**details)


class Flag(click.Option):
    """A flag, with its group in ``--help``."""

    panel: str | None = None


class Argument(click.Argument):
    """An argument, with a text in ``--help``; ``stand_in``: the flag that can replace it, if it must be given."""

    text = ""
    hidden = False
    stand_in = ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:  # type: ignore[override]
        """Its name, and its text."""
        if self.hidden:
            return None
        shown = self.metavar or (self.name or "").upper()
        if self.stand_in:
            return shown, f"{self.text}  [required, or {self.stand_in}]"
        return (shown, f"{self.text}  [required]") if self.required else (f"[{shown}]", self.text)


def quiet_option() -> click.Option:
    """The flag that turns progress and notes off, before the verb or after it."""
    text = "Print no progress and no notes, only results and errors."
    return click.Option(["-q", "--quiet"], is_flag=True, help=text, expose_value=False, callback=_be_quiet)


def _be_quiet(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from trnrt.report.progress import quiet

        before = quiet.set(True)
        ctx.call_on_close(lambda: quiet.reset(before))


_QUIET = quiet_option()


class Verb(click.Command):
    """A verb whose ``--help`` groups its flags."""

    def __init__(self, function: Callable[..., None], name: str | None = None, **details: Any) -> None:
        parameters, call = _read_signature(function)
        made = [parameter for one in parameters for parameter in _parameters(*one)]
        super().__init__(name, callback=call, help=inspect.getdoc(function), params=made, **details)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters; also --quiet, unless flags that trnrt does not know are for another program."""
        found = super().get_params(ctx)
        return found if ctx.ignore_unknown_options else [*found, _QUIET]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of the command line; errors about renamed flags and patterns say what to write."""
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = RENAMED.get((self.name or "", error.option_name))
            if hint is None:
                raise
            raise OptionError(f"{self.name} has no {error.option_name} any more", hint=hint) from None
        except click.UsageError as error:
            # A pattern after a flag: the shell makes several words of it.
            if "unexpected extra argument" not in error.message or not {"-i", "--input"} & {*given}:
                raise
            text = f"{error.message[0].lower()}{error.message[1:].rstrip('.')}"
            raise OptionError(text, hint="--input takes one file; repeat it for each: -i A -i B") from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The words of the usage line: arguments, and the flags that must be given."""
        pieces = [self.options_metavar] if self.options_metavar else []
        for parameter in self.get_params(ctx):
            if getattr(parameter, "hidden", False):
                continue
            metavar = parameter.metavar or (parameter.name or "").upper()
            if isinstance(parameter, Argument):
                pieces.append(metavar if parameter.required or parameter.stand_in else f"[{metavar}]")
            elif parameter.required:
                pieces.append(f"{parameter.opts[0]} {metavar}")
        return pieces

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the groups in the order of ``PANELS``."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is not None:
                is_argument = isinstance(parameter, click.Argument)
                heading = getattr(parameter, "panel", None) or ("Arguments" if is_argument else "Options")
                groups.setdefault(heading, []).append(shown)
        for heading in sorted(groups, key=_ORDER.index):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


class Verbs(click.Group):
    """A group of verbs. Each is made when it is asked for. Without arguments it shows its help."""

    def __init__(self, name: str, **details: Any) -> None:
        super().__init__(name, no_args_is_help=False, **details)
        self._declared: dict[str, Callable[[], click.Command]] = {}
        self._about: dict[str, tuple[str, str]] = {}  # of each verb that --help shows: its heading and its line

    def verb(self, name: str, about: str, **details: Any) -> Callable[[Function], Function]:
        """Decorate a function: it becomes the verb ``name``; ``about`` is its line in the group's help."""

        def declare(function: Function) -> Function:
            self._declared[name] = partial(Verb, function, name, short_help=about, **details)
            self._about[name] = "Commands", about
            return function

        return declare

    def verb_at(self, name: str, place: str, heading: str, about: str, **details: Any) -> None:
        """Declare the verb ``name``: the function at ``place`` ("package.module:function"), imported when it's used.

        ``heading`` and ``about``: its place and its line in the group's help; it has neither if it is ``hidden``.
        """

        def make() -> click.Command:
            module, _, function = place.partition(":")
            return Verb(getattr(import_module(module), function), name, short_help=about, **details)

        self._declared[name] = make
        if not details.get("hidden"):
            self._about[name] = heading, about

    def add_group(self, group: Verbs, heading: str) -> None:
        """Add a group of verbs under its own name, and below ``heading`` in the help."""
        name = group.name or ""
        self._declared[name] = lambda: group
        self._about[name] = heading, group.get_short_help_str(limit=100)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help, with exit code 0, if there are no arguments."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs below their headings; none is imported for that."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, (heading, about) in self._about.items():
            groups.setdefault(heading, []).append((name, about))
        width = max(len(name) for name in self._about)
        for heading, rows in groups.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), about) for name, about in rows])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, then the few options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs' names, in their order."""
        return list(self._declared)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of a name."""
        if cmd_name not in self._declared:
            return None
        return self.commands.get(cmd_name) or self.commands.setdefault(cmd_name, self._declared[cmd_name]())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that the arguments begin with; the error about an unknown one names those like it."""
        name = args[0]
        if name not in self._declared and not name.startswith("-"):
            from difflib import get_close_matches

            near = " or ".join(map(repr, get_close_matches(name, self._declared)))
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)

    def all_verbs(self) -> dict[str, click.Command]:
        """Every verb and group by name."""
        return {name: self.commands.setdefault(name, make()) for name, make in self._declared.items()}


_Read = tuple[str, Any, Declared, Any]  # a parameter's name, type, declaration and default


def _read_signature(function: Callable[..., None]) -> tuple[list[_Read], Callable[..., None]]:
    """The parameters of a verb, those of its records in their place, and the verb as a function of all of them."""
    records: dict[str, Any] = {}
    read: list[_Read] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            records[name] = parameter.annotation
            read += _read_fields(parameter.annotation)
        else:
            read.append((name, *_read_annotation(parameter.annotation), parameter.default))

    def call(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(**{one.name: given.pop(one.name) for one in fields(record)})
        function(**given)

    return read, call


def _read_fields(record: Any) -> Iterable[_Read]:
    hints = get_type_hints(record, include_extras=True)
    for one in fields(record):
        hint, declared = hints[one.name], one.metadata.get("option")
        kind = (hint, declared) if declared is not None else _read_annotation(hint)
        yield (one.name, *kind, Parameter.empty if one.default is MISSING else one.default)


def _read_annotation(hint: Any) -> tuple[Any, Declared]:
    kind, declared = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    if not isinstance(declared, Declared):
        raise TypeError(f"{hint} is not Annotated with option() or argument()")
    return kind, declared


def _parameters(name: str, hint: Any, declared: Declared, default: Any) -> Iterable[click.Parameter]:
    """click's parameters for one of a verb: itself, and the flag that can stand in for it."""
    if declared.stand_in is not None:
        yield _parameter("stand_in", str | None, declared.stand_in, None, is_eager=True, expose_value=False)
    yield _parameter(name, hint, declared, default)


def _parameter(name: str, hint: Any, declared: Declared, default: Any, **details: Any) -> click.Parameter:
    """click's parameter for one of a verb."""
    kind, several = _kind(hint, declared)
    required = default is Parameter.empty and declared.stand_in is None

    def finish(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if several:
            value = list(value) if value else None if default is Parameter.empty else default
        if declared.writes and value is not None:
            _check_place(Path(value), declared.writes)
        return value if declared.callback is None else declared.callback(value)

    shared: dict[str, Any] = {"metavar": declared.metavar, "envvar": declared.envvar, "callback": finish, **details}
    if default is not Parameter.empty:
        shared["default"] = None if several else default.value if isinstance(default, StrEnum) else default
    if declared.choices:
        shared["shell_complete"] = partial(_complete, declared.choices)
    if not declared.names:
        made = Argument([name], type=kind, nargs=-1 if several else 1, required=required, **shared)
        made.text, made.hidden = declared.help, declared.hidden
        if default is Parameter.empty and declared.stand_in is not None:
            made.stand_in = declared.stand_in.names[0]
        return made
    if hint is bool or hint == bool | None:
        shared["is_flag"] = True
    else:
        shared |= {"type": kind, "multiple": several}
        if isinstance(kind, _Members) and declared.metavar is None:
            shared["metavar"] = f"[{'|'.join(kind.choices)}]"
        if declared.bare is not None:
            shared |= {"is_flag": False, "flag_value": declared.bare}
    flag = Flag(
        [name, *declared.names],
        required=required,
        help=declared.help,
        hidden=declared.hidden,
        show_default=declared.show_default,
        show_envvar=True,
        **shared,
    )
    flag.panel = declared.panel
    return flag


def _check_place(path: Path, kind: str) -> None:
    """OptionError if the file, or the directory and its files, can't be written there."""
    from trnrt.report.files import check_directory, check_writable

    (check_writable if kind == "file" else check_directory)(path)


def _complete(choices: Sequence[str], _context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """The choices that begin with what is typed, in any case."""
    return [choice for choice in choices if choice.lower().startswith(typed.lower())]


def _kind(hint: Any, declared: Declared) -> tuple[Any, bool]:
    """click's type for an annotation, and whether the parameter takes several values."""
    if isinstance(hint, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    if declared.parser is not None:
        return _Parsed(declared.parser), False
    if get_origin(hint) in (list, Sequence):
        return _kind(get_args(hint)[0], declared)[0], True
    if declared.min is not None or declared.max is not None:
        ranged = _WholeRange if hint is int else _Range
        return ranged(declared.min, declared.max), False  # type: ignore[arg-type]
    if hint is Path:
        return click.Path(exists=declared.exists, path_type=Path), False
    return (_Members(hint) if issubclass(hint, StrEnum) else hint), False


class _WholeRange(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


class _Range(click.FloatRange):
    """A number within bounds. NaN is not: no comparison with a bound would refuse it."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{found} is not a number.", param, ctx)
        return found


class _Parsed(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value that a function reads from its text; errors of its own reach the user as they are."""

    name = "text"

    def __init__(self, parser: Callable[[str], Any]) -> None:
        self._parser = parser

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; a default is one already."""
        return self._parser(value) if isinstance(value, str) else value


class _Members(click.Choice):  # type: ignore[type-arg, unused-ignore]
    """A member of an enumeration, by its value in any case, or by a short name of its ``short_names``."""

    def __init__(self, members: type[StrEnum]) -> None:
        super().__init__([member.value for member in members], case_sensitive=False)
        self._members = members
        self._short: dict[str, str] = members.short_names() if hasattr(members, "short_names") else {}

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """The problem and the choices as they are written."""
        return f"{value!r} is not one of {', '.join(self.choices)}."

    def normalize_choice(self, choice: Any, ctx: click.Context | None) -> str:
        """The text that choices and values are compared by."""
        text = super().normalize_choice(choice, ctx)
        return self._short.get(text, text)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The member."""
        return self._members(super().convert(str(value), param, ctx))
