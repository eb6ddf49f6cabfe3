"""Several GPUs of one machine: recipes under torchrun in a real container, a killed rank, a rank that hangs.

    python benchmarks/several_gpus.py OUT [--on docker] [--image hostlike] [--budget 150] [--gpus 1,2,4]

Writes OUT/several_gpus.json and .md after every part, and each receipt beside them, so that running out of time loses
nothing. Every container gets the three variables that keep NVLink multicast off, and the script inside asserts them
before NCCL starts. ``--gpus 0`` rehearses the whole on the CPU: two ranks over Gloo, no scaling.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: NVLink multicast is off for NCCL, for torch's symmetric memory and for NVSHMEM.
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}

#: Run in front of every target, in each rank: fails before a process group can exist where a variable did not arrive.
GUARD = "import os, runpy, sys\n" + "".join(
    f"assert os.environ.get({name!r}) == {value!r}, '{name} is not {value}'\n" for name, value in MULTICAST_OFF.items()
)

RECIPE = GUARD + "sys.argv = sys.argv[1:]\nrunpy.run_module(f'seatrial.recipes.{sys.argv[0]}', run_name='__main__')\n"

#: BERT-base's shape with random weights: speed needs no download.
FROM_SCRATCH = {"spam": ["--from-scratch", "--shape", "base"]}

HANG = (
    GUARD
    + """import time
import torch, torch.distributed as dist
gpu = torch.cuda.is_available()
if gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if gpu else "gloo")
from seatrial.train.distributed import Ranks
from seatrial.train.watchdog import Watchdog
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", rank) if gpu else torch.device("cpu")
ranks = Ranks(rank, world, device, dist.new_group(backend="gloo"))
total = torch.ones(1, device=device)
with Watchdog(ranks, 6.0) as watchdog:
    for step in range(1000):
        if rank == world - 1 and step == 20:
            time.sleep(600)
        watchdog.beat(step)
        dist.all_reduce(total)
        if gpu:
            torch.cuda.synchronize()
        time.sleep(0.05)
"""
)


class Session:
    """One run of the benchmark: the folder of results, the clock, and how seatrial is called."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out
        self.deadline_s = time.monotonic() + arguments.budget
        self.results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "parts": {}}
        self.project = self.out / "project"
        self.project.mkdir(parents=True, exist_ok=True)
        (self.project / "recipe.py").write_text(RECIPE)
        (self.project / "hang.py").write_text(HANG)
        self.data = {
            recipe: ["--data", str(folder)]
            for recipe, folder in (("mnist_deep", arguments.mnist), ("spam", arguments.spam))
            if folder
        }
        image = f'[image]\nready = "{arguments.image}"\n' if arguments.image else ""
        python = f'python = "{arguments.python}"\n' if arguments.image and arguments.python else ""
        network = f'network = "{arguments.network}"\n' if arguments.network else ""
        mounts = f"mounts = {json.dumps(arguments.mount)}\n" if arguments.mount else ""
        (self.project / "seatrial.toml").write_text(network + mounts + image + python)
        flags = [word for name, value in MULTICAST_OFF.items() for word in ("-e", f"{name}={value}")]
        source = str(Path(__file__).parents[1] / "src")
        self.base = [*arguments.seatrial.split(), "run", "--on", arguments.on, *flags]
        if arguments.on == "local":
            self.base += ["-e", f"PYTHONPATH={source}"]
        else:
            self.base += ["-v", f"{source}:/seatrial-src:ro", "-e", "PYTHONPATH=/seatrial-src"]

    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def run(
        self, name: str, gpus: str, script: str, *words: str, limit_s: float, kill_rank: bool = False
    ) -> dict[str, Any]:
        """One run and its receipt; ``kill_rank`` sends SIGKILL to a rank once the first epoch is done."""
        again = "2" if kill_rank else "0"
        if gpus == "none":  # seatrial starts one rank where there is no GPU; the rehearsal wants two
            ranks = ["--standalone", "--nproc-per-node", "2", "--max-restarts", again, script, *words]
            argv = [*self.base, "--gpus", gpus, "--name", name, "-m", "torch.distributed.run", "--", *ranks]
        else:
            flags = ["--gpus", gpus, "--launcher", "torchrun", "--restarts", again, "--name", name]
            argv = [*self.base, *flags, script, "--", *words]
        began = time.monotonic()
        with (self.out / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv, cwd=self.project, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            killed = self._kill_a_rank(name, process, limit_s) if kill_rank else None
            try:
                code = process.wait(max(1.0, min(limit_s, self.left_s())))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                try:
                    code = process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    code = -9
        run = max((self.project / ".seatrial" / "runs").glob("*-*"), default=None)
        receipt = run / "receipt.json" if run else None
        result: dict[str, Any] = {
            "exit_code": code,
            "seconds": round(time.monotonic() - began, 1),
            "killed_pid": killed,
        }
        if receipt is not None and receipt.exists():
            shutil.copy(receipt, self.out / f"{name}.receipt.json")
            shutil.copy(receipt.with_name("receipt.md"), self.out / f"{name}.receipt.md")
            read = json.loads(receipt.read_bytes())
            result |= {key: read["measurements"].get(key) for key in ("wall_s", "images_per_s", "energy_j")}
            result["cause"] = read["exit_cause"]["words"]
        return result

    def _kill_a_rank(self, name: str, process: subprocess.Popen[bytes], limit_s: float) -> int | None:
        log = self.out / f"{name}.log"
        deadline_s = time.monotonic() + min(limit_s, self.left_s())
        while process.poll() is None and time.monotonic() < deadline_s:
            if b"epoch 1:" in log.read_bytes():
                ranks = [pid for pid in _pids() if b"recipe.py" in _line(pid) and b"distributed.run" not in _line(pid)]
                ranks = [pid for pid in ranks if b"\0LOCAL_RANK=1\0" in b"\0" + _environ(pid)]
                if ranks:
                    os.kill(ranks[-1], signal.SIGKILL)
                    return ranks[-1]
            time.sleep(0.2)
        return None

    def part(self, name: str, work: Callable[[], Any]) -> None:
        """A part that crashes is a result, too."""
        if self.left_s() < 10:
            self.results["parts"][name] = {"skipped": "no time left"}
        else:
            try:
                self.results["parts"][name] = work()
            except Exception as error:  # noqa: BLE001
                self.results["parts"][name] = {"crashed": f"{type(error).__name__}: {error}"}
        (self.out / "several_gpus.json").write_text(json.dumps(self.results, indent=1))
        (self.out / "several_gpus.md").write_text(_markdown(self.results))


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _line(pid: int) -> bytes:
    return _read(pid, "cmdline")


def _environ(pid: int) -> bytes:
    return _read(pid, "environ")


def _read(pid: int, name: str) -> bytes:
    try:
        return (Path("/proc") / str(pid) / name).read_bytes()
    except OSError:
        return b""


def _markdown(results: dict[str, Any]) -> str:
    keys = (
        "exit_code",
        "seconds",
        "wall_s",
        "images_per_s",
        "energy_j",
        "killed_pid",
        "said",
        "cause",
        "skipped",
        "crashed",
    )
    lines = [f"# Several GPUs, {results['date']}", "", f"| part | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
    for name, part in results["parts"].items():
        cells = ["" if part.get(key) is None else str(part[key]).replace("|", "/") for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=lambda text: Path(text).absolute())
    parser.add_argument("--on", default="docker")
    parser.add_argument("--image", help="a ready image; none: the local backend or an image that is built")
    parser.add_argument("--python", help="its interpreter")
    parser.add_argument("--network")
    parser.add_argument("--mount", action="append", default=[], metavar="SRC:DST[:ro]")
    parser.add_argument("--mnist", type=Path, help="folder of MNIST, as the container sees it")
    parser.add_argument("--spam", type=Path, help="folder of the SMS spam collection, as the container sees it")
    parser.add_argument("--gpus", default="1,2,4", help="counts to scale over; 0: rehearse on the CPU")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds in all")
    parser.add_argument("--seatrial", default=f"{sys.executable} -m seatrial")
    arguments = parser.parse_args()
    session = Session(arguments)
    counts = [int(word) for word in arguments.gpus.split(",")]
    most = str(max(counts)) if max(counts) else "none"

    def hang() -> dict[str, Any]:
        result = session.run("hang", most, "hang.py", limit_s=40)
        text = (session.out / "hang.log").read_text(errors="replace")
        said = [line for line in text.splitlines() if "since step" in line]
        return {**result, "said": said[0][:200] if said else "nothing"}

    def killed() -> dict[str, Any]:
        recipe = "mnist_deep" if max(counts) else "digits"
        words = [recipe, "--epochs", "6" if max(counts) else "3", *session.data.get(recipe, [])]
        return session.run("killed-rank", most, "recipe.py", *words, limit_s=50, kill_rank=True)

    for count in counts if max(counts) else []:
        for recipe in ("mnist_deep", "spam"):
            session.part(
                f"{recipe}-{count}",
                lambda recipe=recipe, count=count: session.run(  # type: ignore[misc]
                    f"{recipe.replace('_', '-')}-{count}",
                    str(count),
                    "recipe.py",
                    recipe,
                    "--epochs",
                    "2",
                    *session.data.get(recipe, []),
                    *FROM_SCRATCH.get(recipe, []),
                    limit_s=40,
                ),
            )
    session.part("hang", hang)
    session.part("killed-rank", killed)
    print((session.out / "several_gpus.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
