"""bench: the same recipe run in several ways, interleaved, each in a process of its own; medians, ratios, table, plot.

python -m seatrial.recipes.bench train mnist --compare eager,compile,graph -- --data DIR
python -m seatrial.recipes.bench train mnist-deep --compare dp,ddp --gpus 2 -- --data DIR
python -m seatrial.recipes.bench scaling spam --gpus 1,2,4 -- --data DIR --from-scratch
python -m seatrial.recipes.bench batch mnist -- --data DIR --epochs 1
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from seatrial import events
from seatrial.recipe_names import KERAS_FRAMEWORKS, KERAS_RECIPES, TRAINED, frameworks_of, module_of
from seatrial.train import command_line
from seatrial.train.errors import InputError, TrainError
from seatrial.train.saving.atomic import write_text

#: Name in --compare → the recipe's options and the environment of that way.
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "cpu": ([], {"CUDA_VISIBLE_DEVICES": ""}),
    "gpu": ([], {}),
    **{name: (["--engine", name], {}) for name in ("eager", "compile", "graph", "compile+graph")},
    **{name: (["--precision", name], {}) for name in ("fp32", "tf32", "bf16", "fp16")},
    "dp": (["--data-parallel"], {}),
    "ddp": ([], {}),
    **{name: (["--framework", name], {}) for name in ("torch", *KERAS_FRAMEWORKS)},
}
BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
#: A larger batch must be this much faster to be picked: within it the smaller one trains better per example.
WORTH = 1.05
#: Under this name recipes on a GPU report it with every epoch.
MEMORY = "gpu_memory_reserved_bytes"


@dataclass
class Way:
    """One way to run and what was measured; times are medians over ``runs``.

    ``ranks`` are processes that torchrun starts; ``gpus``, what the throughput is shared by.
    """

    name: str
    options: list[str]
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    gpus: int = 1
    runs: list[dict[str, float]] = field(default_factory=list)
    failure: str | None = None

    def median(self, metric: str) -> float | None:
        """Over the runs, or None where it was not reported."""
        values = [run[metric] for run in self.runs if metric in run]
        return statistics.median(values) if values else None


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    arguments, rest = parse(argv)
    recipe, ways = arguments.recipe, plan(arguments)
    _check_frameworks(arguments, ways, rest)
    for repeat in range(arguments.repeats):  # interleaved: a machine that warms up or is shared touches all ways alike
        for way in ways:
            if way.failure is None:
                measured = run(recipe, [*rest, *way.options], way.env, way.ranks)
                if isinstance(measured, str):
                    way.failure = measured
                else:
                    way.runs.append(measured)
            print(f"{recipe} {way.name}, run {repeat + 1}: {way.failure or summary(way.runs[-1])}", flush=True)
    if not any(way.runs for way in ways):
        raise TrainError(f"no variant of {recipe} ran: {ways[0].failure}")
    print(table(ways), flush=True)
    if arguments.mode == "batch":
        way = picked(ways)
        last = way is [each for each in ways if each.runs][-1]
        reason = "the largest that ran" if last else f"nothing larger is {WORTH - 1:.0%} faster"
        print(f"picked batch {way.name}: {reason}", flush=True)
    if arguments.json:
        write_text(arguments.json, json.dumps({"recipe": recipe, "ways": [asdict(way) for way in ways]}, indent=1))
    if arguments.plot:
        write_text(arguments.plot, plot(arguments.mode, recipe, ways))
    return 0


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and the recipe's own after ``--``."""
    own, rest = (list(argv[: argv.index("--")]), list(argv[argv.index("--") + 1 :])) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(prog="seatrial bench", description="Benchmark variants of a recipe.")
    modes = parser.add_subparsers(dest="mode", required=True)
    for mode in ("train", "scaling", "batch"):
        sub = modes.add_parser(mode)
        sub.add_argument("recipe", choices=TRAINED)
        sub.add_argument("--repeats", type=command_line.positive, default=3)
        sub.add_argument("--json", type=Path, default=command_line.result_file("bench.json"), metavar="FILE")
        sub.add_argument("--plot", type=Path, default=command_line.result_file("bench.svg"), metavar="FILE.svg")
        if mode == "train":
            sub.add_argument("--compare", required=True, help=f"some of {','.join(WAYS)}")
            sub.add_argument("--gpus", default="1", help="ranks of ddp")
        elif mode == "scaling":
            sub.add_argument("--gpus", default="1,2,4")
        else:
            sub.add_argument("--batches", type=command_line.positive, nargs="+", default=list(BATCHES))
    return parser.parse_args(own), rest


def plan(arguments: argparse.Namespace) -> list[Way]:
    """The ways that were asked for. Raises InputError for one that is not known."""
    if arguments.mode == "batch":
        return [Way(str(batch), ["--batch", str(batch)]) for batch in arguments.batches]
    if arguments.mode == "scaling":
        counts = [int(count) for count in arguments.gpus.split(",")]
        return [Way(f"{count} rank{'s' if count > 1 else ''}", [], {}, count, count) for count in counts]
    names = arguments.compare.split(",")
    if unknown := [name for name in names if name not in WAYS]:
        raise InputError(f"--compare knows no {', '.join(unknown)}", fix=f"--compare takes some of {','.join(WAYS)}")
    gpus = int(arguments.gpus)
    return [
        Way(name, *WAYS[name], ranks=gpus if name == "ddp" else 1, gpus=gpus if name in ("dp", "ddp") else 1)
        for name in names
    ]


def _check_frameworks(arguments: argparse.Namespace, ways: list[Way], rest: Sequence[str]) -> None:
    """Raises InputError: a recipe that is not written for them, or ranks that torchrun cannot start."""
    others = {name for way in ways for name in frameworks_of(arguments.recipe, [*rest, *way.options])} - {"torch"}
    if others and arguments.recipe not in KERAS_RECIPES:
        raise InputError(
            f"{arguments.recipe} trains only with torch",
            fix=f"bench train {KERAS_RECIPES[0]} --compare torch,{','.join(KERAS_FRAMEWORKS)}",
        )
    if others and any(way.ranks > 1 for way in ways):
        raise InputError(
            f"{arguments.recipe} drives its GPUs from one process with {', '.join(sorted(others))}: no ranks to start",
            fix="omit --framework, or ddp and scaling",
        )


def run(recipe: str, options: list[str], env: dict[str, str], ranks: int = 1) -> dict[str, float] | str:
    """Run a recipe in a fresh process and return its last numbers and ``process_s``, or why it failed."""
    with tempfile.TemporaryDirectory(prefix="seatrial-bench-") as folder:
        lines, failure = Path(folder) / "events.jsonl", Path(folder) / "failure.txt"
        began = time.perf_counter()
        arguments = (
            recipe,
            ["--models", folder, *options],
            {**env, events.EVENTS_VARIABLE: str(lines)},
            ranks,
            failure,
        )
        process = multiprocessing.get_context("spawn").Process(target=_module_kernels, args=arguments)
        process.start()
        process.join()
        seconds = time.perf_counter() - began
        if process.exitcode != 0:
            return failure.read_text() if failure.exists() else f"failed with exit code {process.exitcode}"
        told = events.read(str(lines))[0]
        last = [line for line in told if line.get("phase") == "end"][-1]
        numbers = {name: value for name, value in last.items() if isinstance(value, float) and name != "t"}
        if memory := [line[MEMORY] for line in told if MEMORY in line]:
            numbers[MEMORY] = float(max(memory))
        return {**numbers, "process_s": seconds}


def _module_kernels(recipe: str, options: list[str], env: dict[str, str], ranks: int, failure: Path) -> None:
    """In the new process: run the recipe here, or one rank of it per GPU. Why it cannot go into ``failure``."""
    os.environ.update(env)
    if ranks == 1:
        try:
            sys.exit(importlib.import_module(module_of(recipe, options)).main(options))
        except TrainError as error:
            failure.write_text(error.message)
            sys.exit(error.exit_code)
    from torch.distributed.run import main as torchrun

    torchrun(["--standalone", f"--nproc-per-node={ranks}", "-m", module_of(recipe), *options])


def table(ways: list[Way]) -> str:
    """Medians, and each way's throughput over the first one's; with several GPUs also for each of them."""
    base = next(way for way in ways if way.runs)
    base_rate = base.median("images_per_s") or 1.0
    several = len({way.gpus for way in ways}) > 1
    head = f"{'':14} {'loop s':>9} {'process s':>10} {'examples/s':>12} {'accuracy':>9} {'GPU memory':>11} {'times':>7}"
    lines = [head + (f" {'each':>7}" if several else "")]
    for way in ways:
        if not way.runs:
            lines.append(f"{way.name:14} {way.failure}")
            continue
        rate = way.median("images_per_s") or 0.0
        times, accuracy = rate / base_rate, way.median("accuracy")
        shown = f"{accuracy:9.2%}" if accuracy is not None else f"{'':9}"
        memory = way.median(MEMORY)
        held = f"{memory / 1e6:8,.0f} MB" if memory is not None else f"{'':11}"
        line = f"{way.name:14} {way.median('loop_s'):9.3f} {way.median('process_s'):10.2f} {rate:12,.0f} {shown} {held}"
        lines.append(f"{line} {times:7.2f}" + (f" {times * base.gpus / way.gpus:7.1%}" if several else ""))
    return "\n".join(lines)


def summary(numbers: dict[str, float]) -> str:
    """One run on one line."""
    times = f"loop {numbers['loop_s']:.3f} s, process {numbers['process_s']:.1f} s"
    return f"{numbers['images_per_s']:,.0f} examples/s, {times}"


def picked(ways: list[Way]) -> Way:
    """The smallest batch that nothing larger beats by more than WORTH; those that failed (memory) do not count."""
    worked = [way for way in ways if way.runs]
    best = max(way.median("images_per_s") or 0.0 for way in worked)
    return next(way for way in worked if (way.median("images_per_s") or 0.0) * WORTH >= best)


def plot(mode: str, recipe: str, ways: list[Way]) -> str:
    """Examples a second over batch or ranks, or a bar for each way, as SVG."""
    from seatrial.train.plot import bar_chart, line_chart

    worked = [way for way in ways if way.runs]
    if mode == "batch":
        points = [(float(way.name), way.median("images_per_s") or 1.0) for way in worked]
        return line_chart({recipe: points}, title=f"{recipe}: throughput over batch size", x="batch", y="examples/s")
    if mode == "scaling":
        points = [(float(way.ranks), way.median("images_per_s") or 1.0) for way in worked]
        ideal = [(ranks, points[0][1] * ranks / points[0][0]) for ranks, _ in points]
        title = f"{recipe}: weak scaling"
        return line_chart({recipe: points, "perfect": ideal}, title=title, x="ranks", y="examples/s")
    bars = {way.name: [run["images_per_s"] for run in way.runs] for way in worked}
    return bar_chart(bars, title=f"{recipe}: examples/s, median and every run")


if __name__ == "__main__":
    command_line.run(main)
