"""Values that reach an engine: the documented forms are read, and what the engine would refuse is refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import load_job
from seatrial.errors import ConfigError
from seatrial.job.flags import in_tables
from tables import constant

READ = constant(__file__, "READ")
REFUSED = constant(__file__, "REFUSED")


def loaded(project: Path, key: str, value: Any, *, typed: bool) -> Any:
    """The job with this value in the file, or typed as a flag."""
    table, _, name = key.rpartition(".")
    value = [value] if key in ("devices", "ulimits", "publish") else value
    (project / "train.py").write_text("")
    line = f"{name} = {json.dumps(value)}\n"
    (project / "seatrial.toml").write_text("" if typed else f"[{table}]\n{line}" if table else line)
    flags = in_tables({key: [str(each) for each in value] if isinstance(value, list) else str(value)} if typed else {})
    return load_job(project, {"target": "train.py", **flags}, cwd=project)


@pytest.mark.parametrize("key", READ)
def test_the_documented_forms_are_read(tmp_path: Path, key: str) -> None:
    for value in READ[key]:
        for typed in (False, True):
            loaded(tmp_path, key, value, typed=typed)


@pytest.mark.parametrize("key", REFUSED)
def test_what_the_engine_would_refuse_is_refused_in_the_file_and_as_a_flag(tmp_path: Path, key: str) -> None:
    for value in REFUSED[key]:
        for typed in (False, True)[: 1 if isinstance(value, bool) else 2]:
            with pytest.raises(ConfigError):
                loaded(tmp_path, key, value, typed=typed)
                pytest.fail(f"{value!r}, typed: {typed}")


def test_a_relative_working_directory_is_the_projects(tmp_path: Path) -> None:
    for value, folder in (("sub/../own", "/workspace/own"), ("/app", "/app")):
        assert loaded(tmp_path, "workdir", value, typed=True).folder_inside == folder


def test_a_login_in_an_index_is_in_no_json(tmp_path: Path) -> None:
    job = loaded(tmp_path, "image.index_url", "https://me:hunter2@pypi.org/simple", typed=False)
    assert job.image.index_url == "https://me:hunter2@pypi.org/simple"
    assert json.loads(job.model_dump_json())["image"]["index_url"] == "https://pypi.org/simple"
