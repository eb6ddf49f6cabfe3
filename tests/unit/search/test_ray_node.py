"""One trial on a node: exactly the GPUs that Ray gave it, its own copy of the project, and every outcome sent."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cli_project import environment
from planning_sites import GPUS
from seatrial.errors import GpuContractError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import DataMount, Job, Target
from seatrial.runs.store import RunStore
from seatrial.search.ray_cluster import RemoteStudy, job_on_node, request_of
from seatrial.system.host import Host


def test_rays_numbers_become_uuids() -> None:
    requested = GpuRequest.parse("1,capabilities=all")
    got = request_of(["1"], requested, GPUS)
    assert str(got) == f"device={GPUS[1].uuid},capabilities=all"
    assert GpuRequest.parse(str(got)).devices == (GPUS[1].uuid,)
    assert request_of([GPUS[0].uuid], requested, GPUS).devices == (GPUS[0].uuid,)
    assert request_of(["0", "1"], requested, GPUS).devices == (GPUS[0].uuid, GPUS[1].uuid)
    assert request_of([], requested, GPUS).kind == "none"
    part = request_of(["0"], GpuRequest.parse("0.5"), GPUS)
    assert (part.devices, part.share) == ((GPUS[0].uuid,), 0.5)


def test_gpus_that_ray_only_believes_in() -> None:
    with pytest.raises(GpuContractError, match="Ray gave this trial GPU 7, and this node has 2") as refused:
        request_of(["7"], GpuRequest.parse("1"), GPUS)
    assert "ray start" in (refused.value.run or "")


def ordered(project: Path, place: Path, **keys: Any) -> dict[str, Any]:
    """The order for a trial of a project that the node has at ``place``; ``keys``: of its job."""
    job = Job(project=project, target=Target(kind="script", value="train.py"), gpus=GpuRequest("none"), **keys)
    return {
        "job": job.model_dump_json(),
        "project": str(place),
        "copied": place != project,
        "gpus": [],
        "number": 4,
        "settings": {"lr": "1"},
        "objective": ["loss", "min", r"loss ([\d.]+)"],
        "series": None,
    }


def test_a_shipped_trial_has_folders_of_the_copy(tmp_path: Path) -> None:
    folders = {name: DataMount(source=tmp_path / name, read_only=name == "data") for name in ("data", "models")}
    copy = tmp_path / "cache" / "copy"
    on_node = job_on_node(ordered(tmp_path, copy, **folders), Host({}))
    assert on_node.data is not None and on_node.models is not None
    assert (on_node.project, on_node.data.source) == (copy, copy / "data")
    assert on_node.models.source == copy / ".seatrial" / "models" / "4", "trials side by side do not mix their models"


def test_nobody_listens_any_more() -> None:
    closed = io.StringIO()
    closed.close()
    RemoteStudy(closed).send("say", line="to the wall")


def start(tmp_path: Path, script: str) -> tuple[subprocess.Popen[str], Path]:
    """The process of one trial, as a Ray worker starts it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, "-m", "seatrial.search.ray_cluster"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(tmp_path),
        cwd="/",
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(ordered(project, project, backend="local", grace_s=5)) + "\n")
    process.stdin.flush()
    return process, project


def lines_until_end(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        lines.append(json.loads(text))
        if lines[-1]["kind"] in ("end", "problem", "again"):
            break
    return lines


def test_a_trial_to_its_end(tmp_path: Path) -> None:
    process, _ = start(tmp_path, "print('loss 0.5')\nprint('loss 0.25')\n")
    lines = lines_until_end(process)
    assert [line["value"] for line in lines if line["kind"] == "report"] == [0.5, 0.25]
    assert lines[0]["kind"] == "begin"
    ending = lines[-1]["ending"]
    assert (ending["state"], ending["value"], ending["exit_code"]) == ("done", 0.25, 0)


def test_anyone_who_wanted_it_has_gone(tmp_path: Path) -> None:
    process, project = start(tmp_path, "import time\nprint('loss 1', flush=True)\ntime.sleep(600)\n")
    assert process.stdin is not None
    assert process.stdout is not None
    while json.loads(process.stdout.readline())["kind"] != "report":
        pass
    process.stdin.close()
    process.stdout.close()
    [run] = RunStore(project, Host(environment(tmp_path))).root.iterdir()
    until = time.monotonic() + 30
    while not (run / "summary.json").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    cause = json.loads((run / "receipt.json").read_bytes())["exit_cause"]
    assert cause["id"] == "stopped"
    assert "has gone" in cause["words"]


def test_a_trial_that_cannot_start_names_the_reason(tmp_path: Path) -> None:
    process, _ = start(tmp_path, "def broken(:\n")
    [line] = lines_until_end(process)
    assert line["kind"] == "problem"
    assert "train.py" in line["message"]
