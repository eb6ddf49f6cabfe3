"""What fits the word that is being typed. Imports neither typer nor the verbs: a key press may take 150 ms in all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from seatrial.cli.words import kept

#: (what may be typed, what it is). A word that begins with ":" asks the shell to complete files or folders itself.
Candidate = tuple[str, str]

#: Name → its module, its line in the help.
Verbs = Mapping[str, tuple[str, str]]

_DRIVER = Path("/proc/driver/nvidia")

FILES: Candidate = (":files", "")
FOLDERS: Candidate = (":folders", "")

#: Values by the word that the help has for them.
FIXED: dict[str, tuple[Candidate, ...]] = {
    "BACKEND": tuple((name, "") for name in ("auto", "docker", "podman", "local", "k8s")),
    "ENGINE": tuple((name, "") for name in ("auto", "docker", "podman", "local")),
    "LEVEL": (("none", ""), ("files", ""), ("unused", ""), ("arch", "")),
    "KIND": tuple((name, "") for name in ("auto", "job", "pytorchjob", "trainjob", "jobset")),
    "FORMAT": tuple((name, "") for name in ("onnx", "pt2", "torchscript", "safetensors")),
    "FORM": (("docker", ""), ("compose", "")),
    "MACHINE": tuple((name, "") for name in ("h100", "h200", "a100", "l4", "t4")),
    "STATUS": tuple((name, "") for name in ("running", "waiting", "done", "failed", "stopped", "unmet")),
    "DIR": (FOLDERS,),
    "FOLDER": (FOLDERS,),
}

#: Recipes that ``run`` takes; the table with what they need imports the planner. A test compares.
RECIPES = ("cifar10", "digits", "matmul", "mnist", "mnist-deep", "spam")
_BENCHED = ("matmul", "train", "scaling", "batch", "serve")


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


def _of(described: dict[str, list[dict[str, object]]], command: str, rest: list[str], word: str) -> Iterator[Candidate]:
    options = {name: option for option in described["options"] for name in option["names"]}  # type: ignore[attr-defined]
    before = rest[-1] if rest else ""
    if before in options and options[before]["metavar"]:
        yield from _value(options[before], str(options[before]["metavar"]))
        return
    if word.startswith("-"):
        name, equals, _ = word.partition("=")
        if equals and name in options:
            yield from (
                (f"{name}={value}", said) for value, said in _value(options[name], str(options[name]["metavar"]))
            )
            return
        yield from ((name, str(option["help"])) for name, option in options.items())
        return
    yield from _argument(command, described["arguments"], rest, options)


def _value(option: dict[str, object], metavar: str) -> Iterator[Candidate]:
    if choices := option["choices"]:
        yield from ((str(choice), "") for choice in choices)  # type: ignore[attr-defined]
    elif metavar == "REQUEST":
        yield from gpu_words()
    elif metavar == "RUN":
        yield from run_words()
    elif metavar in ("NAME", "N", "NUMBER", "TIME", "SIZE", "TEXT", "PORTS"):
        return
    else:
        yield from FIXED.get(metavar, (FILES,))


def _argument(
    command: str, arguments: list[dict[str, object]], rest: list[str], options: dict[str, dict[str, object]]
) -> Iterator[Candidate]:
    given = [
        each
        for before, each in zip(["", *rest], rest, strict=False)
        if not each.startswith("-") and not (before in options and options[before]["metavar"])
    ]
    if not arguments:
        return
    metavar = str(arguments[min(len(given), len(arguments) - 1)]["metavar"])
    if metavar.startswith(("RUN", "GROUP", "A", "B")) and command not in ("bench",):
        yield from run_words()
    if metavar in ("TARGET", "RUN|RECIPE|FILE", "MODEL", "RECIPE"):
        yield from ((name, "recipe") for name in RECIPES)
        yield FILES
    elif command == "bench":
        yield from ((name, "") for name in _BENCHED)
    elif command == "predict":
        yield ("spam", "recipe")
    elif command == "completion":
        yield from ((name, "") for name in ("bash", "zsh", "fish"))
    elif not metavar.startswith(("RUN", "GROUP", "A", "B")):
        yield FILES


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
    from seatrial.pipelines.find import newest_members
    from seatrial.runs.nearest import store_of
    from seatrial.runs.store import run_name

    store = store_of(None)
    runs = [run for run in reversed(store.all()) if run.recorded]
    if runs:
        yield ("last", runs[0].id)
    names: dict[str, str] = {}
    for run in runs[:200]:
        if (name := run_name(run)) is not None:
            names.setdefault(name, run.id)
    for name, (_, member) in newest_members(store).items():
        if member.run is not None:
            names.setdefault(name, member.run)
    yield from names.items()
    yield from ((run.id, next((name for name, id in names.items() if id == run.id), "")) for run in runs[:20])


def answer(argv: Sequence[str], verbs: Verbs) -> int:
    """``seatrial completion words WORD… CURRENT``: a candidate a line, a tab, what it is. A key press never fails."""
    try:
        *words, word = argv
        for value, said in complete(words, word, verbs):
            print(f"{value}\t{' '.join(said.split())[:60]}")
    except Exception:  # noqa: BLE001  nothing fits then
        return 1
    return 0
