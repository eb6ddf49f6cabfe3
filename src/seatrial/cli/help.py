"""How a verb's help looks: options in groups, one word for what an option takes, and examples below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from seatrial.cli.plain_words import take_plain

#: What typer calls a value without a name of its own → what people do.
_KINDS = {
    "str": "TEXT", "list[str]": "TEXT", "path": "PATH", "list[path]": "PATH", "int": "N", "int range": "N",
    "float": "NUMBER", "float range": "NUMBER",
}  # fmt: skip

#: Order of the groups behind a verb's own options; job_flags.py says which flag is in which.
GROUPS = ("Target", "GPUs", "Data", "Container", "Kubernetes", "Limits and criteria")

#: Verb, and the command below it → lines to type. Those of the docstrings stay where they are.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "seatrial run train.py --gpus 1 --data ./data -- --epochs 5",
        "seatrial run digits",
        "seatrial run --resume last",
    ),
    "plan": ("seatrial plan train.py --gpus 2", "seatrial plan train.py --target h100 --as compose"),
    "build": ("seatrial build train.py --explain", "seatrial build --check Dockerfile"),
    "new": ("seatrial new digit-reader",),
    "init": ("seatrial init", "seatrial init train.py", "seatrial init --devcontainer --target h100"),
    "shell": ("seatrial shell train.py --gpus all",),
    "up": ("seatrial up", "seatrial up -f compose.yaml", "seatrial up --plan"),
    "down": ("seatrial down", "seatrial down last"),
    "runs ls": ("seatrial runs ls --status failed --since 2d", "seatrial runs ls --watch"),
    "runs show": ("seatrial runs show last",),
    "runs logs": ("seatrial runs logs -f last",),
    "runs attach": ("seatrial runs attach last",),
    "runs verify": ("seatrial runs verify last",),
    "runs compare": ("seatrial runs compare baseline last --html compare.html",),
    "runs exec": ("seatrial runs exec last -- nvidia-smi",),
    "runs stop": ("seatrial runs stop last",),
    "runs cp": ("seatrial runs cp last:digits.pth ./models",),
    "runs rm": ("seatrial runs rm last",),
    "top": ("seatrial top", "seatrial top --once"),
    "cdi check": ("seatrial cdi check",),
    "cdi generate": ("seatrial cdi generate",),
    "dashboard": ("seatrial dashboard", "seatrial dashboard --metrics-only --listen 127.0.0.1:9400"),
    "tune": ("seatrial tune train.py --save", "seatrial tune train.py --only workers,bf16 -- --epochs 5"),
    "bench": ("seatrial bench matmul", "seatrial bench train digits --compare eager,graph"),
    "export": ("seatrial export last --to onnx",),
    "predict": ('seatrial predict spam "WINNER!! Call now"',),
    "serve": ("seatrial serve digits --port 8000",),
    "completion": ('eval "$(seatrial completion bash)"',),
    "open": ("seatrial open", "seatrial open last --print"),
    "prune": ("seatrial prune --keep 10",),
}


class Group(TyperGroup):
    """A verb with commands below it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """With that of ``--help``, which is made when it is asked for."""
        return take_plain(super().get_params(ctx))


class Command(TyperCommand):
    """A verb, or a command below one."""

    def invoke(self, ctx: Any) -> Any:
        """Ctrl-C is an Abort, as typer had it before 0.29: that makes an exit code of it, and nothing is said."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error

    def get_params(self, ctx: Any) -> list[Any]:
        """As a group's."""
        return take_plain(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, the verb's own options, then those of a job in their groups."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Options", *GROUPS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                title = "Arguments" if argument else getattr(parameter, "rich_help_panel", None) or "Options"
                sections[title].append((plain(record[0]), record[1]))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples, each on a line of its own however narrow the terminal is: they are there to be copied."""
        lines = EXAMPLES.get(ctx.command_path.removeprefix("seatrial "), ())
        if lines:
            with formatter.section("Examples"):
                formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in lines))


def plain(name: str) -> str:
    """``--cpus <str>`` → ``--cpus TEXT``; ``TARGET <list[str]>`` → ``TARGET``, which has a name already."""
    words, kind, rest = (*re.split(r" <([^>]+)>", name, maxsplit=1), "", "")[:3]
    if not kind or not words.startswith("-"):
        return words + rest
    return f"{words} {_KINDS.get(kind, kind.replace('|', ', '))}{rest}"


def dressed(app: typer.Typer) -> typer.Typer:
    """The same verb, it and its commands of the classes above."""
    for each in (app, *_below(app)):
        each.info.cls = Group
        for command in each.registered_commands:
            if command.cls in (None, TyperCommand):
                command.cls = Command
    return app


def _below(app: typer.Typer) -> Iterator[typer.Typer]:
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield group.typer_instance
            yield from _below(group.typer_instance)
