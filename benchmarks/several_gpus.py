"""Several GPUs of one machine: a killed rank, a rank that hangs, recipes under torchrun, doctor's all-reduce, scaling.

    python benchmarks/several_gpus.py OUT --mnist DIR --sms DIR --vocabulary FILE [--on docker] [--image hostlike]
                                      [--gpus 1,2,4] [--budget 240] [--only spam …]

Writes OUT/several_gpus.json and .md after every part, and each receipt beside them, so that running out of time loses
nothing. Every container gets the variables that keep NVLink multicast off, and what runs inside refuses to go on
without them before NCCL can start. Nothing is downloaded.

Scaling is weak: the same batch on each rank, and for spam a collection repeated as often as there are ranks, so that
every count of ranks trains on batches of the same lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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

#: The same for doctor, which is given it as the image's interpreter.
GUARDED_PYTHON = (
    "#!/bin/sh\n"
    + "".join(
        f'[ "${name}" = {value} ] || {{ echo "{name} is not {value}" >&2; exit 97; }}\n'
        for name, value in MULTICAST_OFF.items()
    )
    + 'exec PYTHON "$@"\n'
)

#: BENCH_WIRE=own: gradients travel in their own format. BENCH_PROFILE=1: what the GPU does in five calls of a graph.
RECIPE = (
    GUARD
    + """sys.argv = sys.argv[1:]
if os.environ.get("BENCH_WIRE") == "own":
    import seatrial.train.distributed
    seatrial.train.distributed.WIRE.clear()
if os.environ.get("BENCH_PROFILE"):
    import torch
    from seatrial.train import engine
    plain, calls = engine.Graphed.run, 0
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def merged(spans):
        found = []
        for begin, end in sorted(spans):
            if found and begin <= found[-1][1]:
                found[-1][1] = max(end, found[-1][1])
            else:
                found.append([begin, end])
        return found

    def length(spans):
        return sum(end - begin for begin, end in merged(spans))

    def run(self, shape, steps):
        global calls
        calls += 1
        if calls == 4:
            torch.cuda.synchronize()
            profiler.start()
        plain(self, shape, steps)
        if calls == 8:
            torch.cuda.synchronize()
            profiler.stop()
            kernels = [(e.name, e.time_range.start, e.time_range.end) for e in profiler.events()]
            nccl = [(begin, end) for name, begin, end in kernels if "nccl" in name.lower()]
            rest = [(begin, end) for name, begin, end in kernels if "nccl" not in name.lower()]
            both, own = length(nccl + rest), length(rest)
            span = max(k[2] for k in kernels) - min(k[1] for k in kernels)
            words = [f"profile of rank {os.environ.get('RANK')}: five calls in {span / 1e3:.2f} ms"]
            words += [f"kernels {own / 1e3:.2f}, NCCL {length(nccl) / 1e3:.2f}, NCCL alone {(both - own) / 1e3:.2f}"]
            print("; ".join(words), flush=True)

    engine.Graphed.run = run
runpy.run_module(f'seatrial.recipes.{sys.argv[0]}', run_name='__main__')
"""
)

#: Copies of the messages for each rank: 560 steps an epoch at batch 64.
REPEATS = 8

ALL_REDUCE_CHECKS = ("container.peers", "framework.collective")

EPOCH = re.compile(r"epoch (\d+): .*?([\d,]+) examples/s, ([\d.]+) s")
NAMED = re.compile(r"error: rank (\d+) \(.*? since step \d+")

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
dist.all_reduce(total)  # connections first: they take seconds, which are no hang
if gpu:
    torch.cuda.synchronize()
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
        guarded = self.project / "guard" / "python3"
        guarded.parent.mkdir(exist_ok=True)
        guarded.write_text(GUARDED_PYTHON.replace("PYTHON", arguments.python or "python3", 1))
        guarded.chmod(0o755)
        self.arguments = arguments
        image = f'[image]\nready = "{arguments.image}"\n' if arguments.image else ""
        python = f'python = "{arguments.python}"\n' if arguments.image and arguments.python else ""
        network = f'network = "{arguments.network}"\n' if arguments.network else ""
        mounts = f"mounts = {json.dumps(arguments.mount)}\n" if arguments.mount else ""
        (self.project / "seatrial.toml").write_text(network + mounts + image + python)
        env = {**MULTICAST_OFF, "HF_HUB_OFFLINE": "1", **dict(pair.split("=", 1) for pair in arguments.env)}
        flags = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        source = str(Path(__file__).parents[1] / "src")
        self.base = [*arguments.seatrial.split(), "run", "--trust", "--on", arguments.on, *flags]
        if arguments.on == "local":
            self.base += ["-e", f"PYTHONPATH={source}"]
        else:
            self.base += ["-v", f"{source}:/seatrial-src:ro", "-e", "PYTHONPATH=/seatrial-src"]

    def data(self, recipe: str, ranks: int) -> list[str]:
        """The recipe's ``--data``, a folder that is put into the project for it; 0 ranks: the messages once."""
        if recipe == "mnist_deep":
            shutil.copytree(self.arguments.mnist, self.project / "mnist", dirs_exist_ok=True)
            return ["--data", "mnist"]
        folder = self.project / f"sms-{ranks}"
        folder.mkdir(exist_ok=True)
        messages = (self.arguments.sms / "SMSSpamCollection").read_text(encoding="utf-8")
        (folder / "SMSSpamCollection").write_text(messages * max(1, REPEATS * ranks), encoding="utf-8")
        shutil.copy(self.arguments.vocabulary, self.project / "vocab.txt")
        return ["--data", folder.name, "--vocabulary", "vocab.txt"]

    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def run(
        self,
        name: str,
        gpus: int,
        script: str,
        *words: str,
        limit_s: float,
        kill_rank: bool = False,
        env: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """One run and its receipt; ``kill_rank`` sends SIGKILL to a rank once the first epoch is done."""
        again = "2" if kill_rank else "0"
        base = [*self.base, *(word for pair in env for word in ("-e", pair))]
        flags = ["--gpus", str(gpus), "--launcher", "torchrun", "--restarts", again, "--name", name]
        argv = [*base, *flags, script, "--", *words]
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
            result |= {key: read["measurements"].get(key) for key in ("wall_s", "energy_j")}
            result["cause"] = read["exit_cause"]["words"]
        text = (self.out / f"{name}.log").read_text(errors="replace")
        result["examples_per_s"] = [int(rate.replace(",", "")) for _, rate, _ in EPOCH.findall(text)]
        result["profile"] = [line for line in text.splitlines() if line.startswith("profile of rank 0")]
        result["engine"] = next((line for line in text.splitlines() if line.startswith("engine:")), None)
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

    def doctor(self) -> dict[str, Any]:
        """``seatrial doctor`` on the image: two ranks' all-reduce over NCCL, and peer access."""
        given = self.arguments
        env = [word for name, value in MULTICAST_OFF.items() for word in ("--env", f"{name}={value}")]
        mounts = [
            word for mount in (*given.mount, f"{self.project / 'guard'}:/guard:ro") for word in ("--mount", mount)
        ]
        argv = [*given.seatrial.split(), "doctor", "--on", given.on, "--image", given.image, *env, *mounts]
        argv += ["--python", "/guard/python3", "--network", given.network or "none", "--json", "--verbose"]
        ended = subprocess.run(argv, cwd=self.project, capture_output=True, text=True, timeout=min(60, self.left_s()))
        (self.out / "doctor.json").write_text(ended.stdout)
        (self.out / "doctor.log").write_text(ended.stderr)
        checks = [check for check in json.loads(ended.stdout)["checks"] if check["id"] in ALL_REDUCE_CHECKS]
        said = "; ".join(f"{check['id']} {check['status']}: {check['line']}" for check in checks)
        return {"exit_code": ended.returncode, "said": said}

    def part(self, name: str, work: Callable[[], Any], needs_s: float) -> None:
        """A part that crashes is a result, too."""
        if self.arguments.only and not any(name.startswith(only) for only in self.arguments.only):
            return
        if self.left_s() < needs_s:
            self.results["parts"][name] = {"skipped": f"{self.left_s():.0f} s left"}
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
        "examples_per_s",
        "profile",
        "engine",
        "energy_j",
        "said",
        "cause",
        "skipped",
        "crashed",
    )
    lines = [f"# Several GPUs, {results['date']}", "", f"| part | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
    for name, part in results["parts"].items():
        cells = ["" if part.get(key) is None else str(part[key]).replace("|", "/") for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| last epoch | examples/s | times | per GPU |", "|---" * 4 + "|"]
    rates = {name: part["examples_per_s"][-1] for name, part in results["parts"].items() if part.get("examples_per_s")}
    for name, rate in rates.items():
        what, _, ranks = name.rpartition("-")
        if alone := rates.get(f"{what}-1"):
            lines.append(f"| {name} | {rate:,} | {rate / alone:.2f} | {rate / alone / int(ranks):.1%} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=lambda text: Path(text).absolute())
    parser.add_argument("--on", default="docker")
    parser.add_argument("--image", help="a ready image; none: the local backend or an image that is built")
    parser.add_argument("--python", help="its interpreter")
    parser.add_argument("--network")
    parser.add_argument("--mount", action="append", default=[], metavar="SRC:DST[:ro]")
    parser.add_argument("--mnist", type=Path, required=True, help="folder of MNIST")
    parser.add_argument("--sms", type=Path, required=True, help="folder of the SMS spam collection")
    parser.add_argument("--vocabulary", type=Path, required=True, help="BERT's vocab.txt")
    parser.add_argument("--gpus", default="1,4,2", help="counts to scale over")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds in all")
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts whose names begin so")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for every run")
    parser.add_argument("--seatrial", default=f"{sys.executable} -m seatrial")
    session = Session(parser.parse_args())
    counts = [int(word) for word in session.arguments.gpus.split(",")]
    most = max(counts)

    def killed() -> dict[str, Any]:
        words = ["mnist_deep", "--epochs", "40", *session.data("mnist_deep", most)]
        result = session.run("killed-rank", most, "recipe.py", *words, limit_s=60, kill_rank=True)
        text = (session.out / "killed-rank.log").read_text(errors="replace")
        resumed = [line for line in text.splitlines() if line.startswith("resumed from")]
        return {**result, "said": f"killed process {result['killed_pid']}; {resumed}"}

    def hang() -> dict[str, Any]:
        result = session.run("hang", most, "hang.py", limit_s=45)
        text = (session.out / "hang.log").read_text(errors="replace")
        named = sorted(set(map(int, NAMED.findall(text))))
        return {**result, "said": f"ranks named: {named}, asleep: {most - 1}"}

    def recipe(
        name: str, count: int, batch: int, *words: str, env: tuple[str, ...] = ()
    ) -> Callable[[], dict[str, Any]]:
        def work() -> dict[str, Any]:
            data = session.data(name, count)
            options = ["--epochs", "3" if name == "spam" else "6", "--batch", str(batch), *data, *words]
            label = f"{name}-{batch}" + "".join(f"-{pair.partition('=')[2]}" for pair in env) + f"-{count}"
            return session.run(label, count, "recipe.py", name, *options, limit_s=75, env=env)

        return work

    shape = ("--from-scratch", "--shape", "base", "--learning-rate", "2e-5")
    session.part("killed-rank", killed, 25)
    session.part("hang", hang, 25)
    for count in counts:
        session.part(f"spam-64-{count}", recipe("spam", count, 64, *shape), 30)
    session.part("doctor", session.doctor, 15)
    for count in sorted({min(counts), most}):
        session.part(f"spam-256-{count}", recipe("spam", count, 256, *shape), 30)
    for wire in ([], ["BENCH_WIRE=own"]):
        env = ("BENCH_PROFILE=1", *wire)
        session.part(f"profile{len(wire)}-64-{most}", recipe("spam", most, 64, *shape, env=env), 30)
    session.part(f"wire-own-256-{most}", recipe("spam", most, 256, *shape, env=("BENCH_WIRE=own",)), 30)
    for count in counts:
        session.part(f"mnist-deep-128-{count}", recipe("mnist_deep", count, 128), 25)
    print((session.out / "several_gpus.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
