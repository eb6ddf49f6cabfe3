"""A command line that click refuses: one sentence, and the command that was probably meant."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from seatrial.cli.options import VALUES, options_of
from seatrial.job.retired import replaced_option

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
