"""Prints an error as one sentence, its cause and the command to run next; never a traceback for a known one."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
import tempfile
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from seatrial.cli.options import VALUES, options_of
from seatrial.errors import (
    EXIT_ENGINE,
    EXIT_USAGE,
    CapacityError,
    GpuContractError,
    GpuRequestError,
    RunNotFoundError,
    SeatrialError,
    StackError,
    TargetError,
    UsageError,
)
from seatrial.findings.finding import CAUSE, FIX
from seatrial.findings.own_words import SHARE_WORDS, with_own_words
from seatrial.job.retired import replaced_option
from seatrial.system.host import Host
from seatrial.system.typed_path import as_typed as typed_path

#: How errors and findings say "the same on the CPU", without knowing what was typed.
WITHOUT_GPUS = "seatrial run --gpus none …"
#: And how they say "the same, and what the project asks for is allowed".
WITH_TRUST = "seatrial run --trust …"

#: What is wrong with a file where another kind of file, or other permissions, were expected.
_IN_THE_WAY = frozenset(
    (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
)

#: At a sentence's end, and not the folder "." or "..".
_FULL_STOP = re.compile(r"(?<=[^\s./])\.+$")

#: Verbs that are advised in run's words, with their own name in its place.
_ADVISED_AS_RUN = ("plan", "shell", "build", "tune", "sweep")

#: What pydantic raises for text that is none; by its name, since not every verb imports pydantic.
_NOT_TEXT = "PydanticSerializationError"


def report(error: Exception, argv: list[str]) -> int:
    """Print it to stderr; the exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    known = _sentence(error, argv)
    if known is None:
        _unexpected(console, error, argv)
    else:
        _print(console, *known)
        if isinstance(error, GpuContractError) and not isinstance(error, CapacityError | StackError):
            second_opinion(console, argv)
    return exit_code(error)


def exit_code(error: Exception) -> int:
    """What an error ends the command with."""
    if isinstance(error, SeatrialError):
        return error.exit_code
    is_usage = hasattr(error, "format_message") or type(error).__name__ == _NOT_TEXT
    return EXIT_USAGE if is_usage else EXIT_ENGINE


def _sentence(error: Exception, argv: list[str]) -> tuple[str, str | None, str | None] | None:
    """(message, cause, command) of an error that is no defect of ours, else None."""
    if isinstance(error, SeatrialError):
        advice = as_typed(_with_own_verb(error, argv), argv)
        if isinstance(error, TargetError) and advice:
            instead = _instead(*error.instead, argv) if error.instead else None
            advice = _with_own_options(advice, argv) if instead is None else _after(error.first, instead)
        if isinstance(error, RunNotFoundError) and error.instead:
            advice = _with_run(*error.instead, argv) or advice
        return error.message, error.cause, advice
    if (usage := usage_problem(error, argv)) is not None:
        return usage
    if type(error).__name__ == _NOT_TEXT:
        return (
            "The plan would contain text that is not UTF-8",
            "a path, or a variable such as http_proxy",
            "LC_ALL=C env | grep -a '[^ -~]'; pwd",
        )
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and not _is_somewhere():
        return "The working directory no longer exists", "it was deleted or moved", "cd; pwd"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        what = error.filename or "A file, or what the output goes to,"
        return f"{what} cannot be written: {error.strerror}", None, "df -h . /tmp"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Too many open files", "the open-file limit is low here", "ulimit -n 1024"
    if error.errno in _IN_THE_WAY and isinstance(error.filename, str):
        return f"{error.filename} cannot be used: {error.strerror}", None, f"ls -ld {typed_path(error.filename)}"
    return None


def _with_own_verb(error: SeatrialError, argv: list[str]) -> str | None:
    """Its advice about the target or --gpus for the verb that was typed, which takes them as run does."""
    about = isinstance(error, TargetError | GpuRequestError)
    about = about or (isinstance(error, UsageError) and (error.run or "").startswith("seatrial run --gpus "))
    if error.run is None or not about or not argv or argv[0] not in _ADVISED_AS_RUN:
        return error.run
    return re.sub(r"^seatrial run (?!--help)", f"seatrial {argv[0]} ", error.run)


def _instead(typed: str, meant: Sequence[str], argv: list[str]) -> str | None:
    """The user's own command with the target that was meant; None where the word stands there twice, or not at all.

    Args:
        typed: the word, or the same path written otherwise: ``a.py`` for ``./a.py``.
    """
    ours = argv[: argv.index("--")] if "--" in argv else argv
    path = os.path.normpath(Path(typed).absolute())
    places = [at for at, word in enumerate(ours) if at and os.path.normpath(Path(word).absolute()) == path]
    if argv[0] not in ("run", *_ADVISED_AS_RUN) or len(places) != 1:
        return None
    at = places[0]
    return shlex.join(["seatrial", *argv[:at], *meant, *argv[at + 1 :]])


def _with_run(typed: str, meant: str, argv: list[str]) -> str | None:
    """The user's own command with the run that was meant; None where that would change or delete another's run."""
    if argv.count(typed) != 1 or not {"rm", "stop", "exec"}.isdisjoint(argv[:2]):
        return None
    return shlex.join(["seatrial", *(meant if word == typed else word for word in argv)])


def _after(first: str | None, command: str) -> str:
    return command if first is None else f"{first} && {command}"


#: Verb, and what follows it up to a comment or another command; not where a part is left to fill in.
_ADVISED = re.compile(r"""(seatrial \w+ )(?!--help)((?:'[^']*'|"[^"]*"|[^#;&|…'"])*)(?=$|[#;&|])""")


def _with_own_options(advice: str, argv: list[str]) -> str:
    """Advice to start another target, with the options that were typed for this one: those that it does not give."""
    whole = _ADVISED.match(advice)
    verb = argv[0] if argv else ""
    if whole is None or verb not in ("run", *_ADVISED_AS_RUN) or whole[1] != f"seatrial {verb} ":
        return advice
    given = shlex.split(whole[2])
    if "--image" in given or any(word.startswith("--image=") for word in given):
        return advice
    typed = _typed_options(argv)
    rest = advice[len(whole[1]) :]
    if ["--gpus", "none"] in typed or ["--gpus=none"] in typed:  # a launcher's count says nothing against the CPU
        rest = re.sub(r"^((?:--nodes \S+ )?)--gpus \S+ ", r"\1", rest)
    names = {word.partition("=")[0] for word in rest.split()}  # also of what its comment says to type
    own = [word for option in typed if option[0].partition("=")[0] not in names for word in option]
    return f"{whole[1]}{shlex.join(own)}{' ' if own else ''}{rest}"


def _typed_options(argv: list[str]) -> list[list[str]]:
    """Each option before ``--``, with its value; not those that are the target, or a launcher's."""
    from seatrial.job.startable import LAUNCHERS, MPI_LAUNCHERS, is_python

    known = options_of(argv[0])
    ours = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    found: list[list[str]] = []
    at = 0
    while at < len(ours) and not (ours[at] in (*LAUNCHERS, *MPI_LAUNCHERS) or is_python(ours[at])):
        name, sign, _ = ours[at].partition("=")
        size = 2 if known.get(name) and not sign else 1
        if name in known and name != "-m":
            found.append(ours[at : at + size])
        at += size
    return found


def _is_somewhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def second_opinion(console: Console, argv: list[str]) -> None:
    """What doctor sees of the host, for a GPU contract that is broken."""
    from seatrial.doctor import examine  # only now: no other error needs it

    console.print(Text(as_typed(examine.second_opinion(Host()), argv) or ""))


def as_typed(advice: str | None, argv: list[str]) -> str | None:
    """Advice with the user's own command in place of …, WITHOUT_GPUS and WITH_TRUST."""
    if advice is None:
        return None
    ours, theirs = (argv[: argv.index("--")], argv[argv.index("--") :]) if "--" in argv else (argv, [])
    kept = [
        word
        for before, word in pairwise(["", *ours])
        if before != "--gpus" and word != "--gpus" and not word.startswith("--gpus=")
    ]
    advice = advice.replace(WITH_TRUST, shlex.join(["seatrial", *ours, "--trust", *theirs]))
    if WITHOUT_GPUS in advice and _takes_gpus(ours):
        advice = advice.replace(WITHOUT_GPUS, shlex.join(["seatrial", *kept, "--gpus", "none", *theirs]))
    verb = ours[0] if ours else ""
    if verb != "run" and verb not in _ADVISED_AS_RUN:
        return advice
    return with_own_words(advice, ours[1:], theirs, SHARE_WORDS if verb in SHARE_WORDS else (verb,))


def _takes_gpus(argv: list[str]) -> bool:
    """Whether the verb of this command has --gpus."""
    return "--gpus" in (options_of(*argv[:2]))


def _print(console: Console, message: str, cause: str | None, run: str | None) -> None:
    if re.match(r"(?!seatrial\b)[a-z]+ (?!\d)", message):  # a sentence, and no key, file, flag or "jax 0.4" begins it
        message = message[0].upper() + message[1:]
    lines = Text()
    sentence = _FULL_STOP.sub("", _visible(" ".join(message.splitlines())))
    lines.append("error", style="bold red").append(f": {sentence}\n")
    if cause:
        lines.append(f"  {CAUSE}", style="bold").append(f": {_visible(cause)}\n")
    if run:
        lines.append(f"  {FIX}", style="bold").append(f": {_visible(run)}\n")
    console.print(lines, end="")


def _unexpected(console: Console, error: Exception, argv: list[str]) -> None:
    """A defect of ours: a sentence for the user, the traceback in a file for the report."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="seatrial-", suffix=".traceback", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            traceback.print_exception(error, file=file)
        where = f"the traceback is in {file.name}"
    except OSError:  # no folder for temporary files can be written
        where = "the command below shows the traceback"
    _print(
        console,
        f"Internal error: {type(error).__name__}: {error}",
        f"This is a bug in seatrial; {where}",
        f"SEATRIAL_TRACEBACK=1 seatrial {shlex.join(argv)}",
    )


def _visible(text: str) -> str:
    """With control characters as codes: what is quoted from a file or a variable must not steer the terminal."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


#: (message, cause, command).
Sentence = tuple[str, str | None, str | None]

#: Verbs that start a target with arguments of its own.
_TAKE_ARGUMENTS = ("run", "plan", "sweep", "tune")


def usage_problem(error: Exception, argv: Sequence[str]) -> Sentence | None:
    """Return the sentence for a command line that click refused; None for another error."""
    if not isinstance(error, click.ClickException):
        return None
    context = getattr(error, "ctx", None)
    place = context.command_path if context else f"seatrial {argv[0]}"
    message = error.format_message().split(" (Possible options")[0].removesuffix(".")
    if isinstance(error, click.NoSuchOption):
        return _no_option(error, argv, place)
    if isinstance(error, click.BadOptionUsage):
        needs = "takes no value" if "does not take a value" in message else "needs a value"
        return f"{error.option_name} {needs}", None, f"{place} --help"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return _missing(error.param, argv, place)
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_name(error.param)}: {error.message.removesuffix('.')}", None, f"{place} --help"
    return message, None, f"{place} --help"


def _no_option(error: click.NoSuchOption, argv: Sequence[str], place: str) -> Sentence:
    option, command = error.option_name, place.removeprefix("seatrial ")
    if sentence := replaced_option(command, option):
        return f"{option} was removed: {sentence}", None, f"{place} --help"
    if option in ("-f", "--filename") and argv[0] in ("run", "plan") and list(argv[1:-1]) == [option]:
        from seatrial.job.target import instead_of_manifest, manifest_refused  # loads pydantic

        return manifest_refused(argv[-1]), None, instead_of_manifest(argv[-1])
    if option == "--target" and argv[0] == "up":
        return "--target is not supported by up yet: it plans for this machine", None, "seatrial up --plan --gpus none"
    if near := _near_option(option, list(options_of(*command.split()))):
        meant = [near + word[len(option) :] if word.split("=")[0] == option else word for word in argv]
        return f"No such option: {option}; did you mean {near}?", None, shlex.join(["seatrial", *meant])
    if argv[0] in _TAKE_ARGUMENTS and "--" not in argv:
        return f"No such option: {option}", "The target's own arguments go after --", _behind_dashes(argv)
    return f"No such option: {option}", None, f"{place} --help"


def _near_option(option: str, names: list[str]) -> str | None:
    """Return the option that was probably meant; ``--epochs`` is near to none, and the target's own."""
    if not option.startswith("--"):
        return None
    if len(begun := [name for name in names if name.startswith(option)]) == 1:
        return begun[0]
    near = difflib.get_close_matches(option, names, n=1, cutoff=0.8)
    return near[0] if near else None


def _behind_dashes(argv: Sequence[str]) -> str:
    """Return the command with the target's own options and further words moved behind ``--``."""
    known = options_of(argv[0])
    ours: list[str] = []
    theirs: list[str] = []
    has_target = "-m" in argv
    at = 1
    while at < len(argv):
        name, sign, _ = argv[at].partition("=")
        size = 1
        if name in known:
            mine = ours
            size = 2 if known[name] and not sign else 1
        elif argv[at].startswith("-"):
            mine = theirs
            behind = "" if sign else "".join(argv[at + 1 : at + 2])
            is_value = has_target or any(map(_is_script, argv[at + 2 :])) or behind.isdecimal()
            size = 2 if behind[:1] not in ("", "-") and not _is_script(behind) and is_value else 1
        else:
            mine = theirs if has_target else ours
            has_target = True
        mine += argv[at : at + size]
        at += size
    return shlex.join(["seatrial", argv[0], *(ours if has_target else [*ours, "TARGET"]), "--", *theirs])


def _is_script(word: str) -> bool:
    return word.endswith(".py") and Path(word).is_file()


def _missing(param: click.Parameter, argv: Sequence[str], place: str) -> Sentence:
    """Return ``--to is missing: onnx, pt2 or safetensors``, and the command with the first of them."""
    choices = [value for value in VALUES.get(param.metavar or "", ()) if value[0] != ":"]
    name = _name(param)
    if not choices:
        return f"{name} is missing", None, f"{place} --help"
    words = [*argv, *([name] if name.startswith("-") else []), choices[0]]
    listed = " or ".join([", ".join(choices[:-1]), choices[-1]])
    return f"{name} is missing: {listed}", None, shlex.join(["seatrial", *words])


def _name(param: click.Parameter) -> str:
    """Return ``--limit``, or ``RUN`` for an argument."""
    long = [name for name in param.opts if name.startswith("--")] or [name for name in param.opts if name[0] == "-"]
    return long[0] if long else str(param.metavar or param.name).upper()
