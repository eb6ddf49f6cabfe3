"""Values that reach an engine: the documented forms are read, and what the engine would refuse is refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import load_job
from seatrial.errors import ConfigError
from tables import constant

READ = constant(__file__, "READ")
REFUSED = constant(__file__, "REFUSED")


def written(project: Path, key: str, value: Any) -> Any:
    table, _, name = key.rpartition(".")
    several = key in ("devices", "ulimits", "publish")
    line = f"{name} = {json.dumps([value] if several else value)}\n"
    (project / "train.py").write_text("")
    (project / "seatrial.toml").write_text((f"[{table}]\n" if table else "") + line)
    return load_job(project, {"target": "train.py"}, cwd=project)


def typed(project: Path, key: str, value: Any) -> Any:
    table, _, name = key.rpartition(".")
    several = key in ("devices", "ulimits", "publish")
    flag = {name: [str(value)] if several else str(value)}
    (project / "train.py").write_text("")
    (project / "seatrial.toml").unlink(missing_ok=True)
    return load_job(project, {"target": "train.py", **({table: flag} if table else flag)}, cwd=project)


@pytest.mark.parametrize("key", READ)
def test_the_documented_forms_are_read(tmp_path: Path, key: str) -> None:
    for value in READ[key]:
        written(tmp_path, key, value)
        typed(tmp_path, key, value)


@pytest.mark.parametrize("key", REFUSED)
def test_what_the_engine_would_refuse_is_refused_in_the_file_and_as_a_flag(tmp_path: Path, key: str) -> None:
    for value in REFUSED[key]:
        with pytest.raises(ConfigError):
            written(tmp_path, key, value)
            pytest.fail(f"{value!r} in seatrial.toml")
        if not isinstance(value, bool):
            with pytest.raises(ConfigError):
                typed(tmp_path, key, value)
                pytest.fail(f"{value!r} as a flag")


def test_a_relative_working_directory_is_the_projects(tmp_path: Path) -> None:
    assert typed(tmp_path, "workdir", "sub/../own").folder_inside == "/workspace/own"
    assert typed(tmp_path, "workdir", "/app").folder_inside == "/app"


def test_a_login_in_an_index_is_in_no_json(tmp_path: Path) -> None:
    job = written(tmp_path, "image.index_url", "https://me:hunter2@pypi.org/simple")
    assert job.image.index_url == "https://me:hunter2@pypi.org/simple"
    assert json.loads(job.model_dump_json())["image"]["index_url"] == "https://pypi.org/simple"
