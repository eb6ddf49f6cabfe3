"""Words that are taken without typer's conversion mean what they mean to typer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.core import TyperCommand

from seatrial.cli import plain_words
from seatrial.cli.help import Command

app = typer.Typer(add_completion=False)


@app.command()
def verb(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    name: str | None = None,
    flag: Annotated[bool, typer.Option("--flag")] = False,
    number: Annotated[int, typer.Option(min=0, max=100)] = 20,
    free: int | None = None,
    share: float | None = None,
    folder: Path | None = None,
    there: Annotated[Path | None, typer.Option(exists=True)] = None,
    form: Literal["docker", "compose"] | None = None,
    env: list[str] | None = None,
) -> dict[str, Any]:
    return dict(locals())


TYPED = [
    [],
    ["a", "b", ""],
    ["--name", "x", "--flag"],
    ["--name", ""],
    *(
        ["--number", text]
        for text in ("0", "7", "100", "101", "-1", "007", "٣", "1e2", "", "9" * 30, " 5", "+5", "1_0")
    ),
    *(["--free", text] for text in ("-5", "99999999999", "x")),
    ["--share", "0.5"],
    *(["--folder", text] for text in ("/", "/nowhere", "", "a\0b", "-")),
    *(["--there", text] for text in ("/", "/nowhere")),
    *(["--form", text] for text in ("docker", "Docker", "podman")),
    ["--env", "A=1", "--env", "B"],
]


def answer(cls: type[TyperCommand], words: list[str]) -> Any:
    app.registered_commands[0].cls = cls
    try:
        return typer.main.get_command(app)(words, standalone_mode=False)
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "message", "")


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_the_same_as_typer(words: list[str]) -> None:
    assert answer(Command, words) == answer(TyperCommand, words)


def test_most_words_need_no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """If typer keeps it elsewhere one day, commands still work, slower: this test says so first."""
    asked: list[str] = []
    monkeypatch.setattr("typer.core.build_runtime_param", lambda descriptor: asked.append("converted"))
    words = ["a", "--name", "x", "--number", "7", "--folder", "/", "--form", "docker", "--env", "A=1"]
    got = answer(Command, words)
    assert not asked and got["number"] == 7 and got["folder"] == Path("/") and got["env"] == ["A=1"]
    with pytest.raises(plain_words._NotPlain):
        plain_words.plain("0.5", next(each for each in _parameters() if each.name == "share"))


def _parameters() -> list[Any]:
    app.registered_commands[0].cls = Command
    return list(typer.main.get_command(app).params)
