"""Two terminals of one user, each led to another Docker engine: a run belongs to the engine that it was started on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_project import Project, environment
from engines import IMAGE
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.monitor.app import Housekeeping
from seatrial.runs.store import Projects, RunStore
from seatrial.system.host import Host
from seatrial.system.records import Folder, Process

pytestmark = pytest.mark.docker

SCRIPT = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"


class Terminals:
    """A project in two terminals: ``DOCKER_HOST`` leads each to an engine of its own.

    Attributes:
        there: the variables of the terminal that starts runs. here: of the other one.
    """

    def __init__(self, project: Project, there: dict[str, str], here: dict[str, str]) -> None:
        self.project, self.there, self.here = project, there, here

    def start(self) -> str:
        self.project.run("train.py", "--gpus", "none", "--image", IMAGE, "--detach", **self.there)
        self.project.wait_for_output("ready")
        return self.project.last.name

    def containers(self, variables: dict[str, str], run: str) -> str:
        argv = ["docker", "ps", "--all", "--format", "{{.State}}", "--filter", f"label=seatrial.run={run}"]
        env = {**self.project.environ, **variables}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()

    def listed(self, **variables: str) -> dict[str, object]:
        line: dict[str, object] = json.loads(self.project.cli("runs", "ls", "--json", **variables).stdout)[0]
        return line


@pytest.fixture
def terminals(tmp_path: Path, docker_backend: Docker, second_docker: str) -> Iterator[Terminals]:
    project = Project(tmp_path / "project", "docker", environment(tmp_path), docker_backend.call)
    project.write("train.py", SCRIPT)
    first = docker_backend.client.address().endpoint
    made = Terminals(project, {"DOCKER_HOST": second_docker}, {"DOCKER_HOST": first})
    yield made
    for run in project.runs:
        project.cli("runs", "rm", "--force", run.name, exit_code=None)
        for variables in (made.there, made.here):
            listing = ["docker", "ps", "--all", "--quiet", "--filter", f"label=seatrial.run={run.name}"]
            env = {**project.environ, **variables}
            for container in subprocess.run(listing, env=env, capture_output=True, text=True).stdout.split():
                subprocess.run(["docker", "rm", "--force", container], env=env, capture_output=True)


def test_listing_from_another_engines_terminal_keeps_the_run_alive(terminals: Terminals) -> None:
    run = terminals.start()
    for _ in range(20):
        line = terminals.listed(**terminals.here)
        assert (line["status"], line["engine"]) == ("running", terminals.there["DOCKER_HOST"]), line
    assert not (terminals.project.last / "summary.json").exists()
    assert terminals.containers(terminals.there, run) == "running"


def test_stop_from_another_engines_terminal_ends_the_container_of_the_run(terminals: Terminals) -> None:
    run = terminals.start()
    here = terminals.here
    assert "ready" in terminals.project.cli("runs", "logs", run, **here).stdout
    assert terminals.project.cli("runs", "exec", run, "--", "echo", "inside", **here).stdout == "inside\n"
    terminals.project.cli("runs", "prune", "--yes", "--keep", "0", exit_code=None, **here)
    assert terminals.listed(**here)["status"] == "running"
    terminals.project.cli("runs", "stop", run, exit_code=None, **here)
    assert terminals.listed(**here)["status"] == "stopped"
    assert terminals.containers(terminals.there, run) == ""


def test_dashboard_of_another_engines_terminal_keeps_the_run_alive(
    terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminals.start()
    environ = {**terminals.project.environ, **terminals.here}
    monkeypatch.setenv("DOCKER_HOST", terminals.here["DOCKER_HOST"])
    keeping = Housekeeping(Projects(RunStore(terminals.project.folder, Host(environ))), Host(environ))
    for _ in range(200):  # a look in ten asks the engine
        keeping()
    assert not (terminals.project.last / "summary.json").exists()


def test_run_is_unknown_when_another_engine_answers_at_its_endpoint(terminals: Terminals) -> None:
    run = terminals.start()
    handle = terminals.project.last / "handle.json"
    kept = json.loads(handle.read_text())
    kept["engine"]["endpoint"] = terminals.here["DOCKER_HOST"]
    handle.write_text(json.dumps(kept))
    line = terminals.listed(**terminals.there)
    assert line["status"] == "unknown"
    assert f"Engine at {terminals.here['DOCKER_HOST']} not reachable" in str(line["outcome"])
    assert "--force" in terminals.project.cli("runs", "rm", run, exit_code=None).stderr
    assert terminals.containers(terminals.there, run) == "running"


def test_run_is_unknown_while_its_engine_is_down(terminals: Terminals) -> None:
    run = terminals.start()
    handle = terminals.project.last / "handle.json"
    kept = json.loads(handle.read_text())
    kept["engine"]["endpoint"] = "unix:///nowhere/docker.sock"
    handle.write_text(json.dumps(kept))
    line = terminals.listed(**terminals.there)
    assert (line["status"], line["exit_code"]) == ("unknown", None)
    assert "Engine at unix:///nowhere/docker.sock not reachable" in str(line["outcome"])
    assert terminals.containers(terminals.there, run) == "running"


def test_handle_without_engine_is_read_on_its_own_engine_alone(terminals: Terminals) -> None:
    """Write the handle in the form of version 9f086b9."""
    terminals.start()
    handle = terminals.project.last / "handle.json"
    kept = json.loads(handle.read_text())
    del kept["engine"]
    handle.write_text(json.dumps(kept))
    assert terminals.listed(**terminals.there)["status"] == "running"
    assert terminals.listed(**terminals.here)["status"] == "unknown"
    assert terminals.listed(**terminals.there)["status"] == "running"


def test_run_whose_launcher_died_is_adopted_on_its_own_engine(terminals: Terminals) -> None:
    """The handle is missing, as when the launcher is killed between the engine's start and its note."""
    terminals.start()
    record = terminals.project.last
    (record / "handle.json").unlink()
    Folder(record).write("launcher.json", Process(pid=1, started_ticks=1))
    assert terminals.listed(**terminals.here)["status"] == "running"
    assert json.loads((record / "handle.json").read_text())["engine"]["endpoint"] == terminals.there["DOCKER_HOST"]


def test_changed_default_context_leads_no_run_away(terminals: Terminals, tmp_path: Path) -> None:
    config = tmp_path / "docker"
    terminals.project.environ["DOCKER_CONFIG"] = str(config)
    terminals.project.environ.pop("DOCKER_HOST", None)
    for name, variables in (("there", terminals.there), ("here", terminals.here)):
        argv = ["docker", "context", "create", name, "--docker", f"host={variables['DOCKER_HOST']}"]
        subprocess.run(argv, env=terminals.project.environ, check=True, capture_output=True)
    terminals.there = {"DOCKER_CONTEXT": "there"}
    run = terminals.start()
    subprocess.run(["docker", "context", "use", "here"], env=terminals.project.environ, check=True, capture_output=True)
    assert terminals.listed()["status"] == "running"
    assert terminals.listed(DOCKER_CONTEXT="here")["status"] == "running"
    terminals.project.cli("runs", "stop", run, exit_code=None)
    assert terminals.containers({"DOCKER_CONTEXT": "there"}, run) == ""
