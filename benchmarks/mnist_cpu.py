"""One epoch of MNIST on the CPU: the recipe beside the tutorial's loop, in turn, each in a process of its own.

    python benchmarks/mnist_cpu.py OUT --data DIR [--repeats 3] [--workers 2] [--threads 2]

Batch 64, the same network, optimizer and threads. Seconds of the training epoch, without its test; CPU seconds of the
process and its workers, which a busy machine changes little. Writes OUT/mnist_cpu.json after every run, prints the
table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    ways = {
        "recipe": lambda: recipe(arguments.out, arguments.data),
        "tutorial, default loader": lambda: tutorial(arguments.data, 0),
        f"tutorial, {arguments.workers} workers": lambda: tutorial(arguments.data, arguments.workers),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, way in ways.items():
            before = cpu_s()
            measured = way()
            runs[name].append({**measured, "cpu_s": cpu_s() - before, "load": os.getloadavg()[0]})
            (arguments.out / "mnist_cpu.json").write_text(json.dumps(runs, indent=1))
            print(name, runs[name][-1], flush=True)
    print("\n| | epoch, s | every run | CPU, s | accuracy |\n|---|---|---|---|---|")
    for name, measured in runs.items():
        every = [run["epoch_s"] for run in measured]
        middle, spent = statistics.median(every), statistics.median(run["cpu_s"] for run in measured)
        each = ", ".join(f"{seconds:.1f}" for seconds in every)
        print(f"| {name} | {middle:.1f} | {each} | {spent:.1f} | {measured[-1]['accuracy']:.2%} |")


def cpu_s() -> float:
    """CPU seconds of all processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def recipe(out: Path, data: Path) -> dict[str, Any]:
    """The recipe as `python -m` runs it."""
    events = out / "events.jsonl"
    events.unlink(missing_ok=True)
    options = ["--data", str(data), "--models", str(out / "models"), "--epochs", "1"]
    python("-m", "seatrial.recipes.mnist", *options, SEATRIAL_EVENTS=str(events))
    end = json.loads(events.read_text().splitlines()[-1])
    return {"epoch_s": end["train_s"], "accuracy": end["accuracy"]}


def tutorial(data: Path, workers: int) -> dict[str, Any]:
    """tutorial_mnist.py beside this file."""
    options = ["--data", str(data), "--epochs", "1", "--workers", str(workers)]
    told = json.loads(python(str(HERE / "tutorial_mnist.py"), *options).splitlines()[-1])
    return {"epoch_s": told["epochs_s"][0], "accuracy": told["accuracy"]}


def python(*arguments: str, **variables: str) -> str:
    """Run Python with our sources, without GPUs; its output. Raises CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "CUDA_VISIBLE_DEVICES": "", **variables}
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
