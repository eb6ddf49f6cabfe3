"""Requests of a project's file: listed if they reach out of the project, none for an ordinary file."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from fakes import load_job
from seatrial.job.cluster import ClusterOptions
from seatrial.job.keys import KeyTable, typed_keys
from seatrial.job.model import ConfigFile, ImageOptions, WatchOptions
from seatrial.planning.secrets import hide_notify
from tables import constant


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``tmp/home/project`` with ``tmp/home`` for HOME and a folder outside of it."""
    home = tmp_path / "home"
    folder = home / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "x").touch()
    (folder / "train.py").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").touch()
    monkeypatch.setenv("HOME", str(home))
    return folder


def asks(project: Path, toml: str, **flags: Any) -> list[str]:
    (project / "seatrial.toml").write_text(toml)
    return [ask.words for ask in load_job(project, {"target": "train.py", **flags}, cwd=project).asks]


ORDINARY = """
on = "docker"
gpus = 2
data = "./data"
models = "./models"
mounts = ["./data:/extra:ro"]
env_files = ["settings.env"]
network = "none"
publish = ["6006:6006"]
memory = "16GB"
writable = true
[env]
SEED = 1
[image]
base = "python:3.11-slim-bookworm"
system_packages = ["gcc"]
find_links = "https://wheels.example.org/"
[kubernetes]
models = "emptydir"
queue = "team-a"
namespace = "team"  # matters on a cluster alone
[watch]
hang_after = "10m"
[criteria]
accuracy = ">= 0.9"
"""


def test_an_ordinary_project_asks_for_nothing(project: Path) -> None:
    (project / "settings.env").write_text("# ours\nLR=0.1\n\nEMPTY=\n")
    assert asks(project, ORDINARY) == []


SAID = constant(__file__, "SAID")


@pytest.mark.parametrize("toml", SAID)
def test_each_wish_is_a_line_in_plain_words(project: Path, tmp_path: Path, toml: str) -> None:
    (tmp_path / "home" / ".ssh").mkdir()
    (project / "linked").symlink_to(tmp_path / "outside")
    (project / "passing.env").write_text("LR=0.1\nAWS_SECRET_ACCESS_KEY\n")
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as engine, socket.socket(socket.AF_UNIX) as agent:
        engine.bind(str(tmp_path / "docker.sock"))
        agent.bind(str(tmp_path / "agent"))
        assert asks(project, toml.replace("TMP", str(tmp_path))) == [SAID[toml].replace("TMP", str(tmp_path))]


def test_what_a_flag_replaces_is_not_requested(project: Path, tmp_path: Path) -> None:
    toml = f'on = "local"\nnetwork = "host"\ndata = "{tmp_path}/outside"\nsecrets = ["A"]\n'
    toml += '[image]\nbuild_network = "host"'
    assert len(asks(project, toml)) == 5
    left = asks(project, toml, on="docker", data="data", secrets=["B"], image={"ready": "x"})
    assert [line.split(":")[0] for line in left] == [
        "gives the target your variable A",
        "uses this machine's network",
        "builds the image on this machine's network",
    ]


def test_a_command_is_confirmed_whole_and_is_in_no_plan(project: Path) -> None:
    (project / "seatrial.toml").write_text("[notify]\ncommand = \"TOKEN=T0KEN tell 'me'\"")
    job = load_job(project, {"target": "train.py"})
    assert "TOKEN=T0KEN tell 'me'" in job.asks[0].words
    planned = hide_notify(job)
    assert "T0KEN" not in planned.model_dump_json()
    assert planned.asks[0].words.endswith("when a run ends: a command")
    (project / "seatrial.toml").write_text("[notify]\ncommand = \"TOKEN=OTHER tell 'me'\"")
    assert hide_notify(load_job(project, {"target": "train.py"})).asks != planned.asks


#: Keys of seatrial.toml whose value can become a line of the question.
JUDGED = {
    ConfigFile: "on data models mounts env_files secrets network devices with_names image watch notify kubernetes",
    ImageOptions: "ca_bundle find_links build_network",
    WatchOptions: "command",
    ClusterOptions: "context namespace data models registry service_account image_pull_secrets priority_class "
    "runtime_class tolerations",
}
#: Keys of which any value stays in the container, its build and the user's own cluster.
INSIDE = {
    ConfigFile: "name gpus restarts launcher env publish workdir ulimits cpus memory shm_size gpu_memory timeout grace "
    "writable no_hook no_tune strict resume criteria metrics tune target module args nodes sweep",
    ImageOptions: "base ready python index_url requirements system_packages target flavour torch_index as_of slim "
    "max_size max_compressed",
    WatchOptions: "hang_after",
    ClusterOptions: "kind runtime code gpu_resource gpu_claims node_selector queue min_nodes ttl uid require_capacity "
    "requests",
}


@pytest.mark.parametrize("of", JUDGED, ids=lambda of: of.__name__)
def test_every_key_of_the_file_is_judged_or_known_to_stay_inside(of: type[KeyTable]) -> None:
    judged, inside = set(JUDGED[of].split()), set(INSIDE[of].split())
    assert judged | inside == typed_keys(of).keys() and not judged & inside
