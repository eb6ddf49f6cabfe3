"""Retired options and keys answer with their replacement, at the command line and in seatrial.toml."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from seatrial.cli import VERBS, main
from seatrial.errors import ConfigError
from seatrial.job.flags import COMMANDS, KEYS, OPTIONS, replaced_key
from seatrial.job.loading import read_sweep


def _answer(words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["seatrial", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capfd.readouterr().err


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.split()[0] not in VERBS])
def test_retired_command_names_its_replacement(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, error = _answer(command.split(), monkeypatch, capfd)

    assert code == 2
    assert COMMANDS[command] in error


@pytest.mark.parametrize("typed", OPTIONS)
def test_retired_option_names_its_replacement(
    typed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, error = _answer([*typed.split(), "train.py"], monkeypatch, capfd)

    assert code == 2
    assert OPTIONS[typed] in error


@pytest.mark.parametrize("key", KEYS)
def test_retired_key_names_its_replacement(key: str, tmp_path: Path) -> None:
    table, _, name = key.replace("*", "one").rpartition(".")
    (tmp_path / "seatrial.toml").write_text(f"[{table}]\n{name} = 1\n" if table else f"{name} = 1\n")

    with pytest.raises(ConfigError) as refused:
        read_sweep(tmp_path)

    assert KEYS[key] in f"{refused.value.message} {refused.value.cause}"


def test_key_that_never_existed_has_no_replacement() -> None:
    assert replaced_key("criteria.nothing") is None
