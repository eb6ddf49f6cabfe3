"""Help: one screen of commands, options in groups, examples, and no option that a command cannot use."""

from __future__ import annotations

import click
import pytest

from seatrial import cli
from seatrial.cli import VERBS
from seatrial.cli.options import command_of
from seatrial.job.flags import FLAGS, GROUPS


def commands() -> dict[str, click.Command]:
    """Return ``runs ls`` and its like, each with its command."""
    found = {}
    for verb in VERBS:
        made = command_of([verb])
        below = made.commands if isinstance(made, click.Group) else {"": made}
        found.update({f"{verb} {name}".strip(): each for name, each in below.items()})
    return found


COMMANDS = {words: command for words, command in commands().items() if not command.hidden}


def help_of(words: str) -> str:
    command = COMMANDS[words]
    with command.make_context(f"seatrial {words}", [], resilient_parsing=True) as context:
        return command.get_help(context)


def test_help_fits_one_screen_with_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [verb for line in lines for verb in VERBS if line[9:].split()[:1] == [verb]] == list(VERBS)
    assert len(VERBS) == 16


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_h_and_an_example(words: str) -> None:
    assert "-h, --help" in help_of(words)
    assert f"seatrial {words}" in help_of(words).partition("\n\n")[2]


def test_options_of_a_job_are_in_groups() -> None:
    text = help_of("run")
    places = [text.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    assert text.index("Kubernetes:\n") < text.index("--namespace NAME") < text.index("Limits and criteria:\n")
    assert {flag.key for flag in FLAGS if not flag.group} == {"trust", "project"}
    assert GROUPS[0] == "Common" and text.index("--gpus") < text.index("--detach") < text.index("--rank-of")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_uses_the_width_of_the_terminal_and_cuts_no_sentence(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    group = command_of(["runs"])
    assert group is not None
    lines = group.make_context("seatrial runs", [], resilient_parsing=True).get_help().splitlines()
    assert width - 25 < max(map(len, lines)) <= width and "..." not in "".join(lines[2:])
    assert "its own exit code" not in "".join(lines) and "their curves." in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("verb", ["run", "plan", "shell", "build", "tune", "sweep", "export", "serve"])
def test_command_lacks_options_it_cannot_use(verb: str) -> None:
    own = {option.name for option in COMMANDS[verb].params}
    for flag in FLAGS:
        assert (flag.parameter in own) is (verb not in flag.without.split()), flag
        assert set(flag.without.split()) <= set(COMMANDS), flag
