"""Help: groups, words for what an option takes, an example under each verb, and no flag that a verb cannot use."""

from __future__ import annotations

import importlib
import re

import pytest
import typer

from seatrial.cli import VERBS
from seatrial.cli.help import EXAMPLES, GROUPS, dressed
from seatrial.cli.job_flags import FLAGS, WITHOUT


def commands() -> dict[str, typer.core.TyperCommand]:
    """``runs ls`` → its command."""
    found = {}
    for verb, (module, _) in VERBS.items():
        made = typer.main.get_command(dressed(importlib.import_module(f"seatrial.cli.{module}").app))
        below = getattr(made, "commands", None)
        for name, command in (below or {"": made}).items():
            found[f"{verb} {name}".strip()] = command
    return found


COMMANDS = {words: command for words, command in commands().items() if not command.hidden}


def help_of(words: str) -> str:
    command = COMMANDS[words]
    with command.make_context(f"seatrial {words}", [], resilient_parsing=True) as context:
        return command.get_help(context)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_knows_h(verb: str) -> None:
    made = typer.main.get_command(dressed(importlib.import_module(f"seatrial.cli.{VERBS[verb][0]}").app))
    assert "-h" in made.context_settings.get("help_option_names", [])


@pytest.mark.parametrize("words", COMMANDS)
def test_no_type_of_python_is_shown(words: str) -> None:
    text = re.sub(r"<uuid>|< \w+\.log", "", help_of(words))
    assert not re.search(r"<(str|list|path|int|float)", text), text


@pytest.mark.parametrize("words", COMMANDS)
def test_an_example_is_in_every_help(words: str) -> None:
    assert f"seatrial {words}" in help_of(words).partition("\n\n")[2]


def test_every_example_is_of_a_command() -> None:
    assert set(EXAMPLES) <= set(COMMANDS)


def test_the_flags_of_a_job_are_in_groups() -> None:
    text = help_of("run")
    places = [text.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    assert text.index("Kubernetes:\n") < text.index("--namespace NAME") < text.index("Limits and criteria:\n")
    assert {flag.key for flag in FLAGS if flag.group is None} == {"name", "trust", "project"}


@pytest.mark.parametrize("verb", WITHOUT)
def test_a_verb_lacks_what_it_cannot_use(verb: str) -> None:
    keys = {flag.key for flag in FLAGS}
    assert set(WITHOUT[verb]) < keys
    names = {name for parameter in COMMANDS[verb].params for name in parameter.opts}
    for flag in FLAGS:
        own = {"--set", "--seconds"}
        assert (flag.names.split()[0] in names - own) is (flag.key not in WITHOUT[verb]), flag
