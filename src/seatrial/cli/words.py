"""What can be typed, as data: for completion and the manual page. Read from the verbs themselves.

Kept as words.json beside this file, since importing every verb takes a second and a key press must not.
``python docs/reference/generate.py`` writes it; a test keeps it current.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_suffix(".json")


def kept() -> dict[str, Any]:
    """Command (``run``, ``runs ls``) → ``help``, ``options`` and ``arguments``. Each option: names, help, metavar."""
    loaded: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return loaded


def options_of(verb: str) -> dict[str, str | None]:
    """Each option's name → what its value is called; None where none follows. Of an unknown verb nothing."""
    found = kept().get(verb, {})
    return {name: option["metavar"] for option in found.get("options", []) for name in option["names"]}


def read(verbs: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The same, from the verbs: name → its module, its line in the help."""
    commands: dict[str, Any] = {}
    for verb, (module, line) in verbs.items():
        for name, command in _commands(module).items():
            if not command.hidden:
                words = f"{verb} {name}".strip()
                commands[words] = _described(words, command, "" if name else line)
    return commands


def _commands(module: str) -> Mapping[str, Any]:
    import typer

    from seatrial.cli.help import dressed

    made = typer.main.get_command(dressed(importlib.import_module(f"seatrial.cli.{module}").app))
    return getattr(made, "commands", None) or {"": made}


def _described(words: str, command: Any, line: str) -> dict[str, Any]:
    from seatrial.cli.help import EXAMPLES, plain

    context = command.make_context(f"seatrial {words}", [], resilient_parsing=True)
    options, arguments = [], []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        shown, said = plain(record[0]), record[1]
        if parameter.param_type_name == "argument":
            arguments.append({"metavar": shown, "help": said})
        else:
            takes = not (parameter.is_flag or parameter.count)
            listed = re.search(r"<([\w-]+(?:\|[\w-]+)+)>", record[0])
            choices = listed[1].split("|") if listed else []
            metavar = ("TEXT" if choices else shown.rpartition(" ")[2]) if takes else None
            group = getattr(parameter, "rich_help_panel", None)
            options.append(
                # Of -h and --help typer gives now the one, now the other first: it keeps them in a set.
                {
                    "names": sorted(parameter.opts, key=lambda name: (name.startswith("--"), name)),
                    "metavar": metavar,
                    "help": said,
                    "group": group,
                    "choices": choices,
                }
            )
    about = (command.help or "").replace("\b", "").strip()
    return {
        "help": line or about.split("\n\n")[0].replace("\n", " "),
        "about": about,
        "examples": list(EXAMPLES.get(words, ())),
        "options": options,
        "arguments": arguments,
    }


def text(verbs: Mapping[str, tuple[str, str]]) -> str:
    """words.json."""
    return json.dumps(read(verbs), indent=1, ensure_ascii=False) + "\n"
