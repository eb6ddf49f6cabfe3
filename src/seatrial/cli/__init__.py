"""The command line: one file per verb, loaded only when it is asked for, no logic.

``main`` alone prints errors and exits. Exit codes: 0 success, 1 the target failed, 2 usage, 3 GPU contract,
4 criteria unmet under --strict, 5 engine or environment.
"""

from __future__ import annotations

import os
import sys

from seatrial.cli import terminal
from seatrial.cli.verbs import OTHER_WORDS, VERBS
from seatrial.errors import EXIT_INTERRUPTED, SeatrialError

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
    """Entry point of ``seatrial``."""
    terminal.prepare()
    sys.exit(_main(sys.argv[1:]))


def _main(argv: list[str]) -> int:
    try:
        code = _answer(_without_colour(argv))
        terminal.finish()
    except KeyboardInterrupt:  # wherever it comes, before or after click, which makes an Abort of it
        print("stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        if not _reader_has_gone(error):
            raise
        terminal.abandon()
        return EXIT_NO_READER
    except Exception as error:  # the one place that turns every error into a sentence
        if _was_interrupted(error):
            print("stopped", file=sys.stderr)
            return EXIT_INTERRUPTED
        if os.environ.get("SEATRIAL_TRACEBACK") and not isinstance(error, (SeatrialError, OSError)):
            raise
        return _report(error, argv)
    return code


def _without_colour(argv: list[str]) -> list[str]:
    """``--no-color``, anywhere before the target's own arguments: the same as NO_COLOR (https://no-color.org)."""
    ours = argv[: argv.index("--")] if "--" in argv else argv
    if "--no-color" not in ours:
        return argv
    os.environ["NO_COLOR"] = "1"
    return [word for word in ours if word != "--no-color"] + argv[len(ours) :]


def _answer(argv: list[str]) -> int:
    if argv[:1] == ["help"] and argv[1:2] and argv[1] in VERBS:
        return _dispatch([*argv[1:], "--help"])
    if not argv or argv[0] in ("-h", "--help", "help"):
        verbs = "\n".join(f"{group:<9}{verb:<11}{line}" for verb, (_, group, line) in VERBS.items())
        print(_HELP.format(verbs=verbs), end="")
        return 0
    if argv[0] in ("-V", "--version", "version"):
        from seatrial import __version__

        print(f"seatrial {__version__}")
        return 0
    if argv[0] == "--completion":
        return _complete(argv[1:])
    if argv[0] not in VERBS:
        return _unknown_verb(argv[0], argv[1:])
    return _dispatch(argv)


def _complete(argv: list[str]) -> int:
    """Print a shell's completion script, or answer its key press. No verb but the typed one is imported for that."""
    if argv[:1] == ["words"]:
        from seatrial.cli.options import answer_key_press

        return answer_key_press(argv[1:])
    from importlib import resources

    if len(argv) != 1 or argv[0] not in ("bash", "zsh", "fish"):
        from seatrial.errors import UsageError

        raise UsageError("--completion needs a shell: bash, zsh or fish", run="seatrial --completion bash")
    script = resources.files("seatrial.cli").joinpath("shells").joinpath(f"seatrial.{argv[0]}")
    print(script.read_text(encoding="utf-8"), end="")
    return 0


def _dispatch(argv: list[str]) -> int:
    """Run a verb. Words after the first ``--`` belong to the target, untouched."""
    from seatrial.cli.options import check_launcher
    from seatrial.cli.root import Root
    from seatrial.cli.typed import check_words

    check_words(argv)
    ours, target_arguments = argv, []
    if "--" in argv:
        cut = argv.index("--")
        ours, target_arguments = argv[:cut], argv[cut + 1 :]
    if argv[0] in ("run", "plan") and not any(word.startswith("--image") for word in ours):
        check_launcher(ours[1:], target_arguments)
    if ours == ["runs"]:
        ours = ["runs", "--help"]
    try:
        result = Root().main(ours, prog_name="seatrial", standalone_mode=False, obj=target_arguments)
    except Exception as error:
        if type(error).__name__ == "Abort":  # click's name for Ctrl-C
            raise KeyboardInterrupt from error
        raise
    return int(result or 0)


def _reader_has_gone(ending: BaseException) -> bool:
    """Whether the reader of our output has gone, e.g. ``| head``; rich and click both make an exit with 1 of it."""
    cause: BaseException | None = ending
    while cause is not None and not isinstance(cause, BrokenPipeError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _was_interrupted(error: Exception) -> bool:
    """Ctrl-C while pydantic makes a model: it raises an error of its own around it, and keeps only its name."""
    return type(error).__name__ == "SchemaError" and "KeyboardInterrupt" in str(error)


def _report(error: Exception, argv: list[str]) -> int:
    """Print it and give its exit code, also where the sentence itself cannot be printed."""
    from seatrial.cli import errors

    if isinstance(error, OSError) and error.filename is None and not terminal.are_writable():
        error = terminal.cannot_write(error)
    terminal.abandon()
    try:
        return errors.report(error, argv)
    except (OSError, SystemExit):  # standard error cannot be written; SystemExit is what rich makes of it
        terminal.abandon()
        return errors.exit_code(error)


def _unknown_verb(word: str, rest: list[str]) -> int:
    import difflib
    import shlex

    from seatrial.findings.finding import FIX
    from seatrial.job.retired import replaced_command

    if replacement := replaced_command([word, *rest]):
        print(f"error: The command {word} was removed\n  {FIX}: {replacement}", file=sys.stderr)
        return 2
    near = difflib.get_close_matches(word, [*VERBS, *OTHER_WORDS], n=1)
    near = [OTHER_WORDS.get(each, each) for each in near]
    meant, hint = (
        (f"; did you mean {near[0]}?", shlex.join(["seatrial", *near[0].split(), *rest])) if near else ("", "")
    )
    if word.endswith(".py"):
        meant, hint = "", shlex.join(["seatrial", "run", word, *rest])
    if word.startswith("-") and rest:
        hint = shlex.join(["seatrial", "run", word, *rest])
        print(f"error: A command is missing before {word}\n  {FIX}: {hint}", file=sys.stderr)
        return 2
    print(f'error: There is no command "{word}"{meant}\n  {FIX}: {hint or "seatrial --help"}', file=sys.stderr)
    return 2
