"""Callbacks of options as Python 3.10 and typer take them there: seen on any Python."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator

import pytest
import typer

from seatrial.cli import VERBS


def callbacks(app: typer.Typer) -> Iterator[tuple[str, object]]:
    for command in [
        *app.registered_commands,
        *(c for g in app.registered_groups for c in g.typer_instance.registered_commands),
    ]:  # type: ignore[union-attr]
        for parameter in inspect.signature(command.callback, eval_str=True).parameters.values():  # type: ignore[arg-type]
            for info in getattr(parameter.annotation, "__metadata__", ()):
                if getattr(info, "callback", None) is not None:
                    yield parameter.name, info.callback


@pytest.mark.parametrize("verb", VERBS)
def test_no_callback_takes_an_alias(verb: str) -> None:
    """``isinstance(list[str], type)`` is true in 3.10, and typer then calls issubclass with it, which raises."""
    app = importlib.import_module(f"seatrial.cli.{VERBS[verb][0]}").app
    for name, callback in callbacks(app):
        for parameter in inspect.signature(callback, eval_str=True).parameters.values():  # type: ignore[arg-type]
            assert not isinstance(parameter.annotation, types.GenericAlias), f"{verb}: {name}"
