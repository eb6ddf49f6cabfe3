"""What fits the word that is being typed. Imports neither typer nor the verbs: a key press may take 150 ms in all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.cli.words import kept

#: (what may be typed, what it is). A word that begins with ":" asks the shell to complete files or folders itself.
Candidate = tuple[str, str]

#: Name → its module, its line in the help.
Verbs = Mapping[str, tuple[str, str]]

#: Of ``runs ls --status``; a test compares those of this file with what the verbs take.
STATUSES = ("starting", "waiting", "running", "done", "stopped", "failed", "unmet", "unknown")

_DRIVER = Path("/proc/driver/nvidia")

FILES: Candidate = (":files", "")
FOLDERS: Candidate = (":folders", "")

#: Values by the word that the help has for them.
FIXED: dict[str, tuple[Candidate, ...]] = {
    "BACKEND": tuple((name, "") for name in ("auto", "docker", "podman", "local", "k8s")),
    "ENGINE": tuple((name, "") for name in ("auto", "docker", "podman", "local")),
    "LEVEL": (("auto", ""), ("none", ""), ("files", ""), ("unused", ""), ("arch", "")),
    "KIND": tuple((name, "") for name in ("job", "jobset", "pytorchjob", "trainjob")),
    "FORMAT": tuple((name, "") for name in ("onnx", "pt2", "safetensors")),
    "FORM": (("docker", ""), ("compose", "")),
    "MACHINE": tuple((name, "") for name in ("h100", "h200", "a100", "l4", "t4")),
    "STATUS": tuple((name, "") for name in STATUSES),
    "WHERE": (("desktop", "a notification here"), FILES),
    "DIR": (FOLDERS,),
    "FOLDER": (FOLDERS,),
    "FILE": (FILES,),
    "FILE.svg": (FILES,),
    "[FILE]": (FILES,),
    "DOCKERFILE": (FILES,),
    "PATH": (FILES,),
    "SRC:DST": (FILES,),
    "SRC:DST[:ro]": (FILES,),
}

#: Options whose word for a value means something else than above, or nothing: command and option → what it takes.
_OF_OPTIONS: dict[str, tuple[Candidate, ...]] = {
    "dashboard --print-config": (("prometheus", ""), ("grafana", "")),
    "top --sort": (("gpu", ""), ("cpu", ""), ("memory", ""), ("name", "")),
}

#: Runs that are looked into for their names, and those whose IDs are offered: as many as fit a screen.
_NAMED, _LISTED = 200, 20

#: Recipes that ``run`` takes; the table with what they need imports the planner. A test compares.
RECIPES = ("bench", "cifar10", "digits", "matmul", "mnist", "mnist-deep", "predict", "spam")

#: Command and argument → what it may be.
_OF_ARGUMENTS = {
    "bench mode": ("matmul", "train", "scaling", "batch", "serve"),
    "predict model": ("spam",),
    "completion SHELL": ("bash", "zsh", "fish"),
}


def complete(words: Sequence[str], word: str, verbs: Verbs) -> list[Candidate]:
    """What fits.

    Args:
        verbs: the table of the command line.
        words: those before it, without the program's own name.
        word: what is typed of it so far, "" at its beginning.
    """
    found = _candidates([each for each in words if each], word, verbs)
    return [each for each in found if each[0].startswith((word, ":"))]


def _candidates(words: list[str], word: str, verbs: Verbs) -> Iterator[Candidate]:
    if not words:
        yield from ((verb, line) for verb, (_, line) in verbs.items())
        yield from (("--help", "Show the commands."), ("--version", "Show the version."))
        return
    if "--" in words:
        yield FILES
        return
    table = kept()
    verb, rest = words[0], words[1:]
    below = {name.partition(" ")[2]: each for name, each in table.items() if name.startswith(f"{verb} ")}
    if below and not (rest and rest[0] in below):
        yield from ((name, each["help"]) for name, each in below.items())
        return
    command = f"{verb} {rest[0]}" if below else verb
    if command in table:
        yield from _of(table[command], command, rest[1:] if below else rest, word)


def _of(described: dict[str, list[dict[str, Any]]], command: str, rest: list[str], word: str) -> Iterator[Candidate]:
    options = {name: option for option in described["options"] for name in option["names"]}
    before = rest[-1] if rest else ""
    if before in options and options[before]["metavar"]:
        yield from _value(options[before], command)
        return
    if word.startswith("-"):
        name, equals, _ = word.partition("=")
        if equals and name in options:
            values = _value(options[name], command)
            yield from ((value if value.startswith(":") else f"{name}={value}", said) for value, said in values)
            return
        yield from ((name, str(option["help"])) for name, option in options.items())
        return
    yield from _argument(command, described["arguments"], rest, options)


def _value(option: dict[str, Any], command: str) -> Iterator[Candidate]:
    if choices := option["choices"]:
        yield from ((str(choice), "") for choice in choices)
    elif of_option := _OF_OPTIONS.get(f"{command} {option['names'][-1]}"):
        yield from of_option
    elif option["metavar"] == "REQUEST":
        yield from gpu_words()
    elif option["metavar"] == "RUN":
        yield from run_words()
    else:
        yield from FIXED.get(option["metavar"], ())


def _argument(
    command: str, arguments: list[dict[str, Any]], rest: list[str], options: dict[str, dict[str, Any]]
) -> Iterator[Candidate]:
    """What fits an argument that no option takes; behind the last of them the target's own, or options."""
    given = [
        each
        for before, each in zip(["", *rest], rest, strict=False)
        if not each.startswith("-") and not (before in options and options[before]["metavar"])
    ]
    several = bool(arguments) and arguments[-1]["metavar"].endswith(("…", "..."))
    if len(given) >= len(arguments) and not several:
        if any(argument["metavar"] == "TARGET" for argument in arguments):
            yield ("--", "the target's own arguments follow")
        yield from ((name, str(option["help"])) for name, option in options.items())
        return
    metavar = arguments[min(len(given), len(arguments) - 1)]["metavar"]
    if metavar.startswith(("RUN", "GROUP", "A B", "MODEL")):
        yield from run_words()
    if metavar in ("TARGET", "RUN|RECIPE|FILE", "MODEL", "RECIPE"):
        yield from ((name, "recipe") for name in RECIPES)
        yield FILES
    elif words := _OF_ARGUMENTS.get(f"{command} {metavar}"):
        yield from ((name, "") for name in words)
    elif metavar in ("SCRIPT", "text..."):
        yield FILES
    else:
        yield from FIXED.get(metavar, ())


def gpu_words() -> Iterator[Candidate]:
    """Of ``--gpus``, with this machine's GPUs as the driver's own files list them; NVML would take 150 ms."""
    yield from (("auto", "one GPU, or the CPU"), ("none", "the CPU"), ("all", "every GPU"))
    found = sorted(_DRIVER.glob("gpus/*/information"))
    told = [_information(path) for path in found]
    count = len(found) or len(list(Path("/dev").glob("nvidia[0-9]*")))
    yield from ((str(number), f"{number} of {count} GPUs") for number in range(1, count + 1))
    yield from ((f"device={number}", told[number][0] if number < len(told) else "") for number in range(count))
    yield from ((uuid, model) for model, uuid in told if uuid)


def _information(path: Path) -> tuple[str, str]:
    """(model, UUID) of a GPU."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    keys = dict(re.findall(r"^(Model|GPU UUID):\s*(\S.*)$", text, re.MULTILINE))
    return keys.get("Model", "").strip(), keys.get("GPU UUID", "").strip()


def run_words() -> Iterator[Candidate]:
    """``last``, names, also of stages, and IDs of this project's runs, newest first; as many IDs as fit a screen."""
    from seatrial.compose.output import newest_members
    from seatrial.runs.nearest import store_of
    from seatrial.runs.run import run_name

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


def answer(argv: Sequence[str], verbs: Verbs) -> int:
    """``seatrial completion words WORD… CURRENT``: a candidate a line, a tab, what it is. A key press never fails."""
    try:
        *words, word = argv
        for value, said in complete(words, word, verbs):
            print(f"{value}\t{' '.join(said.split())[:60]}")
    except Exception:  # noqa: BLE001  nothing fits then
        return 1
    return 0
