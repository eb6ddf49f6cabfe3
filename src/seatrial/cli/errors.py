"""Prints an error as one sentence, its cause and the command to run next; a traceback only for a defect of ours."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from seatrial import errors
from seatrial.cli import terminal
from seatrial.cli.completion import VALUES, find_command
from seatrial.cli.options import WITH_TRUST, WITHOUT_GPUS, Root, options_of
from seatrial.cli.words import declared_options, is_script, similar_option, typed_parts, with_dashes, without_docker
from seatrial.findings.finding import CAUSE, FIX, with_own_words
from seatrial.job.flags import ELSEWHERE, OPTIONS
from seatrial.system.host import Host
from seatrial.system.names import hidden
from seatrial.system.text import as_typed as typed_path

#: The file is of another kind, or has other permissions, than expected.
_IN_THE_WAY = frozenset(
    (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
)
#: The full stop of a sentence, not of the folder "." or "..".
_FULL_STOP = re.compile(r"(?<=[^\s./])\.+$")
#: Begin of a further line of a cause or a command. It is indented, so a file's name cannot imitate a line of ours.
_LINE_START = re.compile(r"\n(?! {4})")
#: Verbs that take run's words, so that advice to run applies to them under their own name.
_LIKE_RUN = ("plan", "shell", "build", "tune", "sweep")
#: Verbs that start a target with arguments of its own.
_TAKE_ARGUMENTS = ("run", "plan", "sweep", "tune")
#: Verb, and its words up to a comment or another command; not where a part is left to fill in.
_ADVISED = re.compile(r"""(seatrial \w+ )(?!--help)((?:'[^']*'|"[^"]*"|[^#;&|…'"])*)(?=$|[#;&|])""")
#: Advice that the parser can check: plain words, or all words behind the command that makes the target.
_PARSED = re.compile(r"(echo .+ && )?seatrial ((?(1)[^…#;&|\n]+|[\w ]+))")
#: Raised by pydantic for text that is not valid; compared by name, since not every verb imports pydantic.
_NOT_TEXT = "PydanticSerializationError"
#: (message, cause, command).
Sentence = tuple[str, str | None, str | None]


def report(error: Exception, argv: list[str]) -> int:
    """Print the error to stderr; return the exit code."""
    console = terminal.console(stderr=True, soft_wrap=True)
    message, cause, run = _sentence(error, argv) or _defect(error, argv)
    if isinstance(error, errors.GpuContractError) and not isinstance(error, errors.CapacityError | errors.StackError):
        from seatrial.doctor.examine import first_broken  # no other error needs it

        if (broken := first_broken(Host())) is not None and broken.fix:  # this machine decides the one fix
            same = broken.message.lower() in message.lower()
            cause, run = cause if same else broken.message, as_typed(broken.fix, argv)
    names = tuple(f"{word}{end}" for word in ("seatrial", *argv) for end in " :")  # a file's may have blanks
    if re.match(r"[a-z]+ (?!\d)", message) and not message.startswith(names):  # nor does a key or "jax 0.4" begin it
        message = message[0].upper() + message[1:]
    _print(console, message, cause, _taken(run) if run and exit_code(error) == errors.EXIT_USAGE else run)
    return exit_code(error)


def exit_code(error: Exception) -> int:
    """Return the exit code that an error ends the command with."""
    if isinstance(error, errors.SeatrialError):
        return error.exit_code
    is_usage = isinstance(error, click.ClickException) or type(error).__name__ == _NOT_TEXT
    return errors.EXIT_USAGE if is_usage else errors.EXIT_ENGINE


def _sentence(error: Exception, argv: list[str]) -> Sentence | None:
    """Return the sentence of an error; None for a defect of ours."""
    if isinstance(error, errors.SeatrialError):
        return error.message, error.cause, _advice(error, argv)
    if isinstance(error, click.ClickException):
        return _usage_problem(error, argv)
    if type(error).__name__ == _NOT_TEXT:
        cause, run = "a path, or a variable such as http_proxy", "LC_ALL=C env | grep -a '[^ -~]'; pwd"
        return "The plan would contain text that is not UTF-8", cause, run
    if isinstance(error, UnicodeError) and sys.getfilesystemencoding() != "utf-8":
        return "This locale is not UTF-8", None, f"PYTHONUTF8=1 seatrial {shlex.join(argv)}"
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and errors.fallback(None, on=FileNotFoundError)(Path.cwd)() is None:
        return "The working directory no longer exists", "it was deleted or moved", "cd; pwd"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        file = error.filename or "A file, or what the output goes to,"
        return f"{file} cannot be written: {error.strerror}", None, "df -h . /tmp"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Too many open files", "the open-file limit is low here", "ulimit -n 1024"
    if error.errno in _IN_THE_WAY and isinstance(error.filename, str):
        return f"{error.filename} cannot be used: {error.strerror}", None, f"ls -ld {typed_path(error.filename)}"
    return None


def _defect(error: Exception, argv: list[str]) -> Sentence:
    """Return a sentence for a defect of ours; the traceback is in a file for the report."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="seatrial-", suffix=".traceback", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            traceback.print_exception(error, file=file)
        place = f"the traceback is in {file.name}"
    except OSError:  # no folder for temporary files can be written
        place = "the command below shows the traceback"
    return (
        f"Internal error: {type(error).__name__}: {error}",
        f"This is a bug in seatrial; {place}",
        f"SEATRIAL_TRACEBACK=1 seatrial {shlex.join(argv)}",
    )


def _print(console: Console, message: str, cause: str | None, run: str | None) -> None:
    sentence = _FULL_STOP.sub("", hidden(" ".join(message.splitlines())))
    for name, text in (("error", sentence), (f"  {CAUSE}", cause), (f"  {FIX}", run)):
        if text:
            words = f"{name}: " + _LINE_START.sub("\n    ", hidden(text))
            line = Text((terminal.at_comment if text is run else terminal.at_words)(words, console))
            line.stylize("bold red" if text is sentence else "bold", 0, len(name))
            console.print(line)


def _advice(error: errors.SeatrialError, argv: list[str]) -> str | None:
    """Return the error's command in the words that were typed."""
    advice = error.run
    of_gpus = isinstance(error, errors.UsageError) and (advice or "").startswith("seatrial run --gpus ")
    about_words = of_gpus or isinstance(error, errors.TargetError | errors.GpuRequestError)
    if advice is not None and about_words and argv and argv[0] in _LIKE_RUN:
        advice = re.sub(r"(?m)(^| && )seatrial run (?!--help)", rf"\1seatrial {argv[0]} ", advice)
    if advice == "seatrial run --help" and argv and argv[0] in _LIKE_RUN:
        advice = f"seatrial {argv[0]} --help"
    advice = as_typed(advice, argv)
    if advice and argv[:1] == ["plan"]:  # which starts nothing
        advice = advice.replace("seatrial up ", "seatrial up --plan ")
    if isinstance(error, errors.TargetError) and advice:
        if (error.first or "").startswith("cd "):  # the folder is the project then
            cut = [*argv, "--"].index("--")
            parts = typed_parts(argv[:cut], options_of(argv[0]))
            own = [word for _, each in parts if not each[0].startswith(("-C", "--project")) for word in each]
            argv = own + argv[cut:]
        command = _with_target(*error.instead, argv) if error.instead else None
        if command is None:
            return "\n".join(_with_own_options(line, argv) for line in advice.split("\n"))
        return command if error.first in (None, "cd .") else f"{error.first} && {command}"
    if isinstance(error, errors.UsageError) and error.instead and (command := _with_value(*error.instead, argv)):
        return command
    return _of_a_model(advice, error.message, argv) if advice and argv[:1] in (["export"], ["serve"]) else advice


def _of_a_model(advice: str, message: str, argv: list[str]) -> str:
    """Return advice of export or serve with the typed options that it lacks, and the typed format for its example."""
    command, mark, comment = advice.partition("   # ")
    if not command.startswith(f"seatrial {argv[0]} ") or command.endswith(" --help"):
        return advice
    for words in _typed_options(argv):
        name, sign, _ = words[0].partition("=")
        if not re.search(rf"(?<!\S){name}(?![\w-])", f"{command} {message}"):
            command += f" {shlex.join(words)}"
        elif name == "--to" and (sign or words[1:]) and name not in message:
            command = re.sub(r"(?<!\S)--to[ =]\S+", shlex.join(words), command)
    return f"{command}{mark}{comment}"


def as_typed(advice: str | None, argv: list[str]) -> str | None:
    """Return advice with the user's own command in place of …, WITHOUT_GPUS and WITH_TRUST."""
    if advice is None:
        return None
    argv = [*with_dashes(argv)] if argv else argv  # an option that the advice adds would be taken for the script's
    cut = argv.index("--") if "--" in argv else len(argv)
    ours, theirs = argv[:cut], argv[cut:]
    advice = advice.replace(WITH_TRUST, shlex.join(["seatrial", *ours, "--trust", *theirs]))
    if WITHOUT_GPUS in advice and "--gpus" in options_of(*ours[:2]):
        kept = [word for name, words in typed_parts(ours, {"--gpus": True}) if not name for word in words]
        advice = advice.replace(WITHOUT_GPUS, shlex.join(["seatrial", *kept, "--gpus", "none", *theirs]))
    verb = ours[0] if ours else ""
    advised = re.findall(r" (--\w[\w-]*)", re.split(" # | -- ", advice)[0])
    if verb in _LIKE_RUN and {*advised} <= {*options_of(verb)}:
        advice = re.sub(r"seatrial run (?=[^;&|]*…)", f"seatrial {verb} ", advice)
    for other in ("run", *_LIKE_RUN) if verb in ("run", *_LIKE_RUN) else (verb,):
        if f"seatrial {other} " in advice:  # importing a verb takes time
            parts, known = typed_parts(ours[1:], options_of(verb)), options_of(other)
            own = [word for name, words in parts if not name or name in known for word in words]
            advice = with_own_words(advice, own, theirs, (other,))
    return advice


def _with_target(typed: str, words: Sequence[str], argv: list[str]) -> str | None:
    """Return the user's own command with other words for the target; None if it stands there twice, or not at all.

    ``typed``: the word, or the same path written otherwise: ``a.py`` for ``./a.py``.
    """
    ours = argv[: argv.index("--")] if "--" in argv else argv
    path = os.path.normpath(Path(typed).absolute())
    places = [at for at, word in enumerate(ours) if at and os.path.normpath(Path(word).absolute()) == path]
    if argv[0] not in ("run", *_LIKE_RUN) or len(places) != 1:
        return None
    return _with_words(argv, places[0], words)


def _with_value(typed: str, names: Sequence[str], argv: Sequence[str]) -> str | None:
    """Return the user's command with the first name in place of a value; None if the value's place is unclear."""
    bare = [re.sub(r"^--[a-z-]+=", "", word) for word in argv]
    any_of = (".+", "(:r[ow])?") if typed[:1] == ":" else ("", ".*" * (typed[-1:] == "="))  # :/TARGET of a mount
    places = [at for at, word in enumerate(bare) if re.fullmatch(re.escape(typed).join(any_of), word, re.DOTALL)]
    if not names or len(places) != 1 or {"rm", "stop", "exec"} & {*argv[:2]}:  # which change or delete a run
        return None
    kept = argv[places[0]].removesuffix(bare[places[0]])
    return _with_words(argv, places[0], [kept + bare[places[0]].replace(typed, names[0], 1)])


def _with_words(argv: Sequence[str], place: int, words: Sequence[str]) -> str:
    """Return the user's own command with others in place of one word."""
    return shlex.join(["seatrial", *argv[:place], *words, *argv[place + 1 :]])


def _with_own_options(advice: str, argv: list[str]) -> str:
    """Return advice to start another target, with the typed options that it does not give itself."""
    whole, verb = _ADVISED.search(advice), argv[0] if argv else ""
    if whole is None or verb not in ("run", *_LIKE_RUN) or whole[1] != f"seatrial {verb} ":
        return advice
    if any(word == "--image" or word.startswith("--image=") for word in shlex.split(whole[2])):
        return advice
    typed = _typed_options(argv)
    rest = advice[whole.end(1) :]
    if ["--gpus", "none"] in typed or ["--gpus=none"] in typed:  # a launcher's count does not rule out the CPU
        rest = re.sub(r"^((?:--nodes \S+ )?)--gpus \S+ ", r"\1", rest)
    names = {word.partition("=")[0] for word in re.sub(" -- .*?(?= # |$)", "", rest).split()}  # also of its comment
    own = [word for option in typed if option[0].partition("=")[0] not in names for word in option]
    return f"{advice[: whole.end(1)]}{shlex.join(own)}{' ' if own else ''}{rest}"


def _typed_options(argv: list[str]) -> list[list[str]]:
    """Return each option before ``--`` with its value; not those that are the target, or a launcher's."""
    from seatrial.job.startable import LAUNCHERS, MPI_LAUNCHERS, RUNNERS, SHELLS, SUBMITTERS, is_python

    found: list[list[str]] = []
    for name, words in typed_parts(argv[1 : argv.index("--")] if "--" in argv else argv[1:], options_of(argv[0])):
        if words[0] in (*LAUNCHERS, *MPI_LAUNCHERS, *SHELLS, *SUBMITTERS, *RUNNERS) or is_python(words[0]):
            break
        if name and name != "-m":
            found.append(words)
    return found


def _taken(run: str) -> str:
    """Return a command; in place of one that our own parser refuses, the command that the refusal advises."""
    whole = _PARSED.fullmatch(run)
    words = [*with_dashes(shlex.split(whole[2]))] if whole else []
    if whole and (command := find_command(Root(), words)) is not None:
        try:
            command.make_context("seatrial", words[_depth(words) : [*words, "--"].index("--")], obj=[])
        except click.ClickException as error:
            return f"{whole[1] or ''}{_usage_problem(error, words)[2] or f'seatrial {whole[2]}'}"
    return run


def _depth(argv: Sequence[str]) -> int:
    """Return how many of the first words name a command: 2 for ``runs ls``."""
    return 1 + (find_command(Root(), argv[:2]) is not find_command(Root(), argv[:1]))


def _usage_problem(error: click.ClickException, argv: Sequence[str]) -> Sentence:
    """Return the sentence for a command line that click refused."""
    place = " ".join(["seatrial", *argv[: _depth(argv)]])  # click names a group for the options of its commands
    message = error.format_message().split(" (Possible options")[0].removesuffix(".")
    if isinstance(error, click.NoSuchOption):
        return _no_option(error.option_name, argv, place)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return _missing(error.param, argv, place)
    if isinstance(error, click.BadOptionUsage):
        message = f"{error.option_name} {'takes no' if 'does not take a value' in message else 'needs a'} value"
        last = [*argv, "--"].index("--") - 1
        if argv[last] == "-v" and "--verbose" in options_of(*argv[:1]):  # docker's, for a mount
            return f"{message}; did you mean --verbose?", None, _with_words(argv, last, ["--verbose"])
    elif isinstance(error, click.BadParameter) and error.param is not None:
        message = f"{_name(error.param)}: {error.message.removesuffix('.')}"
        message = re.sub(r"is not a valid integer( range)?", "is not a whole number", message)
        message = re.sub(r"is not a valid float( range)?", "is not a number", message)
        typed, *listed = re.findall("'([^']*)'", error.message) or [""]
        usual = error.param.default if isinstance(error.param.default, int | float) else None
        values = difflib.get_close_matches(typed, listed, n=1) or ([] if usual is None else [f"{usual:g}"])
        return message, None, _with_value(typed, values, argv) or f"{place} --help"
    elif extra := re.fullmatch(r"Got unexpected extra arguments? \((.+)\)", message):
        message, words = f"{place} takes no {extra[1]}", extra[1].split()
        kept = [each for each in argv if each not in words]
        if is_script(extra[1]):
            return message, None, shlex.join(["seatrial", "plan", extra[1]])
        if len(kept) == len(argv) - len(words):  # else a word is also an option's value, or has a space
            return message, None, shlex.join(["seatrial", *kept])
    return message, None, f"{place} --help"


def _no_option(option: str, argv: Sequence[str], place: str) -> Sentence:
    command = place.removeprefix("seatrial ")
    if sentence := OPTIONS.get(f"{command} {option.partition('=')[0]}"):
        return f"{option} was removed: {sentence}", None, f"{place} --help"
    own, of_run = options_of(*command.split()), options_of("run")
    ours = argv[: [*argv, "--"].index("--")]
    option = next((word for word in ours if word[:2] == option and f"-{word}" in own), option)  # click reads -on as -o
    named = next((word for word in argv[1:] if word.endswith(".py")), "")
    script = Path(named) if named else None
    if named[:2] == option:
        return f"{named} begins like an option", None, _with_words(argv, [*argv].index(named), [f"./{named}"])
    if script and argv[0] in _TAKE_ARGUMENTS and "--" not in argv:  # click names the first, which may be the script's
        theirs = [words[0].split("=")[0] for name, words in typed_parts(argv[1:], own) if not name]
        known = declared_options(script, theirs)
        others = (each for each in theirs if re.match("--?[A-Za-z]", each) and each not in known)
        option = next(others, option) if option in known else option
    own_option = argv[0] in _TAKE_ARGUMENTS and script and declared_options(script, [option])
    if not own_option and (found := ELSEWHERE.get(f"{command} {option}")):
        parts = [*typed_parts(argv, {**own, option: "VALUE" in found[1]})]
        value = "".join(each[0].partition("=")[2] or "".join(each[1:]) for name, each in parts if name == option)
        kept = [word for name, each in parts if name != option for word in each]
        model = next((shlex.quote(each[0]) for name, each in parts[1:] if not name), "MODEL")
        run = found[1].replace("VALUE", value or found[-1]).replace("MODEL", model)
        return f"No such option: {option}; {found[0]}", None, as_typed(run, kept)
    if option in of_run and option[:2] == "--":
        kept = [word for name, words in typed_parts(argv, of_run | own) if name != option for word in words]
        return f"{option} is an option of seatrial run, not of {place}", None, shlex.join(["seatrial", *kept])
    names = list(own) if option.startswith("--") else [f"-{option}"] if f"-{option}" in own else []
    unknown = f"No such option: {option}"
    begun = [name for name in names if name.startswith(option)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(option, names, n=1, cutoff=0.81)
    if close and not own_option:  # ``--epochs`` is close to no option of ours
        words = [close[0] + word[len(option) :] if word.split("=")[0] == option else word for word in ours]
        words += argv[len(ours) :]
        return f"{unknown}; did you mean {close[0]}?", None, shlex.join(["seatrial", *words])
    if argv[0] == "sweep" and (typed := next((word for word in argv if word.startswith(f"{option}=")), None)):
        words = [part for word in argv for part in (("--set", word[2:]) if word == typed else (word,))]
        return unknown, "A setting of the target needs --set before it", shlex.join(["seatrial", *words])
    notes, ours = without_docker(argv) if argv[0] in ("build", "shell", *_TAKE_ARGUMENTS) else ("", [*argv])
    if notes:
        docker = "docker build" if argv[0] == "build" else "docker run"
        return f"{option} is an option of {docker}, not of {place}", notes, _behind_dashes(ours)
    if own_option or (argv[0] in _TAKE_ARGUMENTS and "--" not in argv):
        if script and (similar := similar_option(script, option)):
            words = [similar + word[len(option) :] if word.split("=")[0] == option else word for word in argv]
            return f"{unknown}; did you mean {script.name}'s {similar}?", None, _behind_dashes(words)
        return unknown, "The target's own arguments go after --", _behind_dashes(argv)
    return unknown, None, f"{place} --help"


def _behind_dashes(argv: Sequence[str]) -> str:
    """Return the command with the target's own options, those of both included, and further words behind ``--``."""
    known = options_of(argv[0])
    ours, theirs = list[str](), list[str]()
    has_target = "-m" in argv or "--image" in argv
    end = argv.index("--") if "--" in argv else len(argv)
    script = next((Path(word) for word in argv[1:end] if is_script(word)), None)
    foreign = any(not name and words[0][:1] == "-" for name, words in typed_parts(argv[1:end], known))
    scripts_own = declared_options(script, known) if script and foreign else set()
    at = 1
    while at < end:
        name, sign, _ = argv[at].partition("=")
        size = 1
        if name in known:
            mine = theirs if name in scripts_own else ours
            size = 2 if known[name] and not sign else 1
        elif argv[at].startswith("-"):
            mine = theirs
            after = "" if sign else "".join(argv[at + 1 : at + 2])
            is_value = has_target or any(map(is_script, argv[at + 2 :])) or after.isdecimal()
            size = 2 if after[:1] not in ("", "-") and not is_script(after) and is_value else 1
        else:
            mine = theirs if has_target else ours
            has_target = True
        mine += argv[at : at + size]
        at += size
    behind = [*theirs, *argv[end + 1 :]]
    ours += ["TARGET"] * bool(behind and not has_target)
    return shlex.join(["seatrial", argv[0], *ours, *["--"][: len(behind)], *behind])


def _missing(param: click.Parameter, argv: Sequence[str], place: str) -> Sentence:
    """Return ``--to is missing: onnx, pt2 or safetensors``, and the command with the first of them."""
    choices = [value for value in VALUES.get(param.metavar or "", ()) if value[0] != ":"]
    name = _name(param)
    if not choices:
        return f"{name} is missing", None, f"{place} --help"
    chosen = next((word for word in argv if word in choices), choices[0])
    words = [*(word for word in argv if word != chosen), *([name] if name.startswith("-") else []), chosen]
    listed = " or ".join([", ".join(choices[:-1]), choices[-1]])
    return f"{name} is missing: {listed}", None, shlex.join(["seatrial", *words])


def _name(param: click.Parameter) -> str:
    """Return a parameter's name as people type it: ``--limit``, or ``RUN`` for an argument."""
    long = [name for name in param.opts if name.startswith("--")] or [name for name in param.opts if name[0] == "-"]
    return long[0] if long else str(param.metavar or param.name).upper()
