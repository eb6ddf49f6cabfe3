"""The classes that the commands are made of: help in groups, completion of a word, the options of a job."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from seatrial.cli.typed import RunReference
from seatrial.errors import UsageError
from seatrial.job.flags import FLAGS, GROUPS, Flag, in_tables
from seatrial.system.host import Host

#: Recipes that ``run`` takes; the table with their packages imports the planner. A test compares.
RECIPES = ("bench", "cifar10", "digits", "matmul", "mnist", "mnist-deep", "predict", "spam")

#: Of ``runs ls --status``; a test compares those of this file with the table's.
STATUSES = ("starting", "waiting", "running", "done", "stopped", "failed", "unmet", "unknown")

#: Metavar → its values. A value that begins with ":" leaves files or folders to the shell.
VALUES: dict[str, tuple[str, ...]] = {
    "BACKEND": ("auto", "docker", "podman", "local", "k8s"),
    "ENGINE": ("auto", "docker", "podman", "local", "k8s"),
    "LEVEL": ("auto", "none", "files", "unused", "arch"),
    "KIND": ("job", "jobset", "pytorchjob", "trainjob"),
    "FORMAT": ("onnx", "pt2", "safetensors"),
    "MACHINE": ("h100", "h200", "a100", "l4", "t4"),
    "STATUS": STATUSES,
    "COLUMN": ("gpu", "cpu", "memory", "name"),
    "SHELL": ("bash", "zsh", "fish"),
    "DIR": (":folders",),
    "FOLDER": (":folders",),
    **dict.fromkeys(
        ("FILE", "[FILE]", "DOCKERFILE", "PATH", "SRC:DST", "SRC:DST[:ro]", "[SCRIPT|NAME]", "TEXT…"), (":files",)
    ),
}

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

_DRIVER = Path("/proc/driver/nvidia")

#: Runs that are searched for names, and runs whose IDs are offered: as many as fit on a screen.
_NAMED, _LISTED = 200, 20


class Option(click.Option):
    """An option with its heading in the help and the values that complete it."""

    def __init__(self, *args: Any, group: str = "Options", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return _fitting(self, ctx, incomplete)


class Argument(click.Argument):
    """An argument with the values that complete it."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if self.metavar == "TARGET" and ctx.params.get(self.name or ""):
            return [CompletionItem("--", help="the target's own arguments follow")]
        return _fitting(self, ctx, incomplete)


class Command(click.Command):
    """A command whose help has the options in groups and examples that are copied as they stand."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **{"context_settings": _HELP_OPTIONS, **settings})
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C becomes an Abort here, before click prints an empty line for it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *GROUPS)}
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


class Group(click.Group):
    """A command with commands below it; an unknown one is answered with the nearest."""

    command_class = Command

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"context_settings": _HELP_OPTIONS, **settings})

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            from seatrial.system.text import nearest  # an error alone needs it

            known = [name for name, command in self.commands.items() if not command.hidden]
            near = nearest(word, known)
            hint = f"did you mean {near}?" if near else f"it has {', '.join(known)}"
            run = f"{ctx.command_path} {near}" if near else f"{ctx.command_path} --help"
            raise UsageError(f'{ctx.command_path} has no command "{word}"; {hint}', run=run)
        return super().resolve_command(ctx, args)


command = functools.partial(click.command, cls=Command)
option = functools.partial(click.option, cls=Option)
argument = functools.partial(click.argument, cls=Argument)

WORDS = argument("words", nargs=-1, metavar="TARGET", help="Script or recipe name; omit with -m or --image.")
#: No -v here: some commands take mounts with it, as docker does.
VERBOSE = option("--verbose", is_flag=True, help="The build's log, and the whole receipt, not its verdict alone.")
RECEIPT_AS_JSON = option("as_json", "--json", is_flag=True, help="Print the receipt as JSON; output goes to stderr.")
AS_JSON = option("as_json", "--json", is_flag=True, help="Print JSON.")
PROJECT = option("--project", "-C", metavar="DIR", type=click.Path(path_type=Path), help="The project folder.")
RUN = argument("reference", metavar="RUN", type=RunReference(), help="Run ID, part of it, name, or last.")
RUN_OR_LAST = argument(
    "reference", metavar="RUN", type=RunReference(), default="last", help="Run ID, part of it, name, or last."
)


def target_arguments() -> list[str]:
    """Return the words after ``--``, which belong to the target."""
    words: list[str] = click.get_current_context().obj
    return words


def this_host() -> Host:
    """Return the host of this command, which is made once."""
    made: Host = click.get_current_context().find_root().meta.setdefault("seatrial.host", Host())
    return made


def takes_job(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of a job, except those that it is to be without.

    The command receives those that were typed as the mapping ``flags``, shaped as seatrial.toml is.
    """
    usable = {flag.parameter: flag for flag in FLAGS if function.__name__ not in flag.without.split()}

    @functools.wraps(function)
    def with_flags(**typed: Any) -> int:
        given = {flag.key: typed.pop(name) for name, flag in usable.items()}
        return function(flags=in_tables(given), **typed)

    of_a_job = [_option(flag) for flag in reversed(usable.values())]
    with_flags.__click_params__ = [*of_a_job, *getattr(function, "__click_params__", ())]  # type: ignore[attr-defined]
    return with_flags


def _option(flag: Flag) -> Option:
    kind: Any = click.Path(path_type=Path) if flag.kind is Path else str
    return Option(
        [flag.parameter, *flag.names.split()],
        help=flag.help,
        metavar=flag.metavar,
        group=flag.group or "Options",
        **({"is_flag": True} if flag.kind is bool else {"type": kind, "multiple": flag.kind == list[str]}),
    )


def command_of(words: Sequence[str]) -> click.Command | None:
    """Return the command that these first words name, e.g. ``runs ls``; None if there is none."""
    from seatrial.cli.root import Root

    found: click.Command = Root()
    context = click.Context(found, info_name="seatrial")
    for word in words:
        below = found.get_command(context, word) if isinstance(found, click.Group) else None
        if below is None:
            break
        found = below
    return None if isinstance(found, Root) else found


def options_of(*words: str) -> dict[str, bool]:
    """Return the names of a command's options, each with whether a value follows; {} for an unknown command."""
    found = command_of(words)
    options = [each for each in found.params if isinstance(each, click.Option)] if found else []
    return {name: not each.is_flag for each in options for name in each.opts}


def complete(words: Sequence[str], word: str) -> list[tuple[str, str]]:
    """Return what completes a word, each with its line of help.

    Args:
        words: those before it, without the program's name.
        word: what is typed so far, "" at its beginning.
    """
    from click.shell_completion import ShellComplete

    from seatrial.cli.root import Root

    if "--" in words:
        return [(":files", "")]
    if words and command_of(words) is None:
        return []
    joined = re.fullmatch(r"(--[\w-]+)=(.*)", word)
    if joined and command_of(words):
        found = complete([*words, joined[1]], joined[2])
        return [(value if value.startswith(":") else f"{joined[1]}={value}", line) for value, line in found]
    items = ShellComplete(Root(), {}, "seatrial", "").get_completions([each for each in words if each], word)
    left_to_the_shell = {"file": ":files", "dir": ":folders"}
    return [(left_to_the_shell.get(item.type, item.value), item.help or "") for item in items]


def answer_key_press(argv: Sequence[str]) -> int:
    """Print for ``seatrial --completion words WORD… CURRENT`` a value, a tab and its help per line; never fail."""
    try:
        *words, word = argv
        for value, line in complete(words, word):
            print(f"{value}\t{' '.join(line.split())[:60]}")
    except Exception:  # noqa: BLE001  nothing fits then
        return 1
    return 0


def _fitting(parameter: click.Parameter, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    if isinstance(parameter.type, click.Choice):
        return parameter.type.shell_complete(ctx, parameter, incomplete)
    found = [each for each in _candidates(parameter.metavar or "") if each[0].startswith((incomplete, ":"))]
    return [CompletionItem(value, help=line) for value, line in found]


def _candidates(metavar: str) -> Iterator[tuple[str, str]]:
    if metavar == "REQUEST":
        yield from gpu_words()
    if metavar.startswith(("RUN", "GROUP", "A B", "MODEL")):
        yield from run_words()
    if metavar in ("TARGET", "RUN|RECIPE|FILE", "MODEL"):
        yield from ((name, "recipe") for name in RECIPES)
        yield (":files", "")
    yield from ((value, "") for value in VALUES.get(metavar, ()))


def gpu_words() -> Iterator[tuple[str, str]]:
    """Yield requests for GPUs, with this machine's as the driver's files list them; NVML would take 150 ms."""
    yield from (("auto", "one GPU, or the CPU"), ("none", "the CPU"), ("all", "every GPU"))
    gpus = [_information(path) for path in sorted(_DRIVER.glob("gpus/*/information"))]
    count = len(gpus) or len(list(Path("/dev").glob("nvidia[0-9]*")))
    yield from ((str(number), f"{number} of {count} GPUs") for number in range(1, count + 1))
    yield from ((f"device={number}", gpus[number][0] if number < len(gpus) else "") for number in range(count))
    yield from ((uuid, model) for model, uuid in gpus if uuid)


def _information(path: Path) -> tuple[str, str]:
    """Return (model, UUID) of a GPU."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    keys = dict(re.findall(r"^(Model|GPU UUID):\s*(\S.*)$", text, re.MULTILINE))
    return keys.get("Model", "").strip(), keys.get("GPU UUID", "").strip()


def run_words() -> Iterator[tuple[str, str]]:
    """Yield ``last``, the names and the newest IDs of this project's runs."""
    from seatrial.compose.output import newest_members
    from seatrial.runs.run import run_name
    from seatrial.runs.store import store_of

    store = store_of(None)
    runs = store.newest(_NAMED)
    if runs:
        yield ("last", runs[0].id)
    names: dict[str, str] = {}
    for run in runs:
        if (name := run_name(run)) is not None:
            names.setdefault(name, run.id)
    for name, (_, member) in newest_members(store).items():
        if member.run is not None:
            names.setdefault(name, member.run)
    yield from names.items()
    named = {id: name for name, id in names.items()}
    yield from ((run.id, named.get(run.id, "")) for run in runs[:_LISTED])


def check_launcher(words: Sequence[str], arguments: Sequence[str] = ()) -> None:
    """Refuse ``mpirun -np 4 python train.py``, whose -np click would call unknown. Raises TargetError.

    Args:
        arguments: the words after ``--``.
    """
    from seatrial.job.startable import LAUNCHERS, MPI_LAUNCHERS, is_python

    for at, word in enumerate(words if arguments else words[:-1]):
        launcher = word in (*LAUNCHERS, *MPI_LAUNCHERS) and not (at and words[at - 1].startswith("-"))
        if launcher or (is_python(word) and _is_first(words, at)):
            from seatrial.job.target import launcher_refused

            raise launcher_refused([*words[at:], *arguments])


def _is_first(words: Sequence[str], at: int) -> bool:
    """Return True if only options and their values stand before this word."""
    flags = {name for verb in ("run", "plan") for name, takes_value in options_of(verb).items() if not takes_value}
    value_follows = False
    for word in words[:at]:
        if not value_follows and not word.startswith("-"):
            return False
        value_follows = not value_follows and "=" not in word and word not in flags
    return not value_follows
