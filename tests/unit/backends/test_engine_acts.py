"""Actions on containers: only on the one with the run's label, and unrecorded containers are found.

A shell script stands in for the engine: it lists and describes containers from files, and writes down its arguments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import a_program
from seatrial.backends.base import Handle
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.errors import EngineUnavailableError
from seatrial.job.plan import EngineAddress

RUN = "20261120-231501-k3f9"

ENGINE_ADDRESS = EngineAddress(endpoint="unix:///run/engine.sock", id="7c2e /var/lib/docker")

ENGINE = """shift
printf '%s\\n' "$*" >> {folder}/calls
case "$*" in
"ps "*)
    label=$(echo "$*" | sed -n 's/.*label=seatrial.run=//p')
    grep -l "\\"seatrial.run\\": \\"$label\\"" {folder}/*.json 2>/dev/null | sed 's/.*\\///; s/.json//' ;;
"container inspect "*)
    if [ -e {folder}/$3.json ]; then cat {folder}/$3.json; else echo "Error: No such container: $3" >&2; exit 1; fi ;;
"info "*)
    echo '{{"ID": "7c2e", "DockerRootDir": "/var/lib/docker", "ServerVersion": "99"}}' ;;
"context inspect "*)
    echo '{{"Endpoints": {{"docker": {{"Host": "unix:///run/engine.sock"}}}}}}' ;;
"container rm "*)
    for id; do :; done
    rm -f {folder}/$id.json ;;
esac
"""


class Engine:
    """The stand-in, and what it has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = a_program(folder / "engine", ENGINE.format(folder=folder))
        self.backend = Docker([program, "--host=unix:///run/engine.sock"], ENGINE_ADDRESS)

    def has(self, identifier: str, status: str = "running", run: str | None = RUN, **labels: str) -> Handle:
        about: dict[str, Any] = {
            "Id": identifier,
            "Image": "sha256:1",
            "State": {"Status": status, "StartedAt": "2026-11-20T00:00:00.5Z", "ExitCode": 0},
            "Config": {"Cmd": ["-I", "-S", "/seatrial/agent.pyz", "/seatrial/plan.json"]},
        }
        about["Config"]["Labels"] = {**({"seatrial.run": run} if run else {}), "seatrial.log": "frames", **labels}
        (self.folder / f"{identifier}.json").write_text(json.dumps([about]))
        return Handle(
            backend="docker", id=identifier, run_id=RUN, run_dir=str(self.folder), framed=True, engine=ENGINE_ADDRESS
        )

    def done(self) -> list[str]:
        """Return the actions, without queries."""
        calls = (self.folder / "calls").read_text().splitlines()
        return [call for call in calls if not call.startswith(("ps ", "container inspect", "info", "context"))]

    def left(self) -> set[str]:
        return {path.stem for path in self.folder.glob("*.json")}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def test_a_runs_own_is(engine: Engine) -> None:
    handle = engine.has("ours")
    assert engine.backend.state(handle).status == "running"
    engine.backend.stop(handle, 1)
    engine.backend.kill(handle)
    engine.backend.remove(handle)
    assert engine.done() == ["container stop -t 1 ours", "container kill ours", "container rm --volumes ours"]


def test_one_that_was_started_and_not_written_down_is_found(engine: Engine, tmp_path: Path) -> None:
    engine.has("other", run="20261120-231501-zzzz")
    engine.has("ours")
    handle = engine.backend.find(RUN, tmp_path)
    assert handle == engine.has("ours").model_copy(update={"started": "2026-11-20T00:00:00.5Z"})
    assert engine.done() == []
    assert engine.backend.find("20261120-231501-none", tmp_path) is None


def test_what_was_made_and_never_started_is_removed(engine: Engine, tmp_path: Path) -> None:
    """Killed between the engine's two steps: it runs nothing, and would stay for ever."""
    engine.has("made", status="created")
    assert engine.backend.find(RUN, tmp_path) is None
    assert engine.left() == set()


@pytest.mark.parametrize("moved", [{"id": "7c2e /other/data"}, {"id": "0aa0 /var/lib/docker"}])
def test_missing_container_is_unknown_when_another_engine_answers(
    engine: Engine, tmp_path: Path, moved: dict[str, str]
) -> None:
    """Restarted with its data elsewhere, or another engine on the same socket."""
    there = ENGINE_ADDRESS.model_copy(update=moved)
    handle = engine.has("ours").model_copy(update={"engine": there})
    assert engine.backend.state(handle).status == "running"
    (tmp_path / "ours.json").unlink()
    for acts in (engine.backend.state, engine.backend.kill, engine.backend.remove):
        with pytest.raises(EngineUnavailableError, match=r"Engine at unix:///run/engine.sock not reachable"):
            acts(handle)
    with pytest.raises(EngineUnavailableError, match="not reachable"):
        engine.backend.bound_to(there).find(RUN, tmp_path)


@pytest.mark.parametrize("program", ["false", "/nonexistent/docker"])
def test_an_engine_that_does_not_answer_finds_nothing_out(tmp_path: Path, program: str) -> None:
    with pytest.raises(EngineUnavailableError):
        Docker([program]).find(RUN, tmp_path)
