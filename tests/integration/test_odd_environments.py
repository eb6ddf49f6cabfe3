"""The real command line where something is missing, closed, full or nonsense: a sentence, a known exit code, no wait.

Every verb in every environment is the full tier's; the core tier has, for each environment, the verbs that it bears on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli_project import Project, environment

#: docs/how-to/index.md, "Exit codes"; doctor's 0, 1 and 2 are among them. 124 is how `timeout` reports that a server
#: went on.
DOCUMENTED = {0, 1, 2, 3, 4, 5, 130, 141}
SERVED = 124

#: What a command may take beyond its normal time, on a machine that is busy with other tests.
BUDGET_S = 2.0
BUSY = 6.0

SCRIPT = "import sys\nprint('line\\n' * 200_000)\nsys.stderr.write('err\\n')\n"
LOCAL = ["train.py", "--on", "local", "--gpus", "none"]

VERBS = {
    "help": ["--help"],
    "version": ["--version"],
    "run": ["run", *LOCAL],
    "run of nothing": ["run", "missing.py"],
    "plan": ["plan", *LOCAL],
    "plan on an engine": ["plan", "train.py", "--on", "docker"],
    "plan anywhere": ["plan", "train.py"],
    "plan as JSON": ["plan", *LOCAL, "--json"],
    "plan on a cluster": ["plan", "train.py", "--on", "k8s"],
    "build --check": ["build", "--check", "Dockerfile"],
    "init": ["init", "--show"],
    "shell": ["shell", *LOCAL],
    "runs ls": ["runs", "ls"],
    "runs ls as JSON": ["runs", "ls", "--json"],
    "runs show": ["runs", "show"],
    "runs logs": ["runs", "logs"],
    "runs attach": ["runs", "attach"],
    "runs verify": ["runs", "verify"],
    "runs compare": ["runs", "compare", "last", "last"],
    "runs exec": ["runs", "exec", "last", "--", "true"],
    "runs stop": ["runs", "stop", "last"],
    "runs cp": ["runs", "cp", "last:x", "out"],
    "runs rm": ["runs", "rm", "nothing"],
    "top": ["top", "--once"],
    "top as JSON": ["top", "--json"],
    "doctor": ["doctor", "--host-only"],
    "doctor as JSON": ["doctor", "--host-only", "--json"],
    "explain": ["explain", "CUDA error: no kernel image is available"],
    "explain stdin": ["explain", "-"],
    "doctor --only cdi": ["doctor", "--only", "cdi"],
    "doctor --write-cdi": ["doctor", "--write-cdi=-"],
    "metrics": ["dashboard", "--metrics-only", "--listen", "127.0.0.1:0"],
    "dashboard --print-config": ["dashboard", "--print-config", "grafana"],
    "dashboard": ["dashboard", "--listen", "127.0.0.1:0"],
    "sweep": ["sweep", *LOCAL, "--set", "lr=1"],
    "doctor --on k8s": ["doctor", "--on", "k8s"],
    "predict": ["run", "predict", "--", "spam", "hello"],
    "prune": ["runs", "prune", "--dry-run"],
    "up": ["up"],
    "down": ["runs", "stop", "--all"],
}
SERVERS = {"metrics", "dashboard"}
#: With their reader gone: those that always print a page or more.
PRINTS = ["help", "plan", "runs ls", "runs show", "runs logs", "doctor as JSON"]


@dataclass
class Odd:
    """One odd environment.

    Attributes:
        verbs: those of the core tier.
        shell: redirections, as bash takes them. before: commands of bash before it.
        environ: variables; None: unset.
        bare: without the tests' own folders for caches and state, which would stand in for HOME.
    """

    verbs: list[str]
    shell: str = ""
    before: str = ""
    environ: dict[str, str | bytes | None] = field(default_factory=dict)
    bare: bool = False
    exit_codes: set[int] = field(default_factory=lambda: DOCUMENTED)


def _home(value: str | None, *verbs: str) -> Odd:
    return Odd(list(verbs), environ={"HOME": value}, bare=True)


def _docker_host(value: str, *verbs: str) -> Odd:
    return Odd(list(verbs), environ={"DOCKER_HOST": value})


_ASCII: dict[str, str | bytes | None] = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

ODD = {
    "stdout closed": Odd(["runs logs", "dashboard"], ">&-"),
    "stdin closed": Odd(["runs exec", "explain stdin"], "<&-"),
    "stderr closed": Odd(["runs rm"], "2>&-"),
    "all closed": Odd(["runs logs", "help"], "<&- >&- 2>&-"),
    "stdout full": Odd(["help", "runs show"], ">/dev/full", exit_codes={5}),
    "stderr full": Odd(["runs rm"], "2>/dev/full"),
    "a reader that goes away": Odd(["runs logs"], "| head -1 >/dev/null; exit ${PIPESTATUS[0]}"),
    "no reader": Odd([], "| true; exit ${PIPESTATUS[0]}"),
    "HOME missing": _home("/nonexistent/home", "plan"),
    "HOME empty": _home(""),
    "HOME unset": _home(None, "runs ls"),
    "HOME not writable": _home("/proc/1"),
    "HOME a file": _home("/etc/passwd", "plan"),
    "no place for state or cache": Odd(
        ["runs ls"],
        environ={"SEATRIAL_STATE": "/etc/passwd/x", "SEATRIAL_LEASES": "/proc/x", "XDG_CACHE_HOME": "/proc/y"},
        bare=True,
    ),
    "relative XDG folders": Odd(["plan"], environ={"XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "x"}, bare=True),
    "TMPDIR not writable": Odd(["plan"], environ={"TMPDIR": "/proc"}),
    "working directory deleted": Odd(["runs ls"], before='mkdir gone && cd gone && rmdir "$PWD" && '),
    "proxies that are none": Odd(
        ["plan on an engine"],
        environ={
            "http_proxy": "nonsense://[::1",
            "https_proxy": "\x01",
            "HTTP_PROXY": "http://u:p@[",
            "no_proxy": "[[",
        },
    ),
    "a proxy that is not UTF-8": Odd(["plan on an engine"], environ={"http_proxy": b"\xff"}),
    "DOCKER_HOST nonsense": _docker_host("nonsense"),
    "DOCKER_HOST half an address": _docker_host("tcp://[::1", "plan on an engine"),
    "DOCKER_HOST empty": _docker_host(""),
    "DOCKER_HOST with control characters": _docker_host("\x1b[31mred\nnew", "plan on an engine"),
    "DOCKER_HOST nobody there": _docker_host("tcp://127.0.0.1:1"),
    "SEATRIAL_DOCKER half a command": Odd(
        ["plan on an engine"], environ={"SEATRIAL_DOCKER": "'x", "SEATRIAL_PODMAN": "\x01"}
    ),
    "KUBECONFIG a folder": Odd(["plan on a cluster"], environ={"KUBECONFIG": "/etc"}),
    "no PATH": Odd(["plan anywhere"], environ={"PATH": "/nonexistent"}),
    "64 descriptors": Odd(["run"], before="ulimit -n 64; "),
    "ASCII": Odd(["build --check"], environ={**_ASCII, "LC_ALL": "C", "LANG": None}),
    "ASCII, strictly": Odd(["plan on an engine"], environ={**_ASCII, "PYTHONIOENCODING": "ascii:strict"}),
    "a locale that is not there": Odd(["plan"], environ={"LC_ALL": "xx_YY.nonsense"}),
    "a dumb terminal": Odd(["runs show"], environ={"TERM": "dumb"}),
    "COLUMNS=0": Odd([], environ={"COLUMNS": "0"}),
    "COLUMNS=1": Odd(["runs rm"], environ={"COLUMNS": "1"}),
    "COLUMNS=abc": Odd([], environ={"COLUMNS": "abc", "LINES": "-1"}),
    "COLUMNS beyond memory": Odd(["runs show"], environ={"COLUMNS": "99999999999"}),
    "a variable that is not UTF-8": Odd(["runs ls"], environ={"USER": b"\xff", "X": b"\xfe"}),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One with an ended run, whose output is more than a pipe holds."""
    folder = tmp_path_factory.mktemp("odd")
    environ = {**environment(folder), "SEATRIAL_STATE": str(folder / "state")}
    environ.pop("DOCKER_HOST", None)
    made = Project(folder / "project", "local", environ)
    made.write("train.py", SCRIPT)
    made.write("Dockerfile", "FROM python:3.11\nRUN pip install torch\n")
    made.run("train.py", "--gpus", "none")
    return made


@pytest.fixture(scope="module")
def normal_s(project: Project) -> float:
    """Seconds that a plan takes here and now."""
    began = time.monotonic()
    project.cli("plan", *LOCAL)
    return time.monotonic() - began


def _cases() -> list[object]:
    return [
        pytest.param(odd, verb, marks=[] if verb in ODD[odd].verbs else [pytest.mark.slow])
        for odd in ODD
        for verb in VERBS
    ]


@pytest.mark.parametrize(("odd", "verb"), _cases())
def test_odd(project: Project, normal_s: float, odd: str, verb: str) -> None:
    ended, took_s = _go(project, ODD[odd], verb)
    out, err = ended.stdout, ended.stderr
    shown = f"exit {ended.returncode} after {took_s:.1f} s\n{out[-500:]}\n{err[-1500:]}"
    expected = ODD[odd].exit_codes | ({SERVED} if verb in SERVERS else set())
    if verb == "shell":  # seatrial prints nothing; the exit code is bash's: 127 without bash
        expected |= {127} if "bash cannot be run: No such file" in err else {0}
    assert ended.returncode in expected, shown
    for sign in ("Traceback", "Internal error", "Exception ignored", "excepthook"):
        assert sign not in out + err, shown
    if ended.returncode in (2, 3, 5) and "stderr" not in odd and "all" not in odd and not verb.startswith("doctor"):
        assert re.search(r"^error: .", err, re.MULTILINE), shown
    if ended.returncode == 141 and verb not in ("run", "runs attach", "sweep"):  # those report on stderr
        assert err == "", shown
    assert "\x1b" not in err, shown
    assert took_s < max(BUSY, 4 * normal_s) + BUDGET_S, shown


@pytest.mark.parametrize("verb", PRINTS)
def test_no_reader_is_141(project: Project, verb: str) -> None:
    """Also where the output is shorter than a buffer, and fails only at the end of the process."""
    ended, _ = _go(project, Odd([]), verb, closed_reader=True)
    assert ended.returncode == 141 and ended.stderr == ""


def test_head_of_a_long_log(project: Project) -> None:
    ended, _ = _go(project, Odd([], "| head -1; exit ${PIPESTATUS[0]}"), "runs logs")
    assert (ended.returncode, ended.stdout, ended.stderr) == (141, "line\n", "")


def test_a_run_whose_output_nobody_reads_goes_on_and_says_so(tmp_path: Path) -> None:
    project = Project(
        tmp_path / "project", "local", {**environment(tmp_path), "SEATRIAL_STATE": str(tmp_path / "state")}
    )
    project.write("wait.py", "import time\nfor i in range(600):\n    print(i, flush=True)\n    time.sleep(0.1)\n")
    command = (
        f"{sys.executable} -m seatrial run wait.py --on local --gpus none --trust | head -1; exit ${{PIPESTATUS[0]}}"
    )
    bash = ["bash", "-c", command]
    ended = subprocess.run(bash, cwd=project.folder, env=project.environ, capture_output=True, text=True, timeout=60)
    [run] = project.runs
    assert f"{run.name} is still running without a reader" in ended.stderr
    bash[2] = f"{sys.executable} -m seatrial runs attach {run.name} | head -1; exit ${{PIPESTATUS[0]}}"
    left = subprocess.run(bash, cwd=project.folder, env=project.environ, capture_output=True, text=True, timeout=60)
    assert (left.returncode, f"detached; {run.name} is still running" in left.stderr) == (141, True)
    assert (ended.returncode, project.cli("runs", "stop", run.name).returncode) == (141, 0)


def test_files_do_not_take_the_place_of_a_closed_stream(project: Project) -> None:
    """A plan or a log that is opened as descriptor 1 would get what the target prints."""
    before = set(project.runs)
    ended, _ = _go(project, Odd([], "<&- >&- 2>&-"), "run")
    assert ended.returncode == 0
    [new] = set(project.runs) - before
    assert (new / "stdout.log").read_text() == "line\n" * 200_000 + "\n"
    assert (new / "stderr.log").read_text() == "err\n"


def _go(
    project: Project, odd: Odd, verb: str, *, closed_reader: bool = False
) -> tuple[subprocess.CompletedProcess[str], float]:
    environ: dict[bytes, bytes] = {os.fsencode(name): os.fsencode(value) for name, value in project.environ.items()}
    if odd.bare:
        for name in ("SEATRIAL_STATE", "SEATRIAL_LEASES", "XDG_CACHE_HOME"):
            environ.pop(name.encode(), None)
    for name, value in odd.environ.items():
        environ.pop(name.encode(), None)
        if value is not None:
            environ[name.encode()] = os.fsencode(value)
    limit = "/usr/bin/timeout -s TERM 4 " if verb in SERVERS else ""
    line = f'{odd.before}{limit}"$0" "$@" {odd.shell}'
    argv = ["/bin/bash", "-c", line, sys.executable, "-m", "seatrial", *VERBS[verb]]
    closed = _without_reader() if closed_reader else None
    began = time.monotonic()
    ended = subprocess.run(
        argv,
        cwd=project.folder,
        env=environ,
        input="exit 0\n" if verb == "shell" else "CUDA out of memory\n",
        stdout=subprocess.PIPE if closed is None else closed,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=300,
    )
    took_s = time.monotonic() - began
    if closed is not None:
        os.close(closed)
        ended.stdout = ""
    return ended, took_s


def _without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("odd", ["HOME missing", "HOME empty", "HOME not writable"])
def test_nothing_is_left_in_the_project(project: Project, odd: str) -> None:
    """An empty HOME once made the cache a folder of the project."""
    _go(project, ODD[odd], "plan")
    assert {path.name for path in Path(project.folder).iterdir()} <= {
        "train.py", "Dockerfile", "seatrial.toml", ".seatrial", "gone", "models"
    }  # fmt: skip
