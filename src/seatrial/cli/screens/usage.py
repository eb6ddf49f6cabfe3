"""Words that cannot be meant, as typer's parser refuses them: one sentence, and the command as it was probably meant.

typer's own sentences speak of its inside ("Value error", "Input should be a valid integer"); they are told from here.
Its exceptions are known by their names: which module has them changed between 0.12 and 0.29.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seatrial.cli.completing import FIXED
from seatrial.cli.words import options_of
from seatrial.job.retired import replaced_option

#: (message, cause, command).
Told = tuple[str, str | None, str | None]

#: Verbs that start a target with arguments of its own.
_TAKE_ARGUMENTS = ("run", "plan", "sweep", "tune")

#: What typer says of a value → what is expected there.
_EXPECTED = (
    (re.compile(r"valid integer|valid int range|not a valid int"), "a whole number"),
    (re.compile(r"valid number|valid float"), "a number"),
    (re.compile(r"greater than or equal to (\S+)|>=\s*(\S+?)\.?$"), "{} or more"),
    (re.compile(r"less than or equal to (\S+)|<=\s*(\S+?)\.?$"), "{} or less"),
)
_CHOICES = re.compile(r"(?:is not one of|Choose from:)\s*(.*)", re.DOTALL)
_NO_COMMAND = re.compile(r"No such command '(.+?)'")
_EXTRA = re.compile(r"unexpected extra arguments?\S* \((.*)\)")


def usage_problem(error: Exception, argv: Sequence[str]) -> Told | None:
    """What to say of an error in the words typed; None where it is another error."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    place = getattr(getattr(error, "ctx", None), "command_path", f"seatrial {argv[0]}")
    message: str = format_message().split(" (Possible options")[0].removesuffix(".")
    kind = type(error).__name__
    option = getattr(error, "option_name", "") or ""
    if kind == "NoSuchOption":
        return _no_option(option, error, argv) or (message, None, f"{place} --help")
    if option and kind == "BadOptionUsage":
        needs = "takes no value" if "does not take a value" in message else "needs a value"
        return f"{option} {needs}", None, f"{place} --help"
    if kind == "BadParameter" and getattr(error, "param", None) is not None:
        return _wrong_value(error, str(getattr(error, "message", "")), argv, place)
    if kind == "MissingParameter" and getattr(error, "param", None) is not None:
        return _missing(error, message, argv, place)
    if match := _NO_COMMAND.search(message):
        return _no_command(match[1], error, argv, place)
    if match := _EXTRA.search(message):
        several = " " in match[1]
        return f"Unexpected argument{'s' * several}: {match[1]}", None, f"{place} --help"
    return message, None, f"{place} --help"


def _no_option(option: str, error: Exception, argv: Sequence[str]) -> Told | None:
    command = getattr(getattr(error, "ctx", None), "command_path", "").removeprefix("seatrial ")
    if sentence := replaced_option(command, option):
        return f"{option} was removed: {sentence}", None, f"seatrial {command} --help"
    if option in ("-f", "--filename") and argv[0] in ("run", "plan") and list(argv[1:-1]) == [option]:
        from seatrial.job.target import instead_of_manifest, manifest_refused  # loads pydantic

        return manifest_refused(argv[-1]), None, instead_of_manifest(argv[-1])
    if option == "--target" and argv[0] == "up":
        return "--target is not supported by up yet: it plans for this machine", None, "seatrial up --plan --gpus none"
    if option and (near := _near_option(option, error)):
        meant = [near + word[len(option) :] if word.split("=")[0] == option else word for word in argv]
        return f"No such option: {option}; did you mean {near}?", None, shlex.join(["seatrial", *meant])
    if option and argv[0] in _TAKE_ARGUMENTS and "--" not in argv:
        return f"No such option: {option}", "The target's own arguments go after --", _behind_dashes(argv)
    return None


def _near_option(option: str, error: Exception) -> str | None:
    """The option of this command that was probably meant; ``--epochs`` is near to none, and the target's own."""
    context = getattr(error, "ctx", None)
    names = [name for each in context.command.params for name in getattr(each, "opts", ())] if context else []
    if option.startswith("--") and len(begun := [name for name in names if name.startswith(option)]) == 1:
        return str(begun[0])
    near = difflib.get_close_matches(option, names, n=1, cutoff=0.8) if option.startswith("--") else []
    return str(near[0]) if near else None


def _behind_dashes(argv: Sequence[str]) -> str:
    """The command with what is the target's own where the target gets it: options that are not ours, further words."""
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
            size = 2 if known[name] is not None and not sign else 1
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
    """Whether it is the script, and no value of the option before it."""
    return word.endswith(".py") and Path(word).is_file()


def _wrong_value(error: Exception, said: str, argv: Sequence[str], place: str) -> Told:
    """``--limit: expected a whole number, got 'x'``, and the command with a value that is right."""
    param: Any = error.param  # type: ignore[attr-defined]
    typed, at = _typed(param, said, argv)
    got = "" if typed is None else f", got {_shown(typed)}"
    choices = _choices(said)
    if choices:
        expected = _either(choices)
    else:
        expected = next((_filled(words, match) for rule, words in _EXPECTED if (match := rule.search(said))), "")
    if not expected:
        return f"{_name(param)}: {said.removeprefix('Value error, ').rstrip('.')}", None, f"{place} --help"
    default: Any = getattr(param, "default", None)
    is_safe = type(default) in (int, float) and default > 0  # prune --keep 0 deletes all
    right = choices[0] if choices else f"{default:g}" if is_safe else None
    if right is None or at is None:
        return f"{_name(param)}: expected {expected}{got}", None, f"{place} --help"
    word = argv[at]
    fixed = [*argv[:at], word.replace(typed or "", right, 1) if typed and word != typed else right, *argv[at + 1 :]]
    return f"{_name(param)}: expected {expected}{got}", None, shlex.join(["seatrial", *fixed])


def _missing(error: Exception, said: str, argv: Sequence[str], place: str) -> Told:
    """``SHELL is missing: bash, zsh or fish``, and the command with one of them."""
    param: Any = error.param  # type: ignore[attr-defined]
    choices, name = _choices(said), _name(param)
    choices = choices or [word for word, _ in FIXED.get(str(getattr(param, "metavar", "")), ()) if word[0] != ":"]
    if not choices:
        return f"{name} is missing", None, f"{place} --help"
    words = [*argv, *([name] if name.startswith("-") else []), choices[0]]
    return f"{name} is missing: {_either(choices)}", None, shlex.join(["seatrial", *words])


def _no_command(word: str, error: Exception, argv: Sequence[str], place: str) -> Told:
    context: Any = getattr(error, "ctx", None)
    commands = getattr(getattr(context, "command", None), "commands", {})
    known = [name for name, command in commands.items() if not getattr(command, "hidden", False)]
    near = difflib.get_close_matches(word, known, n=1)
    if not near:
        return f'{place} has no command "{word}"; it has {", ".join(known)}', None, f"{place} --help"
    meant = [near[0] if each == word else each for each in argv]
    return f'{place} has no command "{word}"; did you mean {near[0]}?', None, shlex.join(["seatrial", *meant])


def _typed(param: Any, said: str, argv: Sequence[str]) -> tuple[str | None, int | None]:
    """(the value that was typed for it, the index of the word that holds it), as far as it can be told."""
    names = [name for name in getattr(param, "opts", ()) if name.startswith("-")]
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            return (value, at) if equals else (argv[at + 1], at + 1) if at + 1 < len(argv) else (None, None)
        if at and not names and f"'{word}' is not one of" in said:
            return word, at
    return None, None


def _choices(said: str) -> list[str]:
    """Of a sentence that lists them."""
    found = _CHOICES.search(said)
    return [word for word in re.split(r"[\s,]+", found[1].replace("'", "").rstrip(".")) if word] if found else []


def _either(words: Sequence[str]) -> str:
    return " or ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), words[-1]])


def _filled(words: str, match: re.Match[str]) -> str:
    return words.format(next((group for group in match.groups() if group), ""))


def _name(param: Any) -> str:
    """``--limit``, ``SHELL``."""
    names = [name for name in getattr(param, "opts", ()) if name.startswith("-")]
    long = [name for name in names if name.startswith("--")] or names
    return str(long[0]) if long else str(getattr(param, "metavar", None) or param.name).upper()


def _shown(typed: str) -> str:
    return f"'{typed if len(typed) <= 80 else typed[:79] + '…'}'"
