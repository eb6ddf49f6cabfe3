"""Attacks by a project: what somebody's repository brings along, before anything of it has run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from attacks_harness import Canaries, record
from cli_project import Project

RUN = "20991231-235959-aaaa"

#: What may stand in the folder of a run that was planted.
PLANTED = {
    "an empty plan": {"plan.json": "{}"},
    "a summary that is a pipe": {"plan.json": "{}", "summary.json": None},
    "a summary nested 100,000 deep": {"plan.json": "{}", "summary.json": "[" * 100_000},
    "a summary of wrong types": {
        "plan.json": "{}",
        "summary.json": json.dumps({"exit_code": 0, "gpus": [], "seconds": "x", "outcome": {}, "target": 5}),
    },
    "a receipt that passes": {
        "plan.json": "{}",
        "summary.json": '{"exit_code": 0}',
        "receipt.json": '{"exit_code": 0}',
    },
    "a name with escapes": {"plan.json": "{}", "name": "\x1b[31mred\n\r"},
    "a name that is the user's": {"plan.json": "{}", "name": "mine"},
    "text that is not UTF-8": {"plan.json": b"\xff\xfe", "summary.json": b"\xff"},
    "a handle of a stranger": {"plan.json": "{}", "handle.json": '{"backend": "docker", "id": "stranger"}'},
}


@pytest.fixture
def victim(tmp_path: Path) -> Canaries:
    return Canaries.plant(tmp_path)


#: In the core tier; the others show the same of other bytes.
QUICK = ("a receipt that passes", "a name with escapes", "a handle of a stranger")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PLANTED]
)
def test_a_planted_run_is_none(local_project: Project, name: str) -> None:
    local_project.write("train.py", "print('mine')")
    local_project.run("train.py", "--gpus", "none", "--name", "mine")
    own = record(local_project).id
    folder = local_project.folder / ".seatrial" / "runs" / RUN
    folder.mkdir(parents=True)
    for file, content in PLANTED[name].items():
        if content is None:
            os.mkfifo(folder / file)
        else:
            (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    listed = local_project.cli("runs", "ls").stdout
    assert RUN not in listed and "\x1b" not in listed and own in listed
    for verb in ("stop", "exec", "rm", "show"):
        local_project.cli("runs", verb, RUN, *(["--", "true"] if verb == "exec" else []), exit_code=2)
    local_project.cli("run", "--resume", RUN, exit_code=2)
    assert folder.exists() and own in local_project.cli("runs", "verify", "last").stdout
    assert own in local_project.cli("runs", "verify", "mine").stdout
    local_project.cli("runs", "prune", "--yes", "--keep", "0")
    assert folder.exists()


@pytest.mark.parametrize("where", [".seatrial", ".seatrial/runs"])
def test_a_link_in_place_of_our_folder_is_refused(local_project: Project, victim: Canaries, where: str) -> None:
    before = victim.digest()
    path = local_project.folder / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(victim.home)
    (victim.home / "20991231-235959-bbbb").mkdir()
    before = victim.digest()
    local_project.write("train.py", "print('hello')")
    refused = local_project.run("train.py", "--gpus", "none", exit_code=5)
    assert "is a symlink, which seatrial does not follow" in refused.stderr
    local_project.cli("runs", "ls")
    local_project.cli("runs", "prune", "--yes", "--keep", "0")
    assert victim.digest() == before


#: Lines of a seatrial.toml that reach beyond the project, and a word of the message.
ASKS = {
    "a home": ('mounts = ["{victim}:/x"]', "mounts"),
    "the engine's socket": ('mounts = ["/var/run/docker.sock:/s"]', "docker.sock"),
    "the host's network": ('network = "host"', "network"),
    "a secret": ('secrets = ["AWS_KEY"]', "AWS_KEY"),
    "a command of the watchdog": ('[watch]\ncommand = "curl evil"', "curl evil"),
    "no container at all": ('on = "local"', "container"),
    "a device": ('devices = ["/dev/mem"]', "/dev/mem"),
    "data of another folder": ('data = "{victim}"', "victim"),
    "the network of the build": ('[image]\nbuild_network = "host"', "network"),
}


@pytest.mark.parametrize("name", list(ASKS))
def test_what_a_project_asks_for_is_not_given_silently(local_project: Project, victim: Canaries, name: str) -> None:
    local_project.trusted = False
    lines, word = ASKS[name]
    local_project.write("seatrial.toml", lines.replace("{victim}", str(victim.home)) + "\n")
    local_project.write("train.py", "print('it ran')")
    refused = local_project.cli("run", "train.py", "--gpus", "none", exit_code=2, AWS_KEY="x" * 20)
    assert word in refused.stderr and "--trust" in refused.stderr and "it ran" not in refused.stdout


def test_an_ordinary_project_is_never_requested(local_project: Project) -> None:
    local_project.trusted = False
    local_project.write("seatrial.toml", 'target = "train.py"\ngpus = "none"\n[criteria]\naccuracy = ">= 0"\n')
    local_project.write("train.py", "print('it ran')")
    local_project.cli("run", "--on", "local")
    assert local_project.output() == "it ran\n"


def test_a_script_cannot_plant_lines_for_the_next_run(local_project: Project, victim: Canaries) -> None:
    local_project.trusted = False
    local_project.write("seatrial.toml", 'target = "train.py"\ngpus = "none"\n')
    planted = f'mounts = ["{victim.home}:/x"]\n'
    local_project.write("train.py", f"open('seatrial.toml', 'a').write({planted!r})")
    local_project.cli("run", "--on", "local")
    assert "mounts" in local_project.cli("run", "--on", "docker", exit_code=2).stderr


def test_a_login_in_a_url_is_in_no_output(local_project: Project) -> None:
    login = "https://me:hunter2@packages.example"
    local_project.write("seatrial.toml", f'[env]\nDB = "{login}/db"\n[image]\nindex_url = "{login}/simple"\n')
    local_project.write("train.py", "print('it ran')")
    words = ("train.py", "--gpus", "none", "--on", "local")
    shown = [local_project.cli("plan", *words, *more, "--", login).stdout for more in ((), ("--json",), ("--verbose",))]
    local_project.write("seatrial.toml", f'[image]\nindex_url = "{login} simple"\n')
    shown.append(local_project.cli("plan", *words, exit_code=2).stderr)
    assert "<redacted>@packages.example" in shown[0] and "<redacted>@packages.example" in shown[-1]
    assert not any("hunter2" in text for text in shown)
