"""``seatrial sweep --engine ray`` on a real cluster of two nodes: Ray Tune chooses and prunes, the trials are runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project, environment
from ray_nodes import RayNodes

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

SCRIPT = """
import argparse, json, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--pause", type=float, default=0.4)
args = parser.parse_args()
with open(os.environ["SEATRIAL_EVENTS"], "a") as events:
    for step in range(1, 9):
        time.sleep(args.pause)
        events.write(json.dumps({"step": step, "accuracy": (1 - abs(args.lr - 0.03) * 5) * step / 8}) + "\\n")
        events.flush()
folder = pathlib.Path(os.environ.get("SEATRIAL_MODELS_DIR", "models"))
folder.mkdir(exist_ok=True)
(folder / "model.pt").write_text(str(args.lr))
print("gpus:", os.environ.get("CUDA_VISIBLE_DEVICES"), "threads:", os.environ.get("OMP_NUM_THREADS"))
"""

TPE = ("--search", "tpe", "--set", "lr=log:1e-3..1e-1", "--metric", "accuracy:max")


def environ_of(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in environment(folder).items() if not name.startswith(("RAY_", "OMP_"))}
    return {**kept, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "project", "local", environ_of(tmp_path))
    made.write("train.py", SCRIPT)
    yield made
    made.clean()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RayNodes]:
    made = RayNodes(environ_of(tmp_path))
    yield made
    made.close()


def words(project: Project, nodes: RayNodes, *more: str) -> list[str]:
    on = ("--on", project.backend, "--gpus", "none", "--engine", "ray", "--address", nodes.address)
    return ["sweep", "train.py", *on, *more]


def trials_of(project: Project) -> list[dict[str, Any]]:
    [results] = project.folder.glob(".seatrial/sweeps/*/results.json")
    loaded = json.loads(results.read_text())
    return list(loaded if isinstance(loaded, list) else loaded["trials"])


def receipt_of(project: Project, trial: dict[str, Any]) -> dict[str, Any]:
    [run] = [run for run in project.runs if run.name == trial["run_id"]]
    loaded: dict[str, Any] = json.loads((run / "receipt.json").read_bytes())
    return loaded


def test_tpe_with_asha_on_two_nodes(project: Project, nodes: RayNodes) -> None:
    nodes.head(cpus=1)
    nodes.node("second", cpus=1)
    ended = project.cli(*words(project, nodes, *TPE, "--trials", "8", "--json"), timeout_s=280)
    trials = json.loads(ended.stdout)
    assert len(trials) == len(project.runs) == 8, "each trial is one run"
    assert {trial["state"] for trial in trials} == {"done", "pruned"}, ended.stderr
    used = {match[1] for match in re.finditer(r": run 2\S+ on (head|second)", ended.stderr)}
    assert used == {"head", "second"}, ended.stderr
    for trial in trials:
        cause = receipt_of(project, trial)["exit_cause"]["id"]
        assert cause == ("pruned" if trial["state"] == "pruned" else "finished")
    whole = next(trial for trial in trials if trial["state"] == "done")
    output = next(run for run in project.runs if run.name == whole["run_id"]).joinpath("stdout.log").read_text()
    assert output.strip() == "gpus:  threads: None", "what Ray sets in its workers does not come to the script"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can hide a folder from a process")
def test_node_with_another_disk_sends_receipts(project: Project, nodes: RayNodes, tmp_path: Path) -> None:
    nodes.head(cpus=0)
    away = tmp_path / "away"
    hidden = [project.folder, project.state]
    project.state.mkdir(parents=True, exist_ok=True)
    elsewhere = {"SEATRIAL_STATE": str(away / "state"), "XDG_CACHE_HOME": str(away / "cache")}
    nodes.node("away", cpus=1, environ=elsewhere, hide=hidden)
    project.cli(
        *words(project, nodes, "--set", "lr=0.01,0.03", "--models", str(project.folder / "models")), timeout_s=280
    )
    assert [trial["state"] for trial in trials_of(project)] == ["done", "done"]
    assert len(project.runs) == 2
    for run in project.runs:
        assert json.loads((run / "summary.json").read_bytes())["cause"] == "finished"
    assert project.runs[0].name in project.cli("runs", "ls").stdout


def test_killed_in_the_middle_and_gone_on_with(project: Project, nodes: RayNodes) -> None:
    nodes.head(cpus=1)
    nodes.node("second", cpus=1)
    typed = words(project, nodes, "--set", "lr=0.01,0.02,0.03,0.04", "--set", "pause=1", "--metric", "accuracy:max")
    searcher = subprocess.Popen(
        project.argv(*typed), cwd=project.folder, env=project.environ, stderr=subprocess.DEVNULL, start_new_session=True
    )
    project.wait_for(lambda: len(project.runs) >= 2 and project.alive(), timeout_s=200)
    searcher.send_signal(signal.SIGKILL)
    searcher.wait()
    project.wait_for(lambda: all((run / "summary.json").exists() for run in project.runs))
    causes = [json.loads((run / "receipt.json").read_bytes())["exit_cause"] for run in project.runs]
    assert {cause["id"] for cause in causes} == {"stopped"}, causes
    assert not project.alive(), "no trial is left that nobody follows"

    gone_on = project.cli(*typed, timeout_s=280)
    assert "it runs again" in gone_on.stderr
    trials = trials_of(project)
    assert [trial["state"] for trial in trials] == ["done"] * 4
    assert sorted(trial["settings"]["lr"] for trial in trials) == ["0.01", "0.02", "0.03", "0.04"]


@pytest.mark.parametrize(
    ("package", "sentence"),
    [
        ('raise ImportError("No module named seatrial")', "Node second .* has seatrial none, not"),
        ('__version__ = "0.0.1"\n', "Node second .* has seatrial 0.0.1, not"),
    ],
)
def test_a_node_that_cannot_run_trials_is_named(
    project: Project, nodes: RayNodes, tmp_path: Path, package: str, sentence: str
) -> None:
    (tmp_path / "path" / "seatrial" / "backends").mkdir(parents=True)
    (tmp_path / "path" / "seatrial" / "__init__.py").write_text(package)
    (tmp_path / "path" / "seatrial" / "backends" / "__init__.py").write_text("table = None\n")
    (tmp_path / "path" / "seatrial" / "errors.py").write_text("class SeatrialError(Exception): pass\n")
    nodes.head(cpus=0)
    nodes.node("second", cpus=1, environ={"PYTHONPATH": str(tmp_path / "path")})
    began = time.monotonic()
    refused = project.cli(*words(project, nodes, "--set", "lr=0.01,0.03"), exit_code=5)
    assert re.search(sentence, refused.stderr), refused.stderr
    assert "pip install 'seatrial[ray]==" in refused.stderr
    assert time.monotonic() - began < 100
    assert not project.runs
