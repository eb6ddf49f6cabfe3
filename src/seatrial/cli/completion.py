"""Completion: the values that fit a word, and the shells' scripts that request them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete

from seatrial.job.flags import read_table
from seatrial.probe.processes import file_bytes

#: Recipes that ``run`` takes; the table with their packages imports the planner. A test compares.
RECIPES = ("bench", "cifar10", "digits", "matmul", "mnist", "mnist-deep", "predict", "spam")

#: Metavar → its values. A value that begins with ":" leaves files or folders to the shell.
_ROWS = read_table("values.json").items()
VALUES = {metavar: tuple(values.split()) for metavars, values in _ROWS for metavar in metavars.split()}

_DRIVER = Path("/proc/driver/nvidia")
#: Runs that are searched for names, and runs whose IDs are offered: as many as fit on a screen.
_NAMED, _LISTED = 200, 20


def answer(root: click.Group, argv: Sequence[str]) -> int:
    """Print a shell's completion script, or for ``words WORD… CURRENT`` a value, a tab and its help per line."""
    if argv[:1] == ["words"]:
        try:
            for value, line in complete(root, argv[1:-1], argv[-1]):
                print(f"{value}\t{' '.join(line.split())[:60]}")
        except Exception:  # noqa: BLE001  nothing fits then: a key press never fails
            return 1
        return 0
    if len(argv) != 1 or argv[0] not in VALUES["SHELL"]:
        from seatrial.errors import UsageError

        raise UsageError("--completion needs a shell: bash, zsh or fish", run="seatrial --completion bash")
    script = Path(__file__).with_name("shells") / f"seatrial.{argv[0]}"
    print(script.read_text(encoding="utf-8"), end="")
    return 0


def find_command(root: click.Group, words: Sequence[str]) -> click.Command | None:
    """Return the command that these first words name, e.g. ``runs ls``; None if there is none."""
    found: click.Command = root
    context = click.Context(root, info_name="seatrial")
    for word in words:
        below = found.get_command(context, word) if isinstance(found, click.Group) else None
        if below is None:
            break
        found = below
    return None if found is root else found


def complete(root: click.Group, words: Sequence[str], word: str) -> list[tuple[str, str]]:
    """Return (completion, its help) of a word below ``root``, behind ``words``, which lack the program's name."""
    if "--" in words:
        return [(":files", "")]
    if words and find_command(root, words) is None:
        return []
    joined = re.fullmatch(r"(--[\w-]+)=(.*)", word)
    if joined and find_command(root, words):
        found = complete(root, [*words, joined[1]], joined[2])
        return [(value if value.startswith(":") else f"{joined[1]}={value}", line) for value, line in found]
    items = ShellComplete(root, {}, "seatrial", "").get_completions([each for each in words if each], word)
    left_to_the_shell = {"file": ":files", "dir": ":folders"}
    return [(left_to_the_shell.get(item.type, item.value), item.help or "") for item in items]


def fitting(parameter: click.Parameter, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the completions of a parameter's value."""
    if isinstance(parameter.type, click.Choice):
        return parameter.type.shell_complete(ctx, parameter, incomplete)
    metavar = (parameter.metavar or "").strip("[]")
    found = [each for each in _candidates(metavar) if each[0].startswith((incomplete, ":"))]
    return [CompletionItem(value, help=line) for value, line in found]


def _candidates(metavar: str) -> Iterator[tuple[str, str]]:
    if metavar == "REQUEST":
        yield from _gpu_words()
    if metavar.startswith(("RUN", "GROUP", "A B", "MODEL")):
        yield from _run_words()
    if metavar in ("TARGET", "RUN|RECIPE|FILE", "MODEL"):
        yield from ((name, "recipe") for name in RECIPES)
        yield (":files", "")
    yield from ((value, "") for value in VALUES.get(metavar, ()))


def _gpu_words() -> Iterator[tuple[str, str]]:
    """Yield requests for GPUs, with this machine's as the driver's files list them; NVML would take 150 ms."""
    yield from (("auto", "one GPU, or the CPU"), ("none", "the CPU"), ("all", "every GPU"))
    texts = (file_bytes(str(path)).decode("utf-8", "replace") for path in sorted(_DRIVER.glob("gpus/*/information")))
    facts = (dict(re.findall(r"(?m)^(Model|GPU UUID):\s*(\S.*)$", text)) for text in texts)
    gpus = [(each.get("Model", "").strip(), each.get("GPU UUID", "").strip()) for each in facts]
    count = len(gpus) or len(list(Path("/dev").glob("nvidia[0-9]*")))
    yield from ((str(number), f"{number} of {count} GPUs") for number in range(1, count + 1))
    yield from ((f"device={number}", gpus[number][0] if number < len(gpus) else "") for number in range(count))
    yield from ((uuid, model) for model, uuid in gpus if uuid)


def _run_words() -> Iterator[tuple[str, str]]:
    """Yield ``last``, the names and the newest IDs of this project's runs."""
    from seatrial.compose.group import newest_members
    from seatrial.runs.run import run_name
    from seatrial.runs.store import store_of

    store = store_of(None)
    if runs := store.newest(_NAMED):
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
