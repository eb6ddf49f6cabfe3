"""seatrial up over real stages: order, what is not run again, outputs whole or not at all, failures, kills."""

from __future__ import annotations

import ast
import json
import os
import resource
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

import pytest

from cli_project import Project
from seatrial.runs.store import project_key
from seatrial.runs.view import VIEW

#: Of ``cpu_s_of_known_work`` on an idle core of a machine of 2 cores, as in tests/fuzz.
KNOWN_WORK_S = 0.09

IMAGE = "python:3.11-slim-bookworm"

#: Idioms of real scripts: a path from __file__ with links resolved, a fresh folder, a file renamed into its place.
PREPROCESS = """
import os, pathlib, shutil, time
from lines import line
root = pathlib.Path(__file__).resolve().parent
out = root / "processed"
if out.exists():
    shutil.rmtree(out)
out.mkdir()
for number in range(4):
    (out / f"{number}.txt").write_text(line(number))
    print("line", number, flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0")))
(root / "vocabulary.part").write_text("4 words")
os.replace(root / "vocabulary.part", root / "vocabulary")
"""
TRAIN = """
import os, pathlib, sys
text = "".join(path.read_text() for path in sorted(pathlib.Path("processed").iterdir()))
os.makedirs("models", exist_ok=True)
pathlib.Path("models", sys.argv[1]).write_text(text.upper())
print("trained", flush=True)
"""
CONFIG = """
gpus = "none"

[stages.preprocess]
target = "preprocess.py"
outputs = ["processed", "vocabulary"]

[stages.train]
target = "train.py"
args = ["best.pt"]
needs = ["preprocess"]
outputs = ["models/best.pt"]
"""
READY = CONFIG.replace('gpus = "none"', f'gpus = "none"\nimage = {{ready = "{IMAGE}"}}')
LINES = "def line(number):\n    return f'line {number}\\n'\n"


def pipeline(project: Project, config: str = CONFIG) -> Project:
    project.write("preprocess.py", PREPROCESS)
    project.write("lines.py", LINES)
    project.write("train.py", TRAIN)
    project.write("seatrial.toml", config)
    return project


def up(project: Project, *words: str, exit_code: int | None = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    return project.cli("up", "--on", project.backend, *words, exit_code=exit_code, **environ)


def groups(project: Project) -> list[dict[str, Any]]:
    folder = project.state / "projects" / project_key(project.folder.resolve()) / "groups"
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*/group.json"))]


def states(project: Project) -> dict[str, str]:
    return {member["name"]: member["state"] for member in groups(project)[-1]["members"]}


def chain(project: Project) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        sorted((project.folder / ".seatrial" / "pipelines").glob("*/receipt.json"))[-1].read_bytes()
    )
    return loaded


def complete(project: Project) -> bool:
    return (
        sorted(path.name for path in (project.folder / "processed").iterdir()) == [f"{n}.txt" for n in range(4)]
        and (project.folder / "vocabulary").read_text() == "4 words"
        and (project.folder / "models/best.pt").read_text().startswith("LINE 0")
    )


def test_stages_run_in_order_and_not_again(local_project: Project) -> None:
    project = pipeline(local_project)
    told = up(project)
    assert "preprocess | line 3\n" in told.stdout and "train      | trained\n" in told.stdout
    assert complete(project) and states(project) == {"preprocess": "done", "train": "done"}
    train = chain(project)["links"][1]
    assert chain(project)["passed"] and train["verdict"].startswith("Done on the CPU. ")
    assert {piece["path"]: (piece["of"], piece["intact"]) for piece in train["read"]} == {
        "processed": ("preprocess", True),
        "vocabulary": ("preprocess", True),
    }
    assert not list(project.folder.glob(".seatrial/runs/*/work")), "views are gone"
    again = min(cpu_s_of_nothing(project) / max(1.0, cpu_s_of_known_work() / KNOWN_WORK_S) for _ in range(3))
    assert again < 0.5, f"an up with nothing to do took {again:.2f} s of CPU"
    assert len(project.runs) == 2 and len(groups(project)) == 1
    project.write("lines.py", LINES + "# a comment\n")
    (project.folder / "models/best.pt").write_text("mine")
    told = up(project)
    assert "preprocess: runs as" in told.stderr and "lines.py changed" in told.stderr
    assert "its output models/best.pt was changed since" in told.stderr
    assert complete(project) and states(project) == {"preprocess": "done", "train": "done"}


def cpu_s_of_nothing(project: Project) -> float:
    """CPU of an ``up`` with nothing to do."""
    before = used_s()
    told = up(project).stderr
    assert "train: unchanged: same code, arguments, image and outputs of preprocess" in told
    assert "nothing to do" in told
    return used_s() - before


def cpu_s_of_known_work() -> float:
    """What this core needs at this moment, beside other tests, to parse 10,000 lines."""
    began = time.process_time()
    ast.parse("x = f(a, b)\n" * 10_000)
    return time.process_time() - began


def used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_stage_that_fails_ends_only_what_needs_it(local_project: Project) -> None:
    config = """
gpus = "none"
stages.fails = {target = "fails.py", outputs = ["never"]}
stages.forgets = {target = "forgets.py", outputs = ["model.pt"]}
stages.beside = {target = "lines.py"}
stages.after = {target = "lines.py", needs = ["beside", "forgets"]}
"""
    project = pipeline(local_project, config)
    project.write("fails.py", "import pathlib; pathlib.Path('never').write_text('half'); raise SystemExit('bad luck')")
    project.write("forgets.py", "open('model.pth', 'w').write('x')")
    told = up(project, exit_code=1).stderr
    assert states(project) == {"fails": "failed", "forgets": "failed", "beside": "done", "after": "skipped"}
    assert "fails: failed: The target exited with 1: bad luck" in told
    assert "forgets: failed: it ended well, but wrote nothing to its output model.pt" in told
    assert "It did write model.pth" in told and "after: not started: forgets failed" in told
    assert not (project.folder / "never").exists() and not chain(project)["passed"]


@pytest.mark.slow
def test_stages_in_containers(container_project: Project) -> None:
    """An older output is seen by nobody but the project until the new one takes its place."""
    project = pipeline(
        container_project, CONFIG.replace('gpus = "none"', f'gpus = "none"\nimage = {{ready = "{IMAGE}"}}')
    )
    project.write("processed/old.txt", "of an earlier day\n")
    up(project)
    assert complete(project) and states(project) == {"preprocess": "done", "train": "done"}
    assert (project.folder / "processed/0.txt").stat().st_uid == os.getuid()
    assert "nothing to do" in up(project).stderr


class Death(NamedTuple):
    """A function of the command line that it is killed at: before or after its n-th call."""

    function: str
    when: str
    call: int = 1


ONE = "seatrial.pipelines.stages.one_stage"
RECORDS = "seatrial.pipelines.stages.record:StageRecords"
DEATHS = {
    "before the group is written": Death("seatrial.pipelines.group:GroupStore.create", "before"),
    "before the stage is begun": Death(f"{RECORDS}.begin", "before"),
    "before its run starts": Death(f"{RECORDS}.begin", "after"),
    "as its run has started": Death("seatrial.runs.launch:start", "after"),
    "while it is followed": Death("seatrial.pipelines.lines:Lines._write", "after"),
    "before its receipt": Death(f"{ONE}:finalise", "before"),
    "after its receipt": Death(f"{ONE}:finalise", "after"),
    "before its outputs are placed": Death(f"{ONE}:place", "before"),
    "between two outputs": Death(f"{ONE}:place", "after"),
    "before the older one is deleted": Death("seatrial.pipelines.stages.outputs:_swap", "after"),
    "before its result is written down": Death(f"{RECORDS}.placed", "before"),
    "before the note of its run is deleted": Death(f"{RECORDS}.drop", "before"),
    "before the next stage": Death(f"{RECORDS}.begin", "before", 2),
    "before the chained receipt": Death("seatrial.pipelines.stages.verbs:show_chain", "before"),
}
TRAP = """
import functools, importlib, os, signal, sys
where, when, call = sys.argv[1:4]
module, _, path = where.partition(":")
owner = importlib.import_module(module)
*above, name = path.split(".")
for each in above:
    owner = getattr(owner, each)
real, calls = getattr(owner, name), 0
@functools.wraps(real)
def trap(*args, **options):
    global calls
    calls += 1
    if calls == int(call) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*args, **options)
    if calls == int(call):
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(owner, name, trap)
sys.argv[1:4] = []
from seatrial.cli import main
main()
"""


def is_whole_or_older(project: Project) -> None:
    """Nobody sees half of an output, nor none where an older one was."""
    names = sorted(path.name for path in (project.folder / "processed").iterdir())
    assert names in (["old.txt"], [f"{number}.txt" for number in range(4)])
    assert (project.folder / "vocabulary").read_text() in ("0 words", "4 words")


@pytest.mark.slow
@pytest.mark.parametrize("name", DEATHS)
def test_a_killed_command_line_loses_nothing(local_project: Project, name: str) -> None:
    project = pipeline(local_project)
    project.write("processed/old.txt", "of an earlier day\n")
    project.write("vocabulary", "0 words")
    death = DEATHS[name]
    argv = [sys.executable, "-c", TRAP, death.function, death.when, str(death.call), "up", "--trust", "--on", "local"]
    killed = subprocess.run(argv, cwd=project.folder, env=project.environ, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    is_whole_or_older(project)
    listed = project.cli("runs", "ls").stdout
    assert not groups(project) or "stages: 2 members" in listed
    up(project)
    assert complete(project)
    assert "nothing to do" in up(project).stderr
    started = [run for run in project.runs if (run / "handle.json").exists()]
    assert len(started) == 2, "no stage ran twice"
    assert not list(project.folder.glob(f".seatrial/runs/*/{VIEW}/processed"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_killed_stage_runs_again_and_no_other(request: pytest.FixtureRequest, backend: str) -> None:
    project: Project = request.getfixturevalue(f"{backend}_project")
    pipeline(project, READY if backend == "docker" else CONFIG)
    project.write("train.py", "import time; print('ready', flush=True); time.sleep(600)")
    running = subprocess.Popen(
        project.argv("up", "--on", backend), cwd=project.folder, env=project.environ, stderr=subprocess.PIPE, text=True
    )
    project.wait_for(lambda: len(project.runs) == 2 and "ready" in project.output())
    if project.engine:
        subprocess.run([*project.engine, "kill", "--signal", "KILL", project.handle()], capture_output=True, check=True)
    else:
        os.kill(int(project.handle()), signal.SIGKILL)
    assert "train: failed" in running.communicate(timeout=60)[1] and running.returncode not in (0, None)
    assert states(project) == {"preprocess": "done", "train": "failed"}
    project.write("train.py", TRAIN)
    up(project)
    assert complete(project) and states(project) == {"preprocess": "unchanged", "train": "done"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Ctrl-C", "down"])
def test_ctrl_c_and_down_stop_all_and_keep_what_is_complete(local_project: Project, way: str) -> None:
    project = pipeline(local_project)
    project.write("train.py", "import time; print('ready', flush=True); time.sleep(600)")
    running = subprocess.Popen(
        project.argv("up", "--on", "local"), cwd=project.folder, env=project.environ, stderr=subprocess.PIPE, text=True
    )
    project.wait_for(lambda: len(project.runs) == 2 and "ready" in project.output())
    refused = up(project, exit_code=2).stderr
    assert f"Another seatrial up (process {running.pid}) runs this project's stages" in refused
    if way == "down":
        assert "is down" in project.cli("runs", "stop", "--all").stderr
    else:
        running.send_signal(signal.SIGINT)
    assert "train: stopped" in running.communicate(timeout=60)[1] and running.returncode == 130
    assert states(project) == {"preprocess": "done", "train": "stopped"}
    assert "nothing of this project is up" in project.cli("runs", "stop", "--all").stderr


@pytest.mark.slow
def test_a_group_in_the_background_from_start_to_prune(local_project: Project) -> None:
    project = pipeline(local_project)
    group = up(project, "--detach", "--name", "nightly", PAUSE="0.3").stdout.strip()
    assert group == groups(project)[0]["id"] and groups(project)[0]["launcher"]
    followed = project.cli("runs", "logs", "-f", "nightly").stdout
    assert [line for line in followed.splitlines() if "line" in line] == [f"preprocess | line {n}" for n in range(4)]
    assert "train      | trained\n" in followed and complete(project)
    project.wait_for(lambda: groups(project)[0]["launcher"] is None)
    assert "[✓] nightly: 2 stages: done" in project.cli("runs", "show", group[-4:]).stdout
    shown = json.loads(project.cli("runs", "show", "nightly", "--json").stdout)
    assert [link["state"] for link in shown["links"]] == ["done", "done"]
    project.cli("runs", "prune")
    assert not groups(project) and not list((project.folder / ".seatrial/pipelines").iterdir())
    assert "nothing to do" in up(project).stderr, "results hold without the runs that made them"


@pytest.mark.slow
@pytest.mark.parametrize("edit", ["", "# edited\n"])
def test_an_orphan_is_gone_on_with_or_stopped_if_its_code_changed(local_project: Project, edit: str) -> None:
    project = pipeline(local_project)
    argv = project.argv("up", "--on", "local")
    running = subprocess.Popen(argv, cwd=project.folder, env={**project.environ, "PAUSE": "1"}, text=True)
    project.wait_for_output("line 0")
    running.kill()
    running.wait()
    orphan = project.last.name
    project.write("preprocess.py", PREPROCESS + edit)
    told = up(project).stderr
    assert (f"goes on with {orphan}" in told) == (not edit)
    assert (f"stopping {orphan}" in told) == bool(edit)
    assert complete(project)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("fails", [False, True])
def test_the_compose_file_runs_without_us(docker_project: Project, fails: bool) -> None:
    """In the same order; what needs a stage that failed does not start."""
    project = pipeline(docker_project, READY)
    if fails:
        project.write("preprocess.py", "raise SystemExit(3)")
    text = project.cli("plan", "--on", "docker", "--as", "compose").stdout
    assert "seatrial" not in text.replace("/home/seatrial", "").partition("services:")[2]
    project.write("compose.yaml", text)
    compose = [*project.engine, "compose", "-p", project.folder.name]
    try:
        ended = subprocess.run([*compose, "up"], cwd=project.folder, capture_output=True, text=True, timeout=120)
        assert (ended.returncode != 0) == fails, ended.stderr
        assert not (project.folder / "models").exists() if fails else complete(project)
    finally:
        subprocess.run([*compose, "down"], cwd=project.folder, capture_output=True, timeout=60)
