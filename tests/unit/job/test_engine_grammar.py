"""Values that reach an engine: the documented forms are read, and what the engine would refuse is refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import load_job
from seatrial.errors import ConfigError

READ: dict[str, list[Any]] = {
    "network": ["host", "none", "my-net_1.x", "container:train", "slirp4netns:mtu=1", "pasta"],
    "devices": ["/dev/fuse", "/dev/a:/dev/b", "/dev/a:/dev/b:rwm", "/dev/a:r", "vendor.com/class=name-0:1"],
    "ulimits": ["nofile=1024", "nofile=10:20", "memlock=-1", "memlock=-1:-1", "core=0:-1"],
    "publish": ["80", "8080:80", "1.2.3.4:80:80/udp", "[::1]:8080:80", "8000-8001:80-81", "80-90:80", "1.2.3.4::80"],
    "cpus": ["0.5", "2", 0.01, 1e2],
    "memory": ["6m", "16GB"],
    "workdir": ["/app", "sub/folder"],
    "image.ready": ["a", "ghcr.io/me/a:1.0", "localhost:5000/a", "a@sha256:" + "0" * 64, "a/b__c-d", "[::1]:5000/a"],
    "image.base": ["python:3.11-slim-bookworm", "nvcr.io/nvidia/pytorch:24.05-py3"],
    "image.index_url": ["https://me:x@pypi.org/simple", "http://[::1]:80/simple", "file:///wheels", "https://pypi.org"],
    "nodes": [2, "3", "a,b", "gpu1.example.org,10.0.0.2", "::1,a"],
}  # fmt: skip
REFUSED: dict[str, list[Any]] = {
    "network": ["", " ", "a b", "-x", "a\n", "container:", "../x", "a:b", "name=host", "\x1b[2J"],
    "devices": ["", "nope", "dev/x", "/dev/x:y", "/dev/x:/y:rr", "/dev/x:/y:z", "/dev/a b", "vendor/class"],
    "ulimits": ["", "nofile", "nofile=", "nofile=10:5", "nofile=-1:5", "x=1", "nofile=a", "nofile=1:2:3", "core=-2"],
    "publish": ["", "0:80", "80:65536", "90-80:80", "80:90-91", "1.2.3.999:80:80", "80/x", "a:80", "80:80:80:80"],
    "cpus": ["nan", "inf", "0", "-1", "1_0", " 2", "0.001", "", "two", True],
    "memory": ["1m", "0g", "nan", "-1g", "8"],
    "workdir": ["", "a\nb", "\0"],
    "image.ready": ["", "UPPER/Case", "a:b:c", "/a", "a//b", "a@sha256:0", "a:1\u0661", "http://a/b", "a:" + 129 * "t"],
    "image.base": ["", "a b", "--privileged"],
    "image.index_url": ["", "pypi", "ftp://x/y", "https://", "https://a b/", "https://u:p/w@host/simple", "https://[x/"],
    "nodes": ["nan", "inf", "1.5", "1e3", "0", "-1", "", "a,,b", "a,a", "a b", "-a", "a" * 64],
}  # fmt: skip


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
