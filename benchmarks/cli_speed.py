"""What the command line costs before anything happens: CPU seconds of each verb, its children included.

    python benchmarks/cli_speed.py OUT [--times 9] [--runs 5000] [--only docker]

CPU time is user and system time of the process and of what it waited for (``wait4``), so that other work on the machine
moves it less than wall time, which stands beside it. ``run`` is measured at the moment when it asks the engine for a
container: a program named ``docker``, first on PATH, then notes the CPU time of its parent, and of that one's ended
children, and goes on as the engine's own. ``plan --on k8s`` plans from what an earlier plan has remembered of a
constructed cluster. What cannot be measured here (no engine, no kr8s) is left out, with the reason. Writes
OUT/cli_speed.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEATRIAL = [sys.executable, "-m", "seatrial"]

#: What is planned and run: it imports nothing, so its image is the base image with an environment.
SCRIPT = "import json\nprint(json.dumps({'loss': 0.5}))\n"

#: Builds on an engine without a network of its own.
CONFIG = '[image]\nbuild_network = "host"\n'

#: Stands before the engine's program on PATH. /proc/PID/stat: fields 14 to 17, in ticks, man 5 proc.
SHIM = """#!/bin/sh
for word in "$@"; do
  case $word in run|create) cut -d' ' -f14-17 /proc/$PPID/stat > {note}; break;; esac
done
exec {engine} "$@"
"""

#: The cluster that a plan remembers.
NODE = {
    "metadata": {"name": "gpu-node", "labels": {"nvidia.com/gpu.product": "NVIDIA-H200"}},
    "spec": {},
    "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi"}},
}

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Bench:
    """A project with a state of its own, and the verbs in it.

    Attributes:
        environ: of every command; nothing of the user's own runs and caches is read or written.
    """

    def __init__(self, folder: Path, runs: int) -> None:
        self.folder, self.runs = folder, runs
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "train.py").write_text(SCRIPT)
        (self.project / "seatrial.toml").write_text(CONFIG)
        self.note = folder / "note"
        places = {"XDG_CACHE_HOME": "cache", "SEATRIAL_STATE": "state", "SEATRIAL_LEASES": "leases"}
        self.environ = {**os.environ, **{name: str(folder / place) for name, place in places.items()}}
        self.environ.pop("VIRTUAL_ENV", None)

    def seatrial(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command that is no measurement."""
        ended = subprocess.run([*SEATRIAL, *words], cwd=self.project, env=self.environ, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"seatrial {' '.join(words)}: {ended.stderr[-600:]}")
        return ended

    def cost(self, argv: list[str], environ: Mapping[str, str] | None = None, code: int = 0) -> tuple[float, float]:
        """(CPU seconds, wall seconds) of a command to its end. Raises RuntimeError: that was not with ``code``."""
        with (self.folder / "out").open("w+") as out:
            began = time.perf_counter()
            process = subprocess.Popen(
                argv, cwd=self.project, env=environ or self.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != code:
                out.seek(0)
                raise RuntimeError(f"{' '.join(argv)}: exit {process.returncode}: {out.read()[-600:]}")
        return used.ru_utime + used.ru_stime, wall_s

    def until_engine(self, engine: str) -> tuple[float, float]:
        """CPU seconds of ``run`` up to its first call of the engine for a container, and wall seconds to its end."""
        shims = self.folder / "shims"
        shims.mkdir(exist_ok=True)
        shim = shims / "docker"
        shim.write_text(SHIM.format(note=self.note, engine=engine))
        shim.chmod(0o755)
        self.note.unlink(missing_ok=True)
        environ = {**self.environ, "PATH": f"{shims}:{self.environ['PATH']}"}
        _, wall_s = self.cost([*SEATRIAL, "run", "train.py", "--trust", "--on", "docker", "--gpus", "none"], environ)
        return sum(map(int, self.note.read_text().split())) / TICKS_PER_S, wall_s

    def ended_runs(self) -> None:
        """So many records of ended runs: one real one, copied under other IDs."""
        self.seatrial("run", "train.py", "--trust", "--on", "local", "--gpus", "none")
        (first,) = (self.folder / "state" / "projects").glob("*/runs/*-*")
        summary = json.loads((first / "summary.json").read_text())
        for number in range(1, self.runs):
            day, rest = divmod(number, 1440)
            id = f"202601{day + 1:02d}-{rest // 60:02d}{rest % 60:02d}00-b{number:04d}"
            copy = first.with_name(id)
            copy.mkdir(mode=0o700)
            for file in first.iterdir():
                if file.is_file() and file.name != "summary.json":
                    os.link(file, copy / file.name)
            (copy / "summary.json").write_text(json.dumps(summary | {"id": id}))


@contextmanager
def remembered_cluster(bench: Bench) -> Iterator[None]:
    """An API server that answers as a cluster with one GPU node, asked once."""
    sys.path.insert(0, str(ROOT / "tests"))
    import cluster_api

    answers = {"/version": cluster_api.version(33), "/api/v1/nodes": {"items": [NODE]}}
    with cluster_api.cluster_api(bench.folder, answers):
        bench.environ["KUBECONFIG"] = str(bench.folder / "kubeconfig")
        bench.seatrial("plan", "train.py", "--on", "k8s", "--manifests")
        yield


def measures(bench: Bench, engine: str | None) -> dict[str, Callable[[], tuple[float, float]]]:
    """Name → measure it once."""
    python = [sys.executable, "-c"]
    words = [*SEATRIAL, "completion", "words", "runs", "show", ""]
    found: dict[str, Callable[[], tuple[float, float]]] = {
        "python -c pass": lambda: bench.cost([*python, "pass"]),
        "import seatrial": lambda: bench.cost([*python, "import seatrial"]),
        "import seatrial; seatrial.plan": lambda: bench.cost([*python, "import seatrial; seatrial.plan"]),
        "plan --on local": lambda: bench.cost([*SEATRIAL, "plan", "train.py", "--on", "local"]),
        "plan --on k8s --manifests": lambda: bench.cost([*SEATRIAL, "plan", "train.py", "--on", "k8s", "--manifests"]),
        "runs ls": lambda: bench.cost([*SEATRIAL, "runs", "ls"]),
        "runs show": lambda: bench.cost([*SEATRIAL, "runs", "show"]),
        "run --help": lambda: bench.cost([*SEATRIAL, "run", "--help"]),
        "a misspelt flag": lambda: bench.cost([*SEATRIAL, "run", "train.py", "--gpuss", "1"], code=2),
        "completion": lambda: bench.cost(words),
    }
    if engine:
        found["plan --on docker"] = lambda: bench.cost([*SEATRIAL, "plan", "train.py", "--on", "docker"])
        found["run, to the engine's call"] = lambda: bench.until_engine(engine)
    return found


def measured(bench: Bench, times: int, only: list[str]) -> dict[str, dict[str, Any]]:
    """Name → CPU and wall seconds of each time; or why it was left out."""
    engine = shutil.which("docker")
    if engine and subprocess.run([engine, "version"], capture_output=True).returncode:
        engine = None
    chosen = {k: v for k, v in measures(bench, engine).items() if not only or any(word in k for word in only)}
    found: dict[str, dict[str, Any]] = {} if engine else {"docker": {"left out": "no Docker engine answers"}}
    for name, once in chosen.items():
        try:
            once()  # files are read and compiled, images built, facts remembered
            costs = [once() for _ in range(times)]
        except RuntimeError as error:
            found[name] = {"left out": str(error)}
            continue
        found[name] = {"cpu_s": [cpu for cpu, _ in costs], "wall_s": [wall for _, wall in costs]}
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--only", action="append", default=[], help="part of a measurement's name")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="seatrial-bench-") as folder:
        bench = Bench(Path(folder), arguments.runs)
        bench.ended_runs()
        try:
            with remembered_cluster(bench):
                found = measured(bench, arguments.times, arguments.only)
        except (ImportError, RuntimeError) as error:
            found = {"k8s": {"left out": str(error)}, **measured(bench, arguments.times, arguments.only)}
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()}
    (arguments.out / "cli_speed.json").write_text(json.dumps({"machine": machine, "measured": found}, indent=1))
    print(f"{machine}; {arguments.runs} runs; median of {arguments.times} (least, most)")
    for name, got in found.items():
        if "left out" in got:
            print(f"{name:34} left out: {got['left out']}")
        else:
            cpu, wall = got["cpu_s"], got["wall_s"]
            spread = f"({min(cpu):.3f}, {max(cpu):.3f})"
            print(f"{name:34} CPU {statistics.median(cpu):.3f} s {spread}; wall {statistics.median(wall):.3f} s")


if __name__ == "__main__":
    main()
