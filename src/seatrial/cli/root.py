"""Root: the command above all verbs, which imports the one that was typed and no other."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from seatrial.cli.verbs import VERBS

#: The plug-ins that pydantic leaves out. Source: pydantic.dev/docs, "Pydantic plugins".
_PYDANTIC_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


class Root(click.Group):
    """``seatrial`` itself. ``--help``, ``--version`` and unknown verbs are answered before it is made."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. Raises SystemExit from BrokenPipeError, which click itself would turn into a bare exit."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise SystemExit(1) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, function = VERBS[cmd_name][0].partition(":")
        with importing():
            command: Any = getattr(importlib.import_module(f"seatrial.cli.{module}"), function)
        assert isinstance(command, click.Command)
        command.short_help = VERBS[cmd_name][2]
        return command


@contextmanager
def importing() -> Iterator[None]:
    """Turn the garbage collector and pydantic's plug-ins off while modules load.

    Imports make objects that stay, so a collector would search them in vain. pydantic would search every installed
    package for plug-ins and load those of other programs.
    """
    ours = _PYDANTIC_PLUGINS not in os.environ
    if ours:
        os.environ[_PYDANTIC_PLUGINS] = "__all__"
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # skipped at the exit, too
        gc.enable()
        if ours:
            del os.environ[_PYDANTIC_PLUGINS]  # the target's own pydantic is its own affair
