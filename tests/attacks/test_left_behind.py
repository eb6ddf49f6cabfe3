"""Attacks by a script on what comes after it: links, pipes and forged files for the host or the next run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from attacks_harness import READY, SECRET, Canaries, intact, receipt, record
from cli_project import Project

#: A run whose checkpoints folder becomes something else. {victim} is a home on the host.
PLANTS = {
    "checkpoints become a link to a home": "become(); os.symlink('{victim}', checkpoints)",
    "checkpoints become a link to /": "become(); os.symlink('/', checkpoints)",
    "checkpoints become a pipe": "become(); os.mkfifo(checkpoints)",
    "checkpoints become a file": "become(); open(checkpoints, 'w')",
}

#: What a script leaves in the folders that it may write; everything afterwards must work, and touch nothing else.
LEFTOVERS = {
    "links to a home, everywhere": (
        "[os.symlink('{victim}', f'{where}/{name}') for where in (run, home, '/workspace') for name in ('a', 'b.pt')]"
    ),
    "events.jsonl becomes a link": "os.remove(events); os.symlink('{victim}/thesis.txt', events)",
    "events.jsonl becomes a pipe": "os.remove(events); os.mkfifo(events)",
    "events.jsonl becomes an endless device": "os.remove(events); os.symlink('/dev/zero', events)",
    "receipts and summaries of its own": (
        "[open(f'{where}/{name}', 'w').write('{\"exit_code\": 0}') for where in (run, home)"
        " for name in ('receipt.json', 'summary.json', 'plan.json', 'handle.json', '.finalise.lock')]"
    ),
    "3,000 folders deep": "[(os.mkdir('d'), os.chdir('d')) for _ in range(3000)]",
    "5,000 files": "[open(f'{run}/{n}', 'w').close() for n in range(5000)]",
    "names of bytes": "[open(run.encode() + name, chr(119)) for name in (b'/\\xff', b'/a\\nb', b'/\\x1b[31m')]",
    "folders that lock their owner out": "[os.mkdir(run + '/x'), os.mkdir(run + '/x/y'), os.chmod(run + '/x', 0)]",
    "hard links to the project's files": "os.link('/workspace/train.py', '/workspace/model.pt')",
}

SCRIPT = """
import json, os, shutil, sys
run, events, home = os.environ["SEATRIAL_RUN_DIR"], os.environ["SEATRIAL_EVENTS"], os.environ["HOME"]
checkpoints = run + "/checkpoints"
def become(): shutil.rmtree(checkpoints)
open(events, "a").write(json.dumps(dict(step=1, loss=0.5)) + "\\n")
os.chdir(run)
{code}
os.chdir("/")
sys.exit(7)
"""


@pytest.fixture
def victim(tmp_path: Path) -> Canaries:
    return Canaries.plant(tmp_path)


@pytest.fixture
def target(container_project: Project) -> Project:
    container_project.write("seatrial.toml", READY)
    return container_project


#: In the core tier; the others leave other things at the same places.
QUICK = ("links to a home, everywhere", "events.jsonl becomes a pipe", "receipts and summaries of its own")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LEFTOVERS]
)
def test_nothing_it_leaves_is_followed(target: Project, victim: Canaries, name: str) -> None:
    before = victim.digest()
    target.write("train.py", SCRIPT.format(code=LEFTOVERS[name].replace("{victim}", str(victim.home))))
    target.run("train.py", "--gpus", "none", exit_code=1)
    reported = receipt(target)
    assert reported["exit_code"] == 1 and reported["exit_cause"]["target_exit_code"] == 7
    intact(target)
    target.cli("runs", "ls")
    target.cli("runs", "logs")
    target.cli("runs", "prune", "--yes", "--keep", "0")
    assert victim.digest() == before and not (target.folder / ".seatrial/runs").is_symlink()
    assert list((target.folder / ".seatrial" / "runs").iterdir()) == []


@pytest.mark.parametrize("name", list(PLANTS))
def test_a_resumed_run_gets_no_folder_of_the_host(target: Project, victim: Canaries, name: str) -> None:
    before = victim.digest()
    target.write("train.py", SCRIPT.format(code=PLANTS[name].replace("{victim}", str(victim.home))))
    target.run("train.py", "--gpus", "none", exit_code=1)
    target.write("train.py", "import os; print(os.walk(os.environ['SEATRIAL_RESUME_DIR']).__next__())")
    refused = target.run("--resume", "last", exit_code=None)
    assert refused.returncode in (2, 5) and "checkpoints" in refused.stderr and SECRET not in refused.stdout
    assert victim.digest() == before


@pytest.mark.parametrize("flag", ["--models", "--data"])
def test_a_folder_of_the_project_that_became_a_link_is_not_mounted(
    target: Project, victim: Canaries, flag: str
) -> None:
    before = victim.digest()
    target.write("train.py", f"import os; os.symlink({str(victim.home)!r}, '/workspace/folder')")
    target.run("train.py", "--gpus", "none")
    target.write(
        "train.py", "import os; open('/models/x', 'w') if os.path.exists('/models') else print(os.listdir('/data'))"
    )
    refused = target.run("train.py", "--gpus", "none", flag, "./folder", exit_code=2)
    assert "points outside the project" in refused.stderr and victim.digest() == before


def test_the_plan_of_the_next_run_is_the_hosts(target: Project, victim: Canaries) -> None:
    """Any plan.json that a script can reach is nobody's."""
    code = f"""
for folder, _, files in os.walk('/'):
    if folder.startswith(('/proc', '/sys')):
        continue
    for name in files:
        if name in ('plan.json', 'handle.json', 'agent.json'):
            try:
                text = open(folder + '/' + name).read().replace('/workspace', {str(victim.home)!r})
                open(folder + '/' + name, 'w').write(text)
            except OSError:
                pass
"""
    target.write("train.py", SCRIPT.format(code=code))
    target.run("train.py", "--gpus", "none", exit_code=1)
    target.write("train.py", "import os; print(sorted(os.listdir('/workspace')))")
    target.run("--resume", "last")
    assert "id_rsa" not in target.output() and "train.py" in target.output()


def test_a_handle_acts_on_its_own_container_alone(target: Project) -> None:
    """Even a record that names a stranger's container does nothing to it: the label decides."""
    run = [*target.engine, "run", "--detach", "--network", "none", "python:3.11-slim-bookworm", "sleep", "300"]
    stranger = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    try:
        target.write("train.py", "import time; print('ready', flush=True); time.sleep(60)")
        target.detach("train.py", "--gpus", "none")
        path = record(target).folder / "handle.json"
        handle = json.loads(path.read_bytes())
        path.write_text(json.dumps({**handle, "id": stranger}))
        target.cli("runs", "exec", "last", "--", "touch", "/tmp/x", exit_code=None)
        target.cli("runs", "stop", "last", "--kill", exit_code=None)
        target.cli("runs", "rm", "--force", "last", exit_code=None)
        shown = subprocess.run(
            [*target.engine, "inspect", "--format", "{{.State.Status}}", stranger], capture_output=True
        )
        assert shown.stdout.strip() == b"running"
    finally:
        subprocess.run([*target.engine, "rm", "--force", stranger], capture_output=True)


def test_a_memory_bomb_ends_the_script_and_not_the_host(docker_project: Project) -> None:
    docker_project.write("seatrial.toml", READY)
    docker_project.write("train.py", "x = []\nwhile True: x.append(bytearray(50_000_000))")
    docker_project.run("train.py", "--gpus", "none", "--memory", "200MB", exit_code=1)
    assert receipt(docker_project)["exit_cause"]["id"] == "host-oom"
    intact(docker_project)


def test_a_fork_bomb_meets_the_limit(docker_project: Project) -> None:
    docker_project.write("seatrial.toml", READY)
    docker_project.write(
        "train.py",
        """
from pathlib import Path
limits = [Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids/pids.max")]
print(next(limit.read_text() for limit in limits if limit.exists()))
""",
    )
    docker_project.run("train.py", "--gpus", "none")
    most = min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    assert int(docker_project.output()) == min(32768, most // 2)


def test_a_local_run_reports_that_its_evidence_could_be_altered(local_project: Project) -> None:
    local_project.write("train.py", "print('hello')")
    local_project.run("train.py", "--gpus", "none")
    reported = receipt(local_project)
    assert reported["seal"]["alterable"] and any("could be altered" in warning for warning in reported["warnings"])


@pytest.mark.parametrize("what", ["a line", "a line less", "the receipt"])
def test_a_later_edit_of_the_record_is_found(local_project: Project, what: str) -> None:
    local_project.write("train.py", "print('hello')")
    local_project.run("train.py", "--gpus", "none")
    run = record(local_project)
    if what == "the receipt":
        path = run.folder / "receipt.json"
        path.write_text(path.read_text().replace('"exit_code": 0', '"exit_code": 1'))
    else:
        lines = run.events_path.read_text().splitlines(keepends=True)
        lines[2:3] = [] if what == "a line less" else [lines[2].replace('"agent"', '"host"')]
        run.events_path.write_text("".join(lines))
    assert "broken" in local_project.cli("runs", "verify", exit_code=1).stdout


def test_the_record_is_its_users_alone(local_project: Project) -> None:
    local_project.write("train.py", "print('hello')")
    local_project.run("train.py", "--gpus", "none")
    folder = record(local_project).folder
    assert folder.stat().st_mode & 0o077 == 0
    for name in ("plan.json", "agent.json", "handle.json", "events.jsonl", "summary.json", "stdout.log"):
        assert (folder / name).stat().st_mode & 0o077 == 0, name
