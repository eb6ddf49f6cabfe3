"""``seatrial run`` from the command line to the receipt, on every backend: scripts that end in every way."""

from __future__ import annotations

import grp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest

import seatrial
from cli_project import Project, environment
from seatrial.monitor.run_view import Listing
from seatrial.runs.store import Projects, RunStore
from seatrial.system.host import Host

GPU_HERE = Path("/dev/nvidiactl").exists()


@pytest.mark.both_engines
def test_a_script_that_succeeds(project: Project) -> None:
    project.write(
        "train.py",
        "import json, os, pathlib, sys\n"
        "print('out', *sys.argv[1:])\n"
        "print('err', file=sys.stderr)\n"
        "with open(os.environ['SEATRIAL_EVENTS'], 'a') as events:\n"
        "    print(json.dumps({'step': 1, 'loss': 0.5, 'accuracy': 0.99}), file=events)\n"
        "pathlib.Path(os.environ['SEATRIAL_MODELS_DIR'], 'model.pth').write_text('weights')\n",
    )
    project.write("seatrial.toml", '[image]\nbuild_network = "host"\n[criteria]\naccuracy = ">= 0.985"\n')
    ended = project.run("train.py", "--models", "models", "--strict", "--", "--epochs", "5")
    assert ended.stdout.startswith("out --epochs 5\n")
    assert "err\n" in ended.stderr and "err\n" not in ended.stdout
    assert (project.output(), project.output("stderr")) == ("out --epochs 5\n", "err\n")
    assert (project.folder / "models" / "model.pth").read_text() == "weights"
    receipt = project.receipt()
    assert (receipt["exit_code"], receipt["exit_cause"]["id"]) == (0, "finished")
    assert (receipt["header"]["backend"], receipt["header"]["target"]) == (project.backend, "train.py -- --epochs 5")
    verdicts = {criterion["id"]: criterion["verdict"] for criterion in receipt["criteria"]}
    assert "fail" not in verdicts.values()
    assert sum(verdict == "pass" for verdict in verdicts.values()) == (2 if project.backend == "local" else 3)
    assert project.containers() == []
    page = (project.place / "receipt.html").read_text()
    assert page == (project.last / "receipt.html").read_text()
    assert (project.place / "stdout.log").read_text() == project.output()
    verified = project.cli("runs", "verify", "last").stdout
    assert verified.startswith(
        f"{project.last.name} intact: {receipt['seal']['lines']} lines, digest {receipt['seal']['digest']}"
    )
    assert receipt["seal"]["missing"] == 0 and not receipt["seal"]["refused"]
    assert (receipt["seal"]["alterable"] is None) is (project.backend != "local")
    assert "model.pth" in page and not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_printed_metrics_are_in_receipt_list_comparison_and_dashboard(project: Project) -> None:
    project.write(
        "train.py",
        "import sys\n"
        "rate, fails = float(sys.argv[2]), '--fail' in sys.argv\n"
        "for epoch in 1, 2, 3:\n"
        "    print(f'epoch {epoch}/3 loss {0.3576 / epoch * rate:.4f} accuracy {0.9519 + epoch / 100:.4f}')\n"
        "    print(f'at {epoch + rate} dB', file=sys.stderr)\n"
        "    if fails: sys.exit('boom')\n",
    )
    project.write("seatrial.toml", '[image]\nbuild_network = "host"\n[metrics]\npsnr = "at (.*) dB"\n')
    for name, words, exit_code in (("one", ["1"], 0), ("two", ["2"], 0), ("bad", ["1", "--fail"], 1)):
        project.run("train.py", "--name", name, "--", "--lr", *words, exit_code=exit_code)
    one, two = (json.loads((run / "receipt.json").read_bytes())["measurements"] for run in project.runs[:2])
    read = {metric["name"]: (metric["last"], metric["source"], metric["reports"]) for metric in one["metrics"]}
    assert read == {
        "psnr": (4.0, "printed: line 3 of stderr", 3),
        "loss": (0.1192, "printed: line 3", 3),
        "accuracy": (0.9819, "printed: line 3", 3),
    }
    assert one["planned_work"] == two["planned_work"] == "3 epochs"
    listed = json.loads(project.cli("runs", "ls", "--json").stdout)
    assert {run["name"]: run["metrics"]["loss"] for run in listed} == {"bad": 0.3576, "two": 0.2384, "one": 0.1192}
    compared = json.loads(project.cli("runs", "compare", "one", "two", "bad", "--json").stdout)
    rows = {row["label"]: row["cells"] for row in compared["facts"] + compared["numbers"]}
    assert [cell["text"] for cell in rows["lr"]] == ["1", "2", "1"]
    assert [cell["text"] for cell in rows["ranked"]] == ["yes", "yes", "no: failed"]
    assert [(cell["text"], cell["verdict"], cell["best"]) for cell in rows["loss, last"]] == [
        ("0.1192", None, True),
        ("0.2384", "worse", False),
        ("0.3576", None, False),
    ]
    listing = Listing(Projects(RunStore(project.folder, Host(project.environ))))
    shown = [(line["name"], line["loss"], line["accuracy"]) for line in listing.page()["runs"]]
    assert {*shown} == {("bad", "0.3576", "0.9619"), ("two", "0.2384", "0.9819"), ("one", "0.1192", "0.9819")}


@pytest.mark.parametrize(
    ("script", "cause", "code", "words"),
    [
        ("import sys; sys.exit(7)", "script-error", 7, "exited with 7"),
        ("def f(): raise ValueError('bad shape')\nf()", "script-error", 1, "ValueError: bad shape"),
        ("import os; os.kill(os.getpid(), 11)", "signal", None, "SIGSEGV"),
    ],
    ids=["exit-code", "exception", "crash"],
)
def test_a_script_that_fails(project: Project, script: str, cause: str, code: int | None, words: str) -> None:
    project.write("train.py", script)
    project.run("train.py", exit_code=1)
    receipt = project.receipt()
    assert (receipt["exit_code"], receipt["exit_cause"]["id"]) == (1, cause)
    assert receipt["exit_cause"]["target_exit_code"] == code
    assert words in receipt["exit_cause"]["words"]


def test_more_memory_than_allowed(container_project: Project) -> None:
    container_project.write("train.py", "x = b'x' * 1_000_000_000")
    container_project.run("train.py", "--memory", "96MB", exit_code=1)
    cause = container_project.receipt()["exit_cause"]
    assert cause["id"] == "host-oom"
    assert "96 MB" in cause["words"], cause  # at the limit, or a little below when it was last seen


@pytest.mark.parametrize(
    "script",
    [
        "open('/dev/shm/batch', 'wb').write(bytes(8_000_000))",
        "from multiprocessing.shared_memory import SharedMemory\n"
        "batch = SharedMemory(create=True, size=8_000_000)\n"
        "batch.buf[:] = bytes(batch.size)",
    ],
    ids=["file", "mapping"],
)
def test_shared_memory_runs_out(container_project: Project, script: str) -> None:
    container_project.write("train.py", script)
    container_project.run("train.py", "--shm-size", "1MB", exit_code=1)
    receipt = container_project.receipt()
    assert receipt["exit_cause"]["id"] == "shared-memory", receipt["exit_cause"]
    [finding] = [finding for finding in receipt["findings"] if finding["id"] == "shared-memory-too-small"]
    assert "--shm-size" in finding["fix"]


@pytest.mark.docker_is_enough
def test_the_time_limit(project: Project) -> None:
    project.write("train.py", "import time; print('ready', flush=True); time.sleep(600)")
    project.run("train.py", "--timeout", "1s", exit_code=1)
    receipt = project.receipt()
    assert receipt["exit_cause"]["id"] == "timeout"
    assert receipt["measurements"]["wall_s"] < 30


def test_what_scripts_take_for_granted(container_project: Project) -> None:
    """The second of two runs finds what the first left in ~/.cache; other files that they write are the caller's."""
    container_project.write(
        "train.py",
        "import getpass, os, pathlib, tempfile\n"
        "cache = pathlib.Path.home() / '.cache' / 'weights'\n"
        "print(getpass.getuser(), 'cached' if cache.exists() else 'fresh', os.getcwd())\n"
        "cache.touch()\n"
        "tempfile.mkdtemp()\n"
        "pathlib.Path('out').mkdir(exist_ok=True)\n"
        "pathlib.Path('out/model.pth').write_text('weights')\n",
    )
    cache = container_project.folder.parent / "cache"
    printed = [container_project.run("train.py", XDG_CACHE_HOME=str(cache)).stdout.split()[:3] for _ in range(2)]
    user = printed[0][0]
    assert printed == [[user, "fresh", "/workspace"], [user, "cached", "/workspace"]]
    assert (container_project.folder / "out" / "model.pth").stat().st_uid == os.getuid()


def test_a_folder_of_somebody_else(container_project: Project, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes folders of others")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    os.chown(shared, 1234, 1234)
    container_project.write("train.py", "open('/shared/model.pth', 'w').write('weights')")
    container_project.run("train.py", "--mount", f"{shared}:/shared")
    assert (shared / "model.pth").read_text() == "weights"


def test_data_is_read_only(container_project: Project, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "labels").write_text("7")
    container_project.write(
        "train.py",
        "print('read', open('/data/labels').read())\n"
        "try:\n    open('/data/labels', 'w')\nexcept OSError as error:\n    print(error.strerror)\n",
    )
    ended = container_project.run("train.py", "--data", str(data))
    assert ended.stdout.startswith("read 7\nRead-only file system\n")
    assert (data / "labels").read_text() == "7"
    assert container_project.run("train.py", "--data", f"{data}:rw").stdout.startswith("read 7\n[")


def test_variables_and_files_of_them(project: Project) -> None:
    project.write(
        "train.py", "import os; print(*[os.environ.get(name) for name in ('A', 'B', 'C', 'PASSED')], sep='|')"
    )
    project.write("job.env", "# a comment\nA=from file\nB=from file\n")
    words = ["--env-file", "job.env", "--env", "B=from flag", "--env", "PASSED"]
    ended = project.run("train.py", *words, PASSED="on")
    assert ended.stdout.startswith("from file|from flag|None|on\n")


def test_a_secret_reaches_the_script_and_nothing_else(project: Project) -> None:
    value = "hunter2-and-some-more"
    project.write(
        "train.py",
        "import os, sys, time\nprint('token', os.environ['TOKEN'])\nprint(os.environ['TOKEN'], file=sys.stderr)\n"
        "print(len(os.environ['TOKEN']), 'ready', flush=True)\ntime.sleep(600)",
    )
    project.environ["TOKEN"] = value
    project.detach("train.py", "--secret", "TOKEN", "--env", f"TOKEN={value}")
    assert f"{len(value)} ready" in project.output()
    if project.engine:
        inspected = subprocess.run([*project.engine, "inspect", project.handle()], capture_output=True, text=True)
        assert "seatrial" in inspected.stdout and value not in inspected.stdout
    project.cli("runs", "stop", "last")
    assert project.output().startswith("token [redacted]\n")
    for path in project.kept():
        assert value.encode() not in path.read_bytes(), path
    assert list(Path("/dev/shm").glob(f"*{project.last.name}*")) == []


def test_a_secret_that_is_not_set(project: Project) -> None:
    project.write("train.py", "")
    assert "NO_SUCH_SECRET" in project.run("train.py", "--secret", "NO_SUCH_SECRET", exit_code=2).stderr
    assert project.runs == []


def test_no_network(docker_project: Project) -> None:
    docker_project.write("train.py", "import os; print(sorted(os.listdir('/sys/class/net')))")
    assert docker_project.run("train.py", "--network", "none").stdout.startswith("['lo']\n")


@pytest.mark.both_engines
@pytest.mark.skipif(GPU_HERE, reason="this machine has an NVIDIA GPU")
def test_a_gpu_where_there_is_none(project: Project) -> None:
    project.write("train.py", "open('ran', 'w')")
    ended = project.run("train.py", "--gpus", "1", exit_code=3)
    assert ended.stderr.startswith("error: ") and "cause: " in ended.stderr and "fix: " in ended.stderr
    assert not (project.folder / "ran").exists()
    assert project.containers() == []


@pytest.mark.docker_is_enough
def test_two_runs_at_once(project: Project) -> None:
    project.write("train.py", "import os, time; print(os.environ['SEATRIAL_RUN_ID'], flush=True); time.sleep(2)")
    both = [project.start("train.py") for _ in range(2)]
    printed = {process.communicate(timeout=120)[0].split()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert printed == {run.name for run in project.runs} and len(printed) == 2
    assert all((run / "receipt.json").exists() for run in project.runs)


@pytest.mark.docker_is_enough
def test_a_full_disk_while_saving(project: Project, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(models)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        project.write(
            "train.py",
            "import os\nopen(os.environ['SEATRIAL_MODELS_DIR'] + '/model.pth', 'wb').write(bytes(1_000_000))",
        )
        project.run("train.py", "--models", str(models), exit_code=1)
    finally:
        subprocess.run(["umount", str(models)], check=True)
    receipt = project.receipt()
    assert "No space left on device" in receipt["exit_cause"]["words"]
    assert receipt["exit_cause"]["id"] != "shared-memory"


@pytest.mark.docker
def test_an_ordinary_user_owns_what_a_run_leaves(docker_backend: object, project_name: str) -> None:
    """The user need not even be known to the system; the folder is outside pytest's, which is closed to others."""
    if os.geteuid() != 0:
        pytest.skip("every other test is run by an ordinary user already")
    uid = 1000
    user = {"user": uid, "group": uid, "extra_groups": [grp.getgrnam("docker").gr_gid]}
    folder = Path(tempfile.mkdtemp(prefix="seatrial-test-"))
    project_folder = folder / project_name
    project_folder.mkdir()
    own = {**environment(folder), "HOME": str(folder), "USER": "ada", **python_of_others(user)}
    for place in (folder, project_folder):
        os.chown(place, uid, uid)
    project = Project(project_folder, "docker", own, ["docker"], user)
    try:
        if subprocess.run(["docker", "info"], capture_output=True, env=project.environ, **user).returncode != 0:
            pytest.skip("the group docker may not use the engine")
        project.write("train.py", "import os; open('model.pth', 'w').write('x'); open('/models/m.pth', 'w').write('y')")
        project.run("train.py", "--models", "models", "--mount", f"{folder}:/further")
        left = [project.folder / "model.pth", project.folder / "models" / "m.pth", *project.kept()]
        assert {path.stat().st_uid for path in left} == {uid}
    finally:
        project.clean()
        shutil.rmtree(folder)


def python_of_others(user: dict[str, object]) -> dict[str, str]:
    """PYTHON and PYTHONPATH with which this user can run the command line; skips when no such Python exists.

    Ours may be in root's home; the system's Python of the same version then reads the same packages.
    """
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [str(Path(seatrial.__file__).parents[1]), str(Path(click.__file__).parents[1])]
    for python in (sys.executable, f"/usr/bin/{here}"):
        environ = {"PATH": os.environ["PATH"], "PYTHON": python, "PYTHONPATH": os.pathsep.join(packages)}
        try:
            tried = subprocess.run([python, "-m", "seatrial", "--version"], env=environ, capture_output=True, **user)
        except PermissionError:
            continue
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return environ
    pytest.skip(f"no {here} here that another user may run")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_torch_compile(docker_project: Project) -> None:
    docker_project.write(
        "train.py",
        "import torch\nf = torch.compile(lambda x: torch.sin(x) ** 2 + torch.cos(x) ** 2)\n"
        "print('sum', round(f(torch.randn(64)).sum().item()))\n",
    )
    ended = docker_project.cli("run", "--on", "docker", "train.py", timeout_s=840)
    assert ended.stdout.startswith("sum 64\n")


@pytest.mark.slow
@pytest.mark.torch
def test_resume_goes_on_from_the_last_checkpoint(local_project: Project) -> None:
    pytest.importorskip("sklearn")
    words = ["digits", "--", "--epochs", "2"]
    running = local_project.start(*words)
    local_project.wait_for(lambda: local_project.runs and any(local_project.place.glob("outputs/checkpoints/*.pt")))
    [started] = local_project.events("target.started")
    os.kill(started["pid"], signal.SIGKILL)
    running.communicate(timeout=60)
    assert running.returncode == 1
    killed = local_project.last
    assert local_project.receipt()["exit_cause"]["target_signal"] == signal.SIGKILL
    local_project.run("--resume", killed.name)
    assert local_project.last != killed
    plan = json.loads((local_project.last / "plan.json").read_bytes())
    assert plan["job"]["target"]["args"] == ["--epochs", "2"]
    assert "resumed from" in local_project.output() + local_project.output("stderr")
    assert (local_project.folder / "models").exists()
