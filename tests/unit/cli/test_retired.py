"""Retired options and keys answer with their replacement, at the command line and in seatrial.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.cli import VERBS, _main
from seatrial.errors import ConfigError
from seatrial.job.flags import COMMANDS, KEYS, OPTIONS
from seatrial.job.loading import read_sweep

SENTENCES = {each: line for each, line in COMMANDS.items() if each.split()[0] not in VERBS}
SENTENCES |= {f"{typed} train.py": line for typed, line in OPTIONS.items()}


@pytest.mark.parametrize("typed", SENTENCES)
def test_retired_command_or_option_names_its_replacement(typed: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert _main(typed.split()) == 2
    assert SENTENCES[typed] in capfd.readouterr().err


@pytest.mark.parametrize("key", KEYS)
def test_retired_key_names_its_replacement(key: str, tmp_path: Path) -> None:
    table, _, name = key.replace("*", "one").rpartition(".")
    (tmp_path / "seatrial.toml").write_text(f"[{table}]\n{name} = 1\n" if table else f"{name} = 1\n")

    with pytest.raises(ConfigError) as refused:
        read_sweep(tmp_path)

    assert KEYS[key] in f"{refused.value.message} {refused.value.cause}"
