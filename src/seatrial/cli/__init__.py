"""The command line: one file per verb, loaded only when it is asked for, no logic.

``main`` alone prints errors and exits. Exit codes: 0 success, 1 the target failed, 2 usage, 3 GPU contract,
4 criteria unmet under --strict, 5 engine or environment.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from seatrial.cli.screens import streams
from seatrial.errors import EXIT_INTERRUPTED, SeatrialError

#: Verb → (its module, its line in the help). ``--help`` prints this table without importing anything else.
VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run a script, module, recipe or image in a GPU container; ends with a receipt."),
    "plan": ("plan", "Show what run would do and why; changes nothing."),
    "build": ("build", "Build the image that run would use, verify it, report its contents; or check a Dockerfile."),
    "new": ("new", "Make a project: a script that trains, a data loader with tests, seatrial.toml."),
    "init": ("init", "Write seatrial.toml from what was found in the project, with the reasons."),
    "shell": ("shell", "Open an interactive shell in the same container."),
    "up": ("up", "Run a Compose file; one receipt for all."),
    "down": ("down", "Stop what up started."),
    "runs": ("runs", "List, inspect and control runs: ls, show, logs, attach, exec, stop, rm."),
    "open": ("open", "Open a run's receipt in the browser."),
    "top": ("top", "GPUs, containers and runs on this machine, live."),
    "doctor": ("doctor", "Check the whole GPU-container chain, step by step, and apply safe fixes."),
    "explain": ("explain", "Explain an error or a log, and print the command that fixes it."),
    "cdi": ("cdi", "Write a CDI spec for this machine's GPUs, or check the existing ones."),
    "dashboard": ("dashboard", "A web page: live GPUs, runs, curves, receipts, comparison."),
    "sweep": ("sweep", "Run a job with several settings and compare them."),
    "tune": ("tune", "Try changes on an unmodified script; keep what is faster and trains the same."),
    "bench": ("bench", "Benchmark variants of a recipe side by side: bench train mnist --compare eager,graph."),
    "export": ("export", "Export a trained model to another format and prove that it computes the same."),
    "predict": ("predict", "Query a trained model: predict spam TEXT."),
    "serve": ("serve", "Serve a trained model over HTTP, in the same container: serve digits --port 8000."),
    "completion": ("completion", "Print completion for bash, zsh or fish."),
    "prune": ("prune", "Delete ended runs and free their disk space."),
}

#: What people type who come from other tools, and the verb that does it here.
_OTHER_WORDS = {
    "ps": "runs ls", "ls": "runs ls", "list": "runs ls", "logs": "runs logs", "log": "runs logs", "show": "runs show",
    "attach": "runs attach", "exec": "runs exec", "stop": "runs stop", "kill": "runs stop", "rm": "runs rm",
    "compare": "runs compare", "verify": "runs verify", "cp": "runs cp", "status": "runs show", "train": "run",
    "start": "run", "create": "new", "check": "doctor", "diagnose": "doctor", "why": "explain", "clean": "prune",
}  # fmt: skip

#: 128 + SIGPIPE, as shells report it; 0 would read as a run that is done.
EXIT_NO_READER = 141

_HELP = """\
Usage: seatrial COMMAND [OPTIONS] [TARGET] [-- TARGET'S OWN ARGUMENTS]

Runs a training script in a GPU container and proves what the GPU did.

Commands:
{verbs}

  seatrial run train.py --gpus 1             any script, unchanged
  seatrial run digits                        a built-in recipe; needs no download
  seatrial COMMAND --help                    the options of a command
  seatrial COMMAND --no-color                without colours, as with NO_COLOR=1

Exit codes: 0 success, 1 the target failed, 2 usage, 3 GPU contract, 4 criteria unmet (--strict), 5 engine.
"""


def main() -> None:
    """Entry point of ``seatrial``."""
    streams.prepare()
    sys.exit(_main(sys.argv[1:]))


def _main(argv: list[str]) -> int:
    try:
        code = _answer(_without_colour(argv))
        streams.finish()
    except KeyboardInterrupt:  # wherever it comes, before or after typer, which makes an Abort of it
        print("stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        if not _reader_has_gone(error):
            raise
        streams.abandon()
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
        width = max(map(len, VERBS))
        verbs = "\n".join(f"  {verb:<{width}}  {line}" for verb, (_, line) in VERBS.items())
        print(_HELP.format(verbs=verbs), end="")
        return 0
    if argv[0] in ("-V", "--version", "version"):
        from seatrial import __version__

        print(f"seatrial {__version__}")
        return 0
    if argv[:2] == ["completion", "words"]:  # at each press of the Tab key: no typer, no verb
        from seatrial.cli.completing import answer

        return answer(argv[2:], VERBS)
    if argv[0] not in VERBS:
        return _unknown_verb(argv[0], argv[1:])
    return _dispatch(argv)


def _dispatch(argv: list[str]) -> int:
    """Run a verb's typer app. What stands behind the first ``--`` belongs to the target, untouched."""
    from seatrial.cli.help import dressed
    from seatrial.cli.typed import check_launcher, check_words

    check_words(argv)
    verb, rest = argv[0], argv[1:]
    target_arguments: list[str] = []
    if "--" in rest:
        cut = rest.index("--")
        rest, target_arguments = rest[:cut], rest[cut + 1 :]
    if verb in ("run", "plan") and not any(word.startswith("--image") for word in rest):
        check_launcher(rest, target_arguments)
    module = _verb_module(verb)
    rest = module.reworded(rest) if hasattr(module, "reworded") else rest
    if not rest and len(module.app.registered_commands) > 1:
        rest = ["--help"]
    try:
        result = dressed(module.app)(rest, prog_name=f"seatrial {verb}", standalone_mode=False, obj=target_arguments)
    except Exception as error:
        if type(error).__name__ == "Abort":  # typer's name for Ctrl-C
            raise KeyboardInterrupt from error
        raise
    return int(result or 0)


def _verb_module(verb: str) -> ModuleType:
    """The verb's file with all that it imports."""
    name = f"seatrial.cli.{VERBS[verb][0]}"
    if name in sys.modules:
        return sys.modules[name]
    from seatrial.cli.importing import importing

    with importing():
        return importlib.import_module(name)


def _reader_has_gone(ending: BaseException) -> bool:
    """Whether the reader of our output has gone, e.g. ``| head``; rich and typer both make an exit with 1 of it."""
    cause: BaseException | None = ending
    while cause is not None and not isinstance(cause, BrokenPipeError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _was_interrupted(error: Exception) -> bool:
    """Ctrl-C while pydantic makes a model: it raises an error of its own around it, and keeps only its name."""
    return type(error).__name__ == "SchemaError" and "KeyboardInterrupt" in str(error)


def _report(error: Exception, argv: list[str]) -> int:
    """Print it and give its exit code, also where the sentence itself cannot be printed."""
    from seatrial.cli.screens import problems

    if isinstance(error, OSError) and error.filename is None and not streams.are_writable():
        error = streams.cannot_write(error)
    streams.abandon()
    try:
        return problems.report(error, argv)
    except (OSError, SystemExit):  # standard error cannot be written; SystemExit is what rich makes of it
        streams.abandon()
        return problems.exit_code(error)


def _unknown_verb(word: str, rest: list[str]) -> int:
    import difflib
    import shlex

    from seatrial.findings.finding import FIX
    from seatrial.job.retired import replaced_command

    if replacement := replaced_command([word, *rest]):
        print(f"error: The command {word} was removed\n  {FIX}: {replacement}", file=sys.stderr)
        return 2
    near = difflib.get_close_matches(word, [*VERBS, *_OTHER_WORDS], n=1)
    near = [_OTHER_WORDS.get(each, each) for each in near]
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
