"""Help: one screen of commands, options in groups, examples, and no option that a command cannot use."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import click
import pytest

import fork_server
from seatrial import cli
from seatrial.cli import VERBS
from seatrial.cli.completion import find_command
from seatrial.cli.options import Root
from seatrial.job.flags import FLAGS, GROUPS

#: ``runs ls`` and its like, each with its command.
COMMANDS = {
    f"{verb} {name}".strip(): each
    for verb, made in ((verb, find_command(Root(), [verb])) for verb in VERBS)
    for name, each in (made.commands if isinstance(made, click.Group) else {"": made}).items()
    if not each.hidden
}


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
    group = find_command(Root(), ["runs"])
    assert group is not None
    lines = group.make_context("seatrial runs", [], resilient_parsing=True).get_help().splitlines()
    assert width - 25 < max(map(len, lines)) <= width and "..." not in "".join(lines[2:])
    assert "its own exit code" not in "".join(lines) and "their curves." in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [60, 70])
def test_the_first_help_breaks_no_option(width: int, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli._main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width and not [line for line in lines if re.search(r"\w-$", line)]


@pytest.mark.parametrize("verb", ["run", "plan", "shell", "build", "tune", "sweep", "export", "serve"])
def test_command_lacks_options_it_cannot_use(verb: str) -> None:
    own = {option.name for option in COMMANDS[verb].params}
    for flag in FLAGS:
        assert (flag.parameter in own) is (verb not in flag.without.split()), flag
        assert set(flag.without.split()) <= set(COMMANDS), flag


# ----------------------------------------------------------------- examples


LOG = "epoch 1\nRuntimeError: CUDA error: no kernel image is available for execution on the device\n"
KERNEL = "[ 12.3] NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=python, Ch 00000008\n"


@lru_cache
def seatrial(*words: str, folder: str = ".", stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"COLUMNS": "160", "PATH": "/usr/bin:/bin", "HOME": folder}
    if not stdin:
        return fork_server.server().run(words, Path(folder), environment, 60)
    command = [sys.executable, "-m", "seatrial", *words]
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, env=environment)


def examples(text: str) -> list[str]:
    """Lines that begin with our name, or with a program whose output we get; without the explanations behind them."""
    lines = (re.split(r"\s{3,}|\s+#\s", line.strip())[0] for line in text.splitlines())
    return [line for line in lines if re.match(r"(\w+ \| )?seatrial [a-z]", line)]


def own_words(example: str) -> list[str]:
    words = shlex.split(example.rpartition("| ")[2])
    return words[1 : words.index("<")] if "<" in words else words[1:]


def test_every_example_of_explain_explains(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    found = examples(seatrial("explain", "--help").stdout)
    assert len(found) >= 5
    for example in found:
        if own_words(example) == ["explain", "last"]:  # a run: integration/test_lifecycle.py
            continue
        stdin = KERNEL if "|" in example else LOG if "<" in example else ""
        done = seatrial(*own_words(example), folder=str(tmp_path), stdin=stdin)
        assert done.returncode == 0 and "fix" in done.stdout, (example, done.stdout, done.stderr)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_every_example_can_be_parsed(verb: str) -> None:
    """With --help behind it a verb prints its help, unless it rejects an option before."""
    done = seatrial(*([verb] if verb else []), "--help")
    assert done.returncode == 0
    for example in examples(done.stdout):
        words = own_words(example)
        if words[0] not in VERBS:
            assert words == ["COMMAND", "--help"]
            continue
        ours = words[: words.index("--")] if "--" in words else words
        result = seatrial(*ours, "--help")
        assert result.returncode == 0 and "Usage: " in result.stdout, (example, result.stderr)
