"""The command line: a file for each group of verbs, loaded only when it is used, no logic.

``main`` alone prints errors and exits. Exit codes: 0 success, 1 the target failed, 2 usage, 3 GPU contract,
4 criteria unmet under --strict, 5 engine or environment.
"""

from __future__ import annotations

import os
import sys

from seatrial.cli import terminal
from seatrial.cli.verbs import OTHER_WORDS, VERBS
from seatrial.errors import EXIT_INTERRUPTED, SeatrialError, UsageError

#: 128 + SIGPIPE, as shells report it; 0 would read as a run that is done.
EXIT_NO_READER = 141

#: 24 lines of at most 80 columns: one screen.
_HELP = """\
Usage: seatrial COMMAND [OPTIONS] [TARGET] [-- TARGET'S OWN ARGUMENTS]

Runs a training script in a GPU container and proves what the GPU did.

{verbs}

  seatrial run train.py --gpus 1      any script, unchanged; or: run digits
  seatrial COMMAND --help             its options; --no-color: without colours
Exit: 0 done, 1 target failed, 2 usage, 3 GPU contract, 4 criteria, 5 engine
"""


def main() -> None:
    """Run ``seatrial`` and exit with its code."""
    terminal.prepare()
    sys.exit(_main(sys.argv[1:]))


@terminal.open_door()
def _main(argv: list[str]) -> int:
    try:
        code = _answer(_without_colour(argv))
        terminal.finish()
    except (BrokenPipeError, SystemExit) as error:
        if not _reader_has_gone(error):
            raise
        terminal.abandon()
        return EXIT_NO_READER
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  the one place that turns every error into a sentence
        # pydantic wraps Ctrl-C that comes while it makes a model, and keeps only its name; click makes an Abort of it.
        name = type(error).__name__
        wrapped = name == "SchemaError" and "KeyboardInterrupt" in str(error)
        if isinstance(error, KeyboardInterrupt) or name == "Abort" or wrapped:
            print("stopped", file=sys.stderr)
            return EXIT_INTERRUPTED
        if os.environ.get("SEATRIAL_TRACEBACK") and not isinstance(error, (SeatrialError, OSError)):
            import traceback

            traceback.print_exc()
            return 1
        return _report(error, argv)
    return code


def _without_colour(argv: list[str]) -> list[str]:
    """Treat ``--no-color``, anywhere before the target's own arguments, as NO_COLOR (https://no-color.org)."""
    ours = argv[: argv.index("--")] if "--" in argv else argv
    if "--no-color" not in ours:
        return argv
    os.environ["NO_COLOR"] = "1"
    return [word for word in ours if word != "--no-color"] + argv[len(ours) :]


def _answer(argv: list[str]) -> int:
    if argv[:1] == ["help"] and argv[1:2] and argv[1] in VERBS:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        import shutil
        import textwrap

        verbs = "\n".join(f"{group:<9}{verb:<11}{line}" for verb, (_, group, line) in VERBS.items())
        for line in _HELP.format(verbs=verbs).splitlines():
            hanging = " " * (20 if line in verbs else 2)
            width = shutil.get_terminal_size().columns
            print(textwrap.fill(line, width, subsequent_indent=hanging, break_on_hyphens=False))
    elif argv[0] in ("-V", "--version", "version") or argv == ["-v"]:
        from seatrial import __version__

        print(f"seatrial {__version__}")
    elif argv[0] == "--completion":
        from seatrial.cli.completion import answer
        from seatrial.cli.options import Root

        return answer(Root(), argv[1:])
    elif argv[0] not in VERBS:
        raise _unknown_verb(argv[0], argv[1:])
    else:
        from seatrial.cli.words import dispatch

        return dispatch(argv)
    return 0


def _reader_has_gone(ending: BaseException) -> bool:
    """Return True if the reader of our output has gone, e.g. ``| head``; rich and click make an exit with 1 of it."""
    cause: BaseException | None = ending
    while cause is not None and not isinstance(cause, BrokenPipeError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _report(error: Exception, argv: list[str]) -> int:
    """Print an error and return its exit code, also where its sentence cannot be printed."""
    from seatrial.cli import errors

    if isinstance(error, OSError) and error.filename is None and terminal.flush() is not None:
        error = terminal.cannot_write(error)
    terminal.abandon()
    try:
        return errors.report(error, argv)
    except (OSError, SystemExit):  # standard error cannot be written; SystemExit is what rich makes of it
        terminal.abandon()
        return errors.exit_code(error)


def _unknown_verb(word: str, rest: list[str]) -> UsageError:
    import difflib
    import re
    import shlex

    from seatrial.cli.words import of_docker
    from seatrial.job.flags import COMMANDS
    from seatrial.job.startable import LAUNCHERS, MPI_LAUNCHERS, SHELLS, SUBMITTERS, is_python

    known = [*VERBS, *(each for each, command in OTHER_WORDS.items() if command not in ("runs rm", "runs prune"))]
    close = [OTHER_WORDS[word]] if word in OTHER_WORDS else []
    close += [verb for verb in VERBS if len(word) > 2 and verb.startswith(word)]
    close += [OTHER_WORDS.get(each, each) for each in difflib.get_close_matches(word, known, n=1)]
    starters = (*LAUNCHERS, *MPI_LAUNCHERS, *SHELLS, *SUBMITTERS)
    run = shlex.join(["seatrial", "run", re.sub(r"^-.*\.py$", r"./\g<0>", word), *rest])
    if replacement := COMMANDS.get(" ".join([word, *rest[:1]])) or COMMANDS.get(word):
        own = shlex.join(each for each in rest if each[:1] != "-")  # in place of NAME, GROUP, or MODEL INPUT…
        sentence = f"seatrial has no command {word}"
        fix = re.sub(r"(--all .*)?[A-Z]{4,}.*", lambda _: own, replacement) if own else replacement
    elif words := of_docker([word, *rest]):
        sentence, fix = words
    elif word.startswith("-") and rest:
        sentence = f"A command is missing before {word}"
        at = next((at for at, each in enumerate(rest) if each in VERBS), None)  # its options stand behind it
        fix = run if at is None else shlex.join(["seatrial", *rest[at:], word, *rest[:at]])
    elif word.endswith(".py") or (rest and (word in starters or is_python(word))):
        sentence, fix = f'Unknown command "{word}"', run
    elif close:
        sentence = f'Unknown command "{word}"; did you mean {close[0]}?'
        fix = shlex.join(["seatrial", *close[0].split(), *rest])
    else:
        sentence, fix = f'Unknown command "{word}"', "seatrial --help"
    return UsageError(sentence, run=fix)
