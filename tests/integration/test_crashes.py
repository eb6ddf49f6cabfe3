"""The crash table: kill -9 of agent, target or command line at a moment of the run's life; a full disk; many starts.

After each: no container is left, the receipt is there and true, nothing that was printed is lost or twice, and a
resumed run ends with the same bits as one that was never interrupted.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli_project import Project

IMAGE = "python:3.11-slim-bookworm"
STEPS = 20  # in SCRIPT

#: "Weights" that depend on every step before; a checkpoint every 4 steps, written in two halves and renamed.
SCRIPT = """
import hashlib, json, os, pathlib, signal, time
here = pathlib.Path(os.environ["SEATRIAL_RUN_DIR"], "checkpoints")
here.mkdir(exist_ok=True)
trap = pathlib.Path("die")
moment = trap.read_text() if trap.exists() else ""
def die(at):
    if moment == at:
        os.kill(os.getpid(), signal.SIGKILL)
kept = sorted(pathlib.Path(os.environ.get("SEATRIAL_RESUME_DIR", "/nowhere")).glob("*.json"))
state = json.loads(kept[-1].read_text()) if kept else {"step": 0, "weights": "seed"}
die("before the first step")
while state["step"] < 20:
    step = state["step"] + 1
    state = {"step": step, "weights": hashlib.sha256(f"{state['weights']} {step}".encode()).hexdigest()}
    time.sleep(0.1)
    print("step", step, state["weights"], flush=True)
    if step % 4 == 0:
        text, part = json.dumps(state), here / "part"
        with part.open("w") as file:
            file.write(text[:20])
            file.flush()
            if step == 8:
                die("half way into a checkpoint")
                if moment == "linger":
                    print("half", flush=True)
                    time.sleep(2)
            file.write(text[20:])
        part.rename(here / f"{step:03}.json")
die("after the last step")
print("weights", state["weights"], flush=True)
"""

#: An engine that is the real one, and kills its caller: once, at one of its verbs.
TRAP = """
import os, pathlib, signal, subprocess, sys
flag, verb, when, *engine = sys.argv[1:]
words = f" {' '.join(engine[1:])} "
armed = f" {verb} " in words and not pathlib.Path(flag).exists()
if armed:
    pathlib.Path(flag).touch()
if armed and when == "before":
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(1)
ended = subprocess.run(engine)
if armed:
    os.kill(os.getppid(), signal.SIGKILL)
sys.exit(ended.returncode)
"""


class Death(NamedTuple):
    """Process that is killed, the moment, and the verdicts allowed afterwards.

    Attributes:
        who: ``target``, ``agent`` or ``cli``.
        at: for the target, the moment in SCRIPT; for the agent and the command line, output to wait for, or the
            engine's verb and whether before or after it.
        causes: exit causes that are true.
    """

    who: str
    at: str
    causes: frozenset[str]


FINISHED = frozenset({"finished"})
KILLED = frozenset({"signal"})
LOST = frozenset({"agent-lost"})
NEVER = frozenset({"engine-error"})

DEATHS = {
    "target before its first step": Death("target", "before the first step", KILLED),
    "target half way into a checkpoint": Death("target", "half way into a checkpoint", KILLED),
    "target after its last step": Death("target", "after the last step", KILLED),
    "agent before the target's first step": Death("agent", "", LOST),
    "agent while the target trains": Death("agent", "step 6", LOST),
    "agent half way into a checkpoint": Death("agent", "half", LOST),
    "agent at the last step": Death("agent", f"step {STEPS}", LOST | FINISHED),
    "command line before the engine's run": Death("cli", "--detach before", NEVER),
    "command line between the engine's run and the record": Death("cli", "--detach after", FINISHED),
    "command line as it begins to follow": Death("cli", "", FINISHED),
    "command line while the target trains": Death("cli", "step 6", FINISHED),
    "command line at the last step": Death("cli", f"step {STEPS}", FINISHED),
    "command line before it removes the container": Death("cli", "rm before", FINISHED),
    "command line after it has removed the container": Death("cli", "rm after", FINISHED),
}

#: Two for the core tier; the whole table takes minutes.
QUICK = ("agent half way into a checkpoint",)


def weights(steps: int = STEPS) -> list[str]:
    """Return the values of SCRIPT, step by step."""
    made = ["seed"]
    for step in range(1, steps + 1):
        made.append(hashlib.sha256(f"{made[-1]} {step}".encode()).hexdigest())
    return made


@pytest.fixture
def trainer(container_project: Project) -> Iterator[Project]:
    container_project.write("seatrial.toml", f'[image]\nready = "{IMAGE}"\n')
    container_project.write("train.py", SCRIPT)
    yield container_project


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DEATHS]
)
def test_a_kill_loses_nothing(trainer: Project, tmp_path: Path, name: str) -> None:
    death = DEATHS[name]
    {"target": kill_target, "agent": kill_agent, "cli": kill_cli}[death.who](trainer, tmp_path, death.at)
    (trainer.folder / "die").unlink(missing_ok=True)
    killed = trainer.last.name
    reported = ended(trainer, killed)
    assert reported["exit_cause"]["id"] in death.causes, reported["exit_cause"]
    assert (reported["exit_code"] == 0) == (reported["exit_cause"]["id"] == "finished")
    steps_are_whole(trainer, finished=reported["exit_code"] == 0)
    resumed(trainer, killed)


def kill_target(trainer: Project, tmp_path: Path, at: str) -> None:
    trainer.write("die", at)
    trainer.run("train.py", "--gpus", "none", exit_code=1)


def kill_agent(trainer: Project, tmp_path: Path, at: str) -> None:
    trainer.write("die", "linger")
    running = trainer.start("train.py", "--gpus", "none")
    trainer.wait_for(lambda: trainer.runs and (trainer.last / "handle.json").exists() and at in trainer.output())
    subprocess.run([*trainer.engine, "kill", trainer.handle()], capture_output=True, check=at != f"step {STEPS}")
    assert "Traceback" not in running.communicate(timeout=240)[1]


def kill_cli(trainer: Project, tmp_path: Path, at: str) -> None:
    if at == "" or at.startswith("step"):
        running = trainer.start("train.py", "--gpus", "none")
        trainer.wait_for(lambda: trainer.runs and (trainer.last / "handle.json").exists() and at in trainer.output())
        running.kill()
        running.communicate(timeout=240)
        return
    trap = tmp_path / "trap.py"
    trap.write_text(TRAP)
    variable = f"SEATRIAL_{trainer.backend.upper()}"
    before = trainer.environ.get(variable)
    spring = [sys.executable, str(trap), str(tmp_path / "sprung"), *at.split()]
    trainer.environ[variable] = shlex.join([*spring, *trainer.engine])
    running = trainer.start("train.py", "--gpus", "none")
    running.communicate(timeout=240)
    assert (tmp_path / "sprung").exists() and running.returncode == -signal.SIGKILL, (at, running.returncode)
    trainer.environ.pop(variable) if before is None else trainer.environ.update({variable: before})


def ended(trainer: Project, run_id: str) -> dict[str, Any]:
    """The receipt, once the listing shows that the run has ended; nothing is left of it but its folders."""
    trainer.wait_for(lambda: status(trainer, run_id) not in ("running", "starting"))
    trainer.cli("runs", "show", run_id, exit_code=None)
    reported = trainer.receipt()
    assert trainer.containers() == [], "an orphan"
    if reported["exit_cause"]["id"] in NEVER:
        assert "it never started" in trainer.cli("runs", "verify", run_id, exit_code=2).stderr
    else:
        assert " intact: " in trainer.cli("runs", "verify", run_id).stdout
    return reported


def status(trainer: Project, run_id: str) -> str:
    [found] = [line for line in json.loads(trainer.cli("runs", "ls", "--json").stdout) if line["id"] == run_id]
    return str(found["status"])


def steps_are_whole(trainer: Project, *, finished: bool) -> None:
    """Every line that was printed is there once, in order."""
    lines = [line.split() for line in trainer.output().splitlines() if line.startswith("step ")]
    assert [line[1:] for line in lines] == [[str(n), w] for n, w in enumerate(weights())][1:][: len(lines)]
    assert len(lines) == STEPS or not finished


def resumed(trainer: Project, run_id: str) -> None:
    """A run that goes on from it ends with the same bits."""
    trainer.run("--resume", run_id)
    assert trainer.last.name != run_id
    assert trainer.output().splitlines()[-1] == f"weights {weights()[-1]}"
    assert trainer.containers() == []


#: Kills ``seatrial run`` before the change to files or processes of this number, counted from the run's first folder.
#: Without KILL_AT it writes how many there are.
MOMENTS = """
import atexit, os, signal, sys
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.chmod", "fcntl.flock",
           "subprocess.Popen", "os.posix_spawn", "os.fork"}
if sys.orig_argv[1:4] == ["-m", "seatrial", "run"] and "MOMENTS" in os.environ:
    path, last, count, began = os.environ.pop("MOMENTS"), int(os.environ.pop("KILL_AT", -1)), 0, False
    def look(event, arguments):
        global count, began
        began = began or (event == "os.mkdir" and str(arguments[0]).endswith("/runs"))
        flags = arguments[2] if event == "open" else 0
        if began and (event in CHANGES or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))):
            count += 1
            if count - 1 == last:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(look)
    atexit.register(lambda: open(path, "w").write(str(count)))
"""
KILLS = 16


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_run_that_is_reported_rightly_or_none(
    local_project: Project, tmp_path: Path
) -> None:
    """At sixteen moments between the run's first folder and its receipt, about half of them before its plan."""
    local_project.write("train.py", "print('ready')")
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(MOMENTS)
    counted = tmp_path / "moments"
    local_project.environ |= {
        "PYTHONPATH": str(tmp_path / "hook"), "PYTHONDONTWRITEBYTECODE": "1", "MOMENTS": str(counted),
    }  # fmt: skip
    for _ in range(2):  # the first run makes folders for those after it
        local_project.run("train.py", "--gpus", "none", "--name", "again")
    moments = int(counted.read_text())
    assert moments > 40
    for kill in range(KILLS):
        local_project.environ["KILL_AT"] = str(moments * kill // (KILLS + 1))
        killed = local_project.start("train.py", "--gpus", "none", "--name", "again")  # the name is free each time
        _, shown = killed.communicate(timeout=240)
        assert killed.returncode == -signal.SIGKILL, shown
        local_project.wait_for(lambda: not has_live_runs(local_project))
        lines = json.loads(local_project.cli("runs", "ls", "--json").stdout)
        assert {line["target"] for line in lines} == {"train.py"}, lines
        causes = {line["outcome"].partition(" in ")[0] for line in lines}
        assert causes <= {"Finished", "The run never started: seatrial was interrupted while it was prepared"}
        assert {line["id"] for line in lines} == {
            run.name for run in local_project.runs if (run / "plan.json").exists()
        }
    del local_project.environ["KILL_AT"]
    local_project.run("train.py", "--gpus", "none", "--name", "again")
    assert 3 + 3 < len(local_project.runs) < 3 + KILLS - 3, "a kill before the plan leaves nothing, one after it a run"


def has_live_runs(project: Project) -> bool:
    lines = json.loads(project.cli("runs", "ls", "--json").stdout)
    return any(line["status"] in ("starting", "running", "waiting") for line in lines)


@pytest.mark.slow
def test_two_starts_with_one_name_are_one_run(local_project: Project) -> None:
    local_project.write("train.py", "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)")
    for pair in range(20):
        (local_project.folder / "go").unlink(missing_ok=True)
        both = [local_project.start("train.py", "--gpus", "none", "--name", f"pair{pair}") for _ in range(2)]
        local_project.wait_for(lambda both=both: any(each.poll() is not None for each in both))
        refused, runs = sorted(both, key=lambda each: each.poll() is None)
        assert (refused.wait(), runs.poll()) == (2, None)
        assert f'The name "pair{pair}" belongs to run ' in refused.communicate()[1]
        local_project.write("go", "")
        assert runs.wait(120) == 0, runs.communicate()[1]
        runs.communicate()


@pytest.fixture
def small_state(tmp_path: Path) -> Iterator[Path]:
    """A state folder on a disk of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk; return the file to remove for more space."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return filler


@pytest.fixture
def on_a_small_disk(trainer: Project, small_state: Path) -> Project:
    trainer.environ["SEATRIAL_STATE"] = str(small_state)
    trainer.state = small_state
    return trainer


@pytest.mark.slow
def test_a_disk_full_at_the_start_is_one_sentence(on_a_small_disk: Project) -> None:
    filler = fill(on_a_small_disk.state)
    refused = on_a_small_disk.run("train.py", "--gpus", "none", exit_code=None)
    assert refused.returncode != 0 and refused.stderr.startswith("error: "), refused.stderr
    assert "No space left" in refused.stderr and "  fix: df -h" in refused.stderr
    assert on_a_small_disk.containers() == []
    filler.unlink()
    on_a_small_disk.run("train.py", "--gpus", "none")
    steps_are_whole(on_a_small_disk, finished=True)


@pytest.mark.slow
@pytest.mark.parametrize("detached", [False, True])
def test_a_disk_that_fills_while_it_trains_loses_nothing(on_a_small_disk: Project, detached: bool) -> None:
    trainer = on_a_small_disk
    running = trainer.start("train.py", "--gpus", "none", *(["--detach"] if detached else []))
    trainer.wait_for(lambda: trainer.runs and "step 4 " in trainer.output())
    filler = fill(trainer.state)
    shown = running.communicate(timeout=240)[1]
    if not detached:
        assert "No space left" in shown and "Traceback" not in shown and "seatrial runs show" in shown, shown
        assert running.returncode != 0
    trainer.wait_for(lambda: trainer.containers() and not is_up(trainer))
    filler.unlink()
    assert ended(trainer, trainer.last.name)["exit_cause"]["id"] == "finished"
    steps_are_whole(trainer, finished=True)
    assert trainer.output().endswith(f"weights {weights()[-1]}\n")


def is_up(trainer: Project) -> bool:
    [container] = trainer.containers()
    state = [*trainer.engine, "container", "inspect", "--format", "{{.State.Running}}", container]
    return "true" in subprocess.run(state, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_twenty_starts_at_once(trainer: Project) -> None:
    started = [trainer.start("train.py", "--gpus", "none", "--detach") for _ in range(20)]
    printed = [process.communicate(timeout=300) for process in started]
    assert {process.returncode for process in started} == {0}, [err for _, err in printed if "error" in err]
    ids = {out.strip() for out, _ in printed}
    assert len(ids) == 20 == len(trainer.runs)
    trainer.wait_for(lambda: all((run / "receipt.json").exists() for run in trainer.runs))
    for run in trainer.runs:
        receipt = json.loads((run / "receipt.json").read_bytes())
        assert receipt["exit_cause"]["id"] == "finished"
        assert (run / "stdout.log").read_text().endswith(f"weights {weights()[-1]}\n")
        assert " intact: " in trainer.cli("runs", "verify", run.name).stdout
    trainer.wait_for(lambda: trainer.containers() == [])
