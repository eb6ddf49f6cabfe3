"""The classes that commands are made of: help in groups, options of a job, types of words."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from seatrial.cli.completion import find_command, fitting
from seatrial.cli.terminal import alive
from seatrial.cli.verbs import OTHER_WORDS, VERBS
from seatrial.errors import UsageError
from seatrial.job.flags import FLAGS, GROUPS, Flag, in_tables

if TYPE_CHECKING:
    from seatrial.system.host import Host

#: Help uses the terminal's width: click alone stops at 80 columns.
_HELP_OPTIONS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
#: Settings of a command that takes another command's options among its words.
TAKES_OPTIONS = {**_HELP_OPTIONS, "ignore_unknown_options": True}
#: Advice of errors and findings: do the same on the CPU, or allow the project's requests.
WITHOUT_GPUS = "seatrial run --gpus none …"
WITH_TRUST = "seatrial run --trust …"
#: IDs, their parts, and names as seatrial.toml's ``name`` takes them (job/model.py).
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@contextmanager
def importing() -> Iterator[None]:
    """Turn the garbage collector off while modules load: it would search objects that stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # skipped at the exit, too
        gc.enable()


class Root(click.Group):
    """``seatrial`` itself, which imports the typed verb and no other. ``cli.main`` answers help and unknown verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. Raises SystemExit from BrokenPipeError, which click itself would turn into a bare exit."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise SystemExit(1) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, function = VERBS[cmd_name][0].partition(":")
        with importing():
            command: Any = getattr(importlib.import_module(f"seatrial.cli.{module}"), function)
        assert isinstance(command, click.Command)
        command.short_help = VERBS[cmd_name][2]
        return command


class VerbOption(click.Option):
    """An option with its heading in the help and the values that complete it."""

    def __init__(self, *args: Any, group: str = "Options", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return fitting(self, ctx, incomplete)


class VerbArgument(click.Argument):
    """An argument with the values that complete it."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if self.metavar == "[TARGET]" and ctx.params.get(self.name or ""):
            return [CompletionItem("--", help="the target's own arguments follow")]
        return fitting(self, ctx, incomplete)


class VerbCommand(click.Command):
    """A command whose help has the options in groups and examples that can be copied."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **{"context_settings": _HELP_OPTIONS, **settings})
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C becomes an Abort here, before click prints an empty line for it."""
        try:
            with alive():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error

    def get_help(self, ctx: click.Context) -> str:
        """Return the help; the remark behind an example stands below it if the terminal is too narrow for both."""
        text = super().get_help(ctx)
        fits = max(map(len, text.split("\n"))) <= shutil.get_terminal_size().columns
        return text if fits else re.sub(r"(?m)^(  (?:seatrial|\w+ \|) .*\S) {2,}(?=\S)", r"\1\n      ", text)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own_first = self.name in ("export", "serve", "sweep", "tune")  # whose options differ from run's
        titles = ("Options", *GROUPS) if own_first else (*GROUPS, "Options")
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                sections[getattr(parameter, "group", "Options")].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each example on a line of its own, however narrow the terminal is."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in self.examples))


class VerbGroup(click.Group):
    """A command with commands below it; an unknown one is answered with the closest name."""

    command_class = VerbCommand

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"context_settings": _HELP_OPTIONS, **settings})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command's help, whole: click alone cuts it at 45 letters."""
        shown = [(name, each.get_short_help_str(200)) for name, each in self.commands.items() if not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(shown))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            from seatrial.system.text import nearest  # an error alone needs it

            known = sorted(name for name, command in self.commands.items() if not command.hidden)
            other = OTHER_WORDS.get(word, "").removeprefix("runs ")
            close = other if other in known else nearest(word, known)
            hint = f"did you mean {close}?" if close else f"it has {', '.join(known)}"
            run = shlex.join([*ctx.command_path.split(), *((close, *args[1:]) if close else ("--help",))])
            raise UsageError(f'{ctx.command_path} has no command "{word}"; {hint}', run=run)
        return super().resolve_command(ctx, args)


class RunReference(click.ParamType[str, Any]):
    """A run as people name it: an ID, a part of one, a name, or last; ``of_path``: RUN[:PATH]. "" would fit all."""

    name = "run"

    def __init__(self, *, new: bool = False, of_path: bool = False) -> None:
        self._new, self._of_path = new, of_path

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if self._new and (value == "last" or not _REFERENCE.fullmatch(value)):
            message = f"{quoted(value)} cannot be a name: letters, digits, . _ - (at most 63), and not last"
            raise UsageError(message, run="seatrial up --name NAME")
        if not _REFERENCE.fullmatch(value.partition(":")[0] if self._of_path else value):
            problem = f"{quoted(value)} is not a run: expected an ID, part of an ID, a name, or last"
            raise UsageError(problem, run="seatrial runs ls")
        return str(value)


command = functools.partial(click.command, cls=VerbCommand)
option = functools.partial(click.option, cls=VerbOption)
argument = functools.partial(click.argument, cls=VerbArgument)


def project_option(help: str, **settings: Any) -> Callable[..., Any]:
    """Make the option ``--project``."""
    return option("--project", "-C", metavar="DIR", type=click.Path(path_type=Path), help=help, **settings)


WORDS = argument("words", nargs=-1, metavar="[TARGET]", help="Script or recipe name; omit with -m or --image.")
#: No option is called -v: some commands mount with it, as docker does.
VERBOSE = option("--verbose", is_flag=True, help="Print the build's log and the whole receipt, not its verdict alone.")
RECEIPT_AS_JSON = option("as_json", "--json", is_flag=True, help="Print the receipt as JSON; output goes to stderr.")
AS_JSON = option("as_json", "--json", is_flag=True, help="Print JSON.")
RUN = argument("reference", metavar="RUN", type=RunReference(), help="Run ID, part of it, name, or last.")
RUN_OR_LAST = argument(
    "reference", metavar="[RUN]", type=RunReference(), default="last", help="Run ID, part of it, name, or last."
)


def target_arguments() -> list[str]:
    """Return the words after ``--``, which belong to the target."""
    words: list[str] = click.get_current_context().obj
    return words


def this_host() -> Host:
    """Return the host of this command, which is made once."""
    from seatrial.system.host import Host  # help needs none

    made: Host = click.get_current_context().find_root().meta.setdefault("seatrial.host", Host())
    return made


def takes_job(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of a job, but some; typed ones arrive in ``flags``, shaped as seatrial.toml."""
    usable = {flag.parameter: flag for flag in FLAGS if function.__name__ not in flag.without.split()}

    @functools.wraps(function)
    def with_flags(**typed: Any) -> int:
        return function(flags=in_tables({flag.key: typed.pop(name) for name, flag in usable.items()}), **typed)

    of_a_job = [_option(flag) for flag in reversed(usable.values())]
    with_flags.__click_params__ = [*getattr(function, "__click_params__", ()), *of_a_job]  # type: ignore[attr-defined]
    return with_flags


def _option(flag: Flag) -> VerbOption:
    kind: Any = click.Path(path_type=Path) if flag.kind is Path else str
    return VerbOption(
        [flag.parameter, *flag.names.split()],
        help=flag.help,
        metavar=flag.metavar,
        group=flag.group or "Options",
        **({"is_flag": True} if flag.kind is bool else {"type": kind, "multiple": flag.kind == list[str]}),
    )


def options_of(*words: str) -> dict[str, bool]:
    """Return the names of a command's options, each with whether a value follows; {} for an unknown command."""
    found = find_command(Root(), words)
    options = [each for each in found.params if isinstance(each, click.Option)] if found else []
    return {name: not each.is_flag for each in options for name in each.opts}


def check_folder(project: Path) -> Path:
    """Return a project's folder as given. Raises UsageError if its path is not UTF-8 text."""
    if has_undecoded(str(project)):
        cause, run = "it goes into plan.json and to a container", "rename the folder"
        raise UsageError(f"The project's path is not UTF-8 text: {quoted(str(project))}", cause=cause, run=run)
    return project


def quoted(text: str) -> str:
    """Return text in quotes on one line, at most 80 letters; bytes that are not UTF-8 become ``\\\\xff``."""
    plain = os.fsencode(text).decode("utf-8", "backslashreplace") if has_undecoded(text) else text
    line = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in plain)
    return f'"{line if len(line) <= 80 else line[:79] + "…"}"'


def has_undecoded(text: str) -> bool:
    """Return True for bytes that Python could not decode, which it keeps as halves of characters (PEP 383)."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)
