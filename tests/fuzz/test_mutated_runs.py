"""Records of runs that somebody has changed, through every verb that reads one: no defect, no hang, no gigabytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cli_project
from cli_project import Project

SCRIPT = (
    'import json, os\nprint("hello")\nprint(json.dumps({"loss": 0.5}), file=open(os.environ["SEATRIAL_EVENTS"], "a"))\n'
)

#: Runs for one child process: what it has allocated once stays with it.
BATCH = 50


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a run named good, which no test changes."""
    folder = tmp_path_factory.mktemp("mutated")
    made = Project(folder / "project", "local", cli_project.environment(folder))
    made.write("train.py", SCRIPT)
    made.run("train.py", "--gpus", "none", "--name", "good", "--quiet")
    return made


@pytest.mark.parametrize("cases", [100, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.timeout(7200)  # of one process after the other: each measures its own processor time
def test_a_changed_record_is_one_line_and_hides_no_other_run(project: Project, tmp_path: Path, cases: int) -> None:
    template, good = tmp_path / "template", project.last
    shutil.copytree(good, template, ignore=shutil.ignore_patterns("*.pyz"))
    environ = {**project.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    wrong: list[str] = []
    for begin in range(0, cases, BATCH):
        argv = [sys.executable, "-m", "fuzz.mutated_runs", str(project.folder), str(template), good.name]
        argv += [str(begin), str(begin + BATCH)]
        ended = subprocess.run(argv, env=environ, capture_output=True, text=True, cwd=os.sep, check=False)
        wrong += [each for line in ended.stdout.splitlines() if line.startswith("[") for each in json.loads(line)]
        assert ended.returncode in (0, 3), ended.stderr[-2000:]
    assert not wrong, "\n".join(wrong)
