"""The table of flags and seatrial.toml agree, and what was retired answers with its replacement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes import load_job
from seatrial.cli import VERBS, _main
from seatrial.cli.job import read_job
from seatrial.errors import ConfigError
from seatrial.job.cluster import ClusterOptions
from seatrial.job.flags import COMMANDS, FLAGS, KEYS, OPTIONS, OWN, Flag
from seatrial.job.keys import typed_keys
from seatrial.job.loading import read_sweep
from seatrial.job.model import ConfigFile, ImageOptions

OF_THE_FILE = [flag for flag in FLAGS if flag.key not in OWN]


def test_every_flag_is_a_key_of_the_file() -> None:
    keys = set(typed_keys(ConfigFile))
    keys |= {f"image.{key}" for key in typed_keys(ImageOptions)}
    keys |= {f"kubernetes.{key}" for key in typed_keys(ClusterOptions)}
    assert {flag.key for flag in OF_THE_FILE} <= keys


@pytest.mark.parametrize("flag", [flag for flag in OF_THE_FILE if flag.key != "module"], ids=lambda flag: flag.key)
def test_an_error_names_the_flag_as_it_is_typed(flag: Flag, tmp_path: Path) -> None:
    """No key but ``env`` takes a table with a list in it, and a variable cannot be a list."""
    (tmp_path / "train.py").touch()
    wrong: dict[str, Any] = {"A": [1]}
    *table, key = flag.key.split(".")
    flags = {table[0]: {key: wrong}} if table else {key: wrong}
    with pytest.raises(ConfigError) as caught:
        load_job(tmp_path, {"target": "train.py", **flags})
    assert caught.value.message.startswith(f"{flag.names.split()[0]}: ")


def test_criteria_of_the_file_can_be_left_out_where_another_target_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seatrial.toml").write_text('[criteria]\naccuracy = ">= 0.9"\n')
    flags = {"module": "pytest"}
    assert read_job([], dict(flags), arguments=[]).criteria.metrics == {"accuracy": ">= 0.9"}
    assert read_job([], {**flags, "no_criteria": True}, arguments=[]).criteria.metrics == {}


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


def test_a_variable_to_pass_that_is_not_set_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    monkeypatch.setenv("SET_HERE", "1")
    monkeypatch.delenv("NOT_HERE", raising=False)
    job = read_job(["a.py"], {"env": ("SET_HERE", "NOT_HERE", "GIVEN=1")}, arguments=[])
    assert job.env == {"SET_HERE": "1", "GIVEN": "1"}
    assert capsys.readouterr().err.splitlines() == [
        "seatrial warning: --env NOT_HERE is not set on this machine, so the run lacks it"
    ]
