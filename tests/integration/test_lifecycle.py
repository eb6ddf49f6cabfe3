"""Runs that outlive the command that started them: detached, interrupted, killed at every place, picked up again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli_project import Project
from terminal import Terminal

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
SAVES_ON_SIGTERM = f"""\
import pathlib, signal, sys
def save(*_):
    pathlib.Path('model.pth').write_text('saved in time')
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
{SLEEPS}
"""
SAVES_ON_INTERRUPT = f"""\
import pathlib
try:
    {SLEEPS}
except KeyboardInterrupt:
    pathlib.Path('model.pth').write_text('saved in time')
    raise
"""
IGNORES_ALL = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {IGNORES_SIGTERM}"


def kill_agent(project: Project) -> None:
    """SIGKILL to the agent of the last run: PID 1 of its container, or the local process."""
    if project.engine:
        subprocess.run([*project.engine, "kill", "--signal", "KILL", project.handle()], capture_output=True, check=True)
    else:
        os.kill(int(project.handle()), signal.SIGKILL)


def test_a_detached_run_from_start_to_prune(project: Project) -> None:
    project.write("train.py", SAVES_ON_SIGTERM)
    run_id = project.detach("train.py", "--name", "worker1")

    [line] = json.loads(project.cli("runs", "ls", "--json").stdout)
    assert (line["id"], line["name"], line["status"], line["backend"]) == (
        run_id,
        "worker1",
        "running",
        project.backend,
    )
    project.wait_for(lambda: project.cli("runs", "show", "worker1").stdout.endswith("\nready\n"))
    shown = project.cli("runs", "show", "worker1")
    assert "has not ended" in shown.stderr and shown.stdout.startswith("train.py: running")
    assert "image" not in shown.stdout
    assert project.cli("runs", "logs", run_id.rpartition("-")[2]).stdout == "ready\n"
    printed = project.cli(
        "runs", "exec", "worker1", "--", "sh", "-c", "echo $SEATRIAL_RUN_ID; pwd; exit 4", exit_code=4
    )
    assert printed.stdout.split()[-1] == ("/workspace" if project.engine else str(project.folder))
    if project.engine:
        missing = project.cli("runs", "exec", "worker1", "--", "nvidia-smi", exit_code=5).stderr
        assert "nvidia-smi not found in this CPU container" in missing and "nvidia-smi   # on the host" in missing
    in_use = project.run("train.py", "--name", "worker1", exit_code=2)
    assert f'The name "worker1" belongs to run {run_id}' in in_use.stderr and "fix: seatrial runs stop" in in_use.stderr
    assert "has not ended" in project.cli("runs", "rm", "worker1", exit_code=2).stderr
    assert project.cli("runs", "prune", "--yes").stdout.startswith("removed 0 runs, 0 B\n")

    following = [
        subprocess.Popen(
            [*project.program, "runs", *words], cwd=project.folder, env=project.environ, stdout=subprocess.PIPE
        )
        for words in (["logs", "-f", "worker1"], ["attach", "worker1"])
    ]
    project.cli("runs", "stop", "worker1")
    logs, attached = (process.communicate(timeout=240)[0].decode() for process in following)
    assert logs == "ready\n"
    assert attached.startswith("ready\n") and "Stopped by the user" in attached
    assert [process.returncode for process in following] == [0, 0]
    assert (project.folder / "model.pth").read_text() == "saved in time"
    receipt = json.loads(project.cli("runs", "show", "worker1", "--json").stdout)
    assert receipt == project.receipt()
    assert (receipt["exit_cause"]["id"], receipt["exit_code"]) == ("stopped", 0)
    assert "has ended" in project.cli("runs", "stop", "worker1", exit_code=2).stderr
    assert project.containers() == []

    assert re.match(r"removed 1 run, .*B\n", project.cli("runs", "prune", "--yes").stdout)
    assert project.runs == [] and (project.folder / "model.pth").exists()
    assert list((project.folder / ".seatrial" / "runs").iterdir()) == []


@pytest.mark.docker_is_enough
def test_a_script_that_ignores_sigterm_is_killed_after_the_grace(project: Project) -> None:
    project.write("train.py", IGNORES_SIGTERM)
    project.detach("train.py", "--grace", "2s")
    began_s = time.monotonic()
    project.cli("runs", "stop", "last")
    assert time.monotonic() - began_s >= 2
    signals = [event["name"] for event in project.events("signal")]
    assert signals[0] == "SIGTERM" and signals[-1] == "SIGKILL"
    receipt = project.receipt()
    assert (receipt["exit_cause"]["target_signal"], receipt["exit_code"]) == (signal.SIGKILL, 1)


@pytest.mark.docker_is_enough
def test_rm_force_ends_a_live_run(project: Project) -> None:
    project.write("train.py", SLEEPS)
    run_id = project.detach("train.py")
    folders, containers = (project.last, project.place), project.containers()
    assert len(containers) == len(project.engine[:1])
    assert project.cli("runs", "rm", "--force", "last").stdout.startswith(f"{run_id} deleted: ")
    assert not any(folder.exists() for folder in folders)
    for container in containers:
        gone = subprocess.run([*project.engine, "container", "inspect", container], capture_output=True)
        assert gone.returncode != 0


def test_kill_9_of_the_command_line_leaves_the_run_alive(project: Project) -> None:
    wait = "while not os.path.exists('go'):\n    time.sleep(0.1)\n"
    project.write("train.py", f"import os, time\nprint('ready', flush=True)\n{wait}print('finished')")
    started = project.start("train.py")
    project.wait_for_output("ready")
    project.wait_for((project.last / "handle.json").exists)
    started.kill()
    started.communicate()
    [line] = json.loads(project.cli("runs", "ls", "--json").stdout)
    assert line["status"] == "running"
    project.write("go", "")
    project.wait_for(lambda: json.loads(project.cli("runs", "ls", "--json").stdout)[0]["status"] == "done")
    assert project.output() == "ready\nfinished\n"
    assert project.receipt()["exit_cause"]["id"] == "finished"
    assert project.containers() == []


def test_a_container_that_is_removed_while_it_runs_is_reported_as_removed(container_project: Project) -> None:
    project = container_project
    project.write("train.py", SLEEPS)
    followed = project.start("train.py", "--gpus", "none")
    project.wait_for_output("ready")
    project.wait_for(lambda: project.events("sample"))
    at_once = ["--time", "0"] if project.backend == "podman" else []  # it sends SIGTERM first
    subprocess.run([*project.engine, "rm", "--force", *at_once, project.handle()], capture_output=True, check=True)
    shown = "".join(followed.communicate(timeout=240))
    assert followed.returncode == 5, shown
    removed = f"The container was removed from {project.backend} while it ran after "
    receipt = project.receipt()
    assert receipt["exit_cause"]["words"].startswith(removed) and removed in " ".join(shown.split())
    assert (receipt["exit_cause"]["id"], receipt["exit_code"]) == ("agent-lost", 5)
    assert receipt["measurements"]["wall_s"] > 0 and project.output() == "ready\n"


def test_kill_9_of_the_agent_takes_the_target_along(project: Project) -> None:
    project.write("train.py", f"import subprocess; subprocess.Popen(['sleep', '600']); {SLEEPS}")
    started = project.start("train.py")
    project.wait_for_output("ready")
    project.wait_for((project.last / "handle.json").exists)
    assert project.alive()
    kill_agent(project)
    started.communicate(timeout=240)
    assert started.returncode == 5
    receipt = project.receipt()
    assert (receipt["exit_cause"]["id"], receipt["exit_code"]) == ("agent-lost", 5)
    project.wait_for(lambda: not project.alive())
    assert project.containers() == []


@pytest.mark.docker_is_enough
def test_kill_9_of_the_target(project: Project) -> None:
    project.write("train.py", SLEEPS)
    started = project.start("train.py")
    project.wait_for_output("ready")
    project.wait_for((project.last / "handle.json").exists)
    [target] = project.events("target.started")
    # With the target the container ends, and may take the shell along before it has reported how it ended.
    project.cli("runs", "exec", "last", "--", "sh", "-c", f"kill -9 {target['pid']}", exit_code=None)
    started.communicate(timeout=240)
    assert started.returncode == 1
    cause = project.receipt()["exit_cause"]
    assert (cause["id"], cause["target_signal"], cause["target_exit_code"]) == ("signal", signal.SIGKILL, None)


def run_on_a_terminal(project: Project, *words: str) -> Terminal:
    argv = project.argv("run", "train.py", "--on", project.backend, *words)
    terminal = Terminal(argv, cwd=project.folder, env=project.environ)
    terminal.expect(b"standing by")
    return terminal


@pytest.mark.both_engines
def test_ctrl_c_once_is_a_keyboard_interrupt_in_the_script(project: Project) -> None:
    project.write("train.py", SAVES_ON_INTERRUPT.replace("ready", "standing by"))  # the image is ready before
    terminal = run_on_a_terminal(project)
    terminal.type(b"\x03")
    exit_code, shown = terminal.end(), terminal.shown.decode()
    assert exit_code == 130 and "SIGINT was sent" in shown and "receipt.html" in shown
    assert (project.folder / "model.pth").read_text() == "saved in time"
    assert project.receipt()["exit_cause"]["id"] == "stopped"
    assert [event["name"] for event in project.events("signal") if event["source"] == "agent"] == ["SIGINT"]
    assert project.containers() == []


def test_ctrl_c_twice_is_a_sigterm(project: Project) -> None:
    ignores = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, save)"
    saves = SAVES_ON_SIGTERM.replace("signal.signal(signal.SIGTERM, save)", ignores)
    project.write("train.py", saves.replace("ready", "standing by"))
    terminal = run_on_a_terminal(project)
    terminal.type(b"\x03")
    terminal.expect(b"SIGINT was sent")
    terminal.type(b"\x03")
    exit_code, shown = terminal.end(), terminal.shown.decode()
    assert exit_code == 130 and "SIGTERM was sent" in shown and "Killing" not in shown
    assert (project.folder / "model.pth").read_text() == "saved in time"


def test_sigterm_stops_cleanly_and_sighup_leaves_it_running(project: Project) -> None:
    project.write("train.py", SAVES_ON_SIGTERM)
    for number, exit_code in ((signal.SIGHUP, -signal.SIGHUP), (signal.SIGTERM, 0)):
        before = len(project.runs)
        following = project.start("train.py")
        project.wait_for(lambda before=before: len(project.runs) > before)
        while (line := following.stdout.readline()) != "ready\n":  # it follows, and no longer starts
            assert line
        following.send_signal(number)
        _, shown = following.communicate(timeout=240)
        assert following.returncode == exit_code and bool(project.alive()) == (number == signal.SIGHUP), shown
        if number == signal.SIGHUP:
            project.cli("runs", "stop", "last")
    assert "Stopping" in shown and "receipt.html" in shown
    assert (project.folder / "model.pth").read_text() == "saved in time"
    assert project.receipt()["exit_cause"]["id"] == "stopped"
    assert [line["status"] for line in json.loads(project.cli("runs", "ls", "--json").stdout)] == ["stopped"] * 2
    assert project.containers() == []


def test_ctrl_c_three_times_kills(project: Project) -> None:
    project.write("train.py", IGNORES_ALL.replace("ready", "standing by"))
    terminal = run_on_a_terminal(project, "--grace", "15m")
    terminal.type(b"\x03")
    terminal.expect(b"SIGINT was sent")
    terminal.type(b"\x03")
    terminal.expect(b"by another Ctrl-C")
    terminal.type(b"\x03")
    exit_code, shown = terminal.end(timeout_s=300), terminal.shown.decode()  # long before the end of the grace
    assert exit_code == 130 and "Killing it" in shown
    assert (project.last / "receipt.json").exists()
    assert not project.alive() and project.containers() == []


def test_plan_changes_nothing(container_project: Project) -> None:
    container_project.write("train.py", "import six")
    before = snapshot(container_project.folder)
    words = ["plan", "train.py", "--on", container_project.backend, "--gpus", "none", "--models", "models"]
    shown = container_project.cli(*words).stdout
    assert snapshot(container_project.folder) == before
    plan = json.loads(container_project.cli(*words, "--json").stdout)
    assert snapshot(container_project.folder) == before
    assert (plan["backend"], plan["injection"], plan["gpus"]) == (container_project.backend, "none", [])
    assert plan["image"]["tag"] in shown
    assert all(choice["reason"] for choice in plan["choices"])
    assert container_project.cli("runs", "ls", "--json").stdout == "[]\n"


def snapshot(folder: Path) -> dict[str, tuple[float, bytes | None]]:
    """Every file and folder, with its time of change and contents."""
    return {
        str(path): (path.stat().st_mtime, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


def test_json_of_a_run_is_the_receipt(project: Project) -> None:
    project.write("train.py", "print('not json')")
    ended = project.run("train.py", "--json")
    assert json.loads(ended.stdout) == project.receipt()
    assert "not json\n" in ended.stderr


def test_explain_finds_a_run_by_name_and_last_and_ls_names_its_project(local_project: Project, tmp_path: Path) -> None:
    local_project.write("train.py", "raise RuntimeError('CUDA error: no kernel image is available')")
    local_project.run("train.py", "--name", "worker1", exit_code=1)
    for name in ("last", "worker1"):
        explained = local_project.cli("explain", name)
        assert "no-kernel-image" in explained.stdout and "Failed. " in explained.stderr
    assert "No file, run of this project" in local_project.cli("explain", "worker2", exit_code=2).stderr
    local_project.write("train.py", "print('well')")
    local_project.run("train.py", "--name", "well")
    assert "seatrial runs ls -C .\n" in local_project.cli("runs", "ls", "-C", str(tmp_path)).stderr
    assert "No known failure" in local_project.cli("explain", "well").stdout
    local_project.write("train.py", "import time; time.sleep(60)")
    local_project.run("train.py", "--detach")
    assert "No known failure" in local_project.cli("explain", "last", exit_code=1).stdout
    local_project.cli("runs", "stop", "last")


def test_runs_that_are_not_there(local_project: Project) -> None:
    assert "seatrial runs ls" in local_project.cli("runs", "show", "nobody", exit_code=2).stderr
    assert local_project.cli("runs", "ls").stdout == ""


@pytest.mark.parametrize("words", [["--on", "docker"], ["--on", "docker", "--detach"]])
def test_an_engine_that_is_not_running(local_project: Project, words: list[str]) -> None:
    local_project.write("train.py", "")
    ended = local_project.cli("run", "train.py", *words, exit_code=5, DOCKER_HOST="unix:///nowhere/docker.sock")
    assert ended.stderr.startswith("error: ") and "Docker" in ended.stderr and "  fix: " in ended.stderr
    assert local_project.runs == []


def test_the_name_of_a_run_that_ended_unwatched_is_free(local_project: Project) -> None:
    local_project.write("train.py", "print('ready')")
    first = local_project.detach("train.py", "--name", "worker1")
    local_project.wait_for(lambda: not local_project.alive())
    again = local_project.run("train.py", "--name", "worker1")
    assert local_project.last.name != first
    assert f'The name "worker1" now refers to this run; find the earlier one by its ID, {first}' in again.stderr
    assert [line["status"] for line in json.loads(local_project.cli("runs", "ls", "--json").stdout)] == ["done"] * 2


def test_a_limit_of_gpu_memory_without_gpus_is_refused(local_project: Project) -> None:
    local_project.write("train.py", "import torch")
    words = ["plan", "train.py", "--on", "local", "--gpus", "none", "--gpu-memory", "4GB"]
    assert "--gpu-memory limits nothing" in local_project.cli(*words, exit_code=2).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ctrl_c_before_the_start_still_leaves_a_receipt(local_project: Project, number: int) -> None:
    local_project.write("train.py", "import six; print('never')")
    local_project.write("requirements.txt", "--index-url http://192.0.2.1/\nsix-of-nowhere")  # TEST-NET-1: pip waits
    local_project.write("seatrial.toml", "")
    started = local_project.start("train.py")
    local_project.wait_for(lambda: local_project.runs and (local_project.last / "plan.json").exists())
    time.sleep(2)
    started.send_signal(number)
    _, shown = started.communicate(timeout=240)
    killed = number == signal.SIGKILL
    assert started.returncode == (-number if killed else 130) and "Traceback" not in shown
    words = "The run never started: seatrial was interrupted" if killed else "Stopped by the user before it started"
    assert words in local_project.cli("runs", "ls").stdout
    receipt = local_project.receipt()
    ended = (receipt["exit_cause"]["id"], receipt["exit_code"])
    assert ended == (("engine-error", 5) if killed else ("stopped", 130))
    assert not local_project.alive()
