"""Which kind of group is meant, and the sentence where it cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError, UsageError
from seatrial.pipelines.group_kinds import meant
from seatrial.pipelines.request import UpRequest

STAGES = '[stages.train]\ntarget = "train.py"\n'


def kind(folder: Path, *names: str, file: Path | None = None, stages: bool = False) -> str:
    return meant(UpRequest(folder, names, file, stages))[0]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"])
def test_a_compose_file_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("services: {}\n")
    found, request = meant(UpRequest(tmp_path))
    assert found == "compose" and request.file == tmp_path / name


def test_of_two_compose_files_it_is_the_one_that_compose_takes(tmp_path: Path) -> None:
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        (tmp_path / name).write_text("services: {}\n")
    assert meant(UpRequest(tmp_path))[1].file == tmp_path / "docker-compose.yml"


@pytest.mark.parametrize("table", ["[stages.train]", "[tool.seatrial.stages.train]"])
def test_stages_are_found(tmp_path: Path, table: str) -> None:
    (tmp_path / ("pyproject.toml" if "tool" in table else "seatrial.toml")).write_text(table)
    assert kind(tmp_path) == "stages"


def test_retired_tracker_names_its_replacement_and_a_service_of_that_name_counts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"seatrial up mlflow is retired: .* services of a Compose file"):
        kind(tmp_path, "mlflow")
    (tmp_path / "compose.yaml").write_text("services: {mlflow: {image: x}}\n")
    assert kind(tmp_path, "mlflow") == "compose"


def test_both_are_a_question(tmp_path: Path) -> None:
    (tmp_path / "seatrial.toml").write_text(STAGES)
    compose = tmp_path / "compose.yaml"
    compose.write_text("services: {}\n")
    with pytest.raises(UsageError, match=r"both compose\.yaml and ") as raised:
        kind(tmp_path)
    assert "seatrial up -f" in (raised.value.run or "") and "--stages" in (raised.value.run or "")
    assert kind(tmp_path, file=compose) == "compose"
    assert kind(tmp_path, stages=True) == "stages"


def test_nothing_is_told_with_the_next_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Nothing to bring up") as raised:
        kind(tmp_path)
    assert (raised.value.run or "").startswith("seatrial up -f")
    (tmp_path / "seatrial.toml").write_text('target = "train.py"\n')
    with pytest.raises(UsageError, match="Nothing to bring up") as raised:
        kind(tmp_path)
    assert raised.value.run == "seatrial run"


def test_a_file_that_is_not_there_and_one_that_is_no_toml(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        kind(tmp_path, file=tmp_path / "other.yaml")
    (tmp_path / "seatrial.toml").write_text("[stages\n")
    with pytest.raises(ConfigError, match=r"seatrial\.toml"):
        kind(tmp_path)
