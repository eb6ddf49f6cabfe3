"""bench: run a recipe in several variants, in turn, each in its own process, and compare them pair by pair.

    seatrial run bench --data DIR -- train mnist --compare eager,compile,graph -- --epochs 2
    seatrial run bench --gpus 2 -- train mnist-deep --compare dp,ddp --gpus 2
    seatrial run bench --gpus 4 -- scaling spam --gpus 1,2,4 -- --from-scratch
    seatrial run bench -- batch mnist -- --epochs 1

Arguments after the second ``--`` go to the recipe. The numbers are in bench.json in the run's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from seatrial import events
from seatrial.common.paired import Interval, Sampled, deviation, ratio
from seatrial.recipe_names import WEIGHTS, module_of
from seatrial.train import options
from seatrial.train.errors import InputError, TrainError
from seatrial.train.saving.atomic import write_text

#: Name in --compare → the recipe's options and environment variables of that variant.
VARIANTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "cpu": ([], {"CUDA_VISIBLE_DEVICES": ""}),
    "gpu": ([], {}),
    **{name: (["--engine", name], {}) for name in ("eager", "compile", "graph", "compile+graph")},
    **{name: (["--precision", name], {}) for name in ("fp32", "tf32", "bf16", "fp16")},
    "dp": (["--data-parallel"], {}),
    "ddp": ([], {}),
}
BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
#: A larger batch must be this much faster to be picked; within the margin the smaller one trains better per example.
WORTH = 1.05
#: Recipes on a GPU report this metric with every epoch.
MEMORY = "gpu_memory_reserved_bytes"


@dataclass
class Variant:
    """One way to run the recipe, on ``ranks`` processes with throughput per one of ``gpus``; a dictionary per run."""

    name: str
    options: list[str]
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    gpus: int = 1
    runs: list[dict[str, float]] = field(default_factory=list)
    failure: str | None = None

    def median(self, metric: str) -> float | None:
        """Return the median over the runs, or None if no run reported the metric."""
        values = [run[metric] for run in self.runs if metric in run]
        return statistics.median(values) if values else None

    def rates(self) -> list[float]:
        """Return the examples a second of each run."""
        return [run.get("images_per_s") or 1.0 for run in self.runs]


def main(argv: Sequence[str]) -> int:
    """Run the comparison; return the exit code."""
    arguments, rest = parse(argv)
    recipe, variants = arguments.recipe, plan(arguments)
    for repeat in range(arguments.repeats):  # interleaved, so that a warm or shared machine affects all alike
        for variant in variants:
            if variant.failure is None:
                measured = run(recipe, [*rest, *variant.options], variant.env, variant.ranks)
                if isinstance(measured, str):
                    variant.failure = measured
                else:
                    variant.runs.append(measured)
            print(
                f"{recipe} {variant.name}, run {repeat + 1}: {variant.failure or summary(variant.runs[-1])}", flush=True
            )
    if not any(variant.runs for variant in variants):
        raise TrainError(f"no variant of {recipe} ran: {variants[0].failure}")
    print(table(variants), flush=True)
    base = next(variant for variant in variants if variant.runs)
    if arguments.mode == "batch":
        best = picked(variants)
        last = best is [each for each in variants if each.runs][-1]
        reason = "the largest that ran" if last else f"nothing larger is shown to be {WORTH - 1:.0%} faster"
        print(f"picked batch {best.name}: {reason}", flush=True)
    if arguments.json:
        times = {each.name: faster(each, base, variants) for each in variants if each.runs}
        found = {"recipe": recipe, "ways": [asdict(each) for each in variants], "times": times}
        write_text(arguments.json, json.dumps(found, indent=1))
    return 0


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return our options, and the recipe's own from after ``--``."""
    own, rest = (list(argv[: argv.index("--")]), list(argv[argv.index("--") + 1 :])) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(prog="seatrial run bench --", description="Benchmark variants of a recipe.")
    modes = parser.add_subparsers(dest="mode", required=True)
    for mode in ("train", "scaling", "batch"):
        sub = modes.add_parser(mode)
        sub.add_argument("recipe", choices=WEIGHTS)
        sub.add_argument("--repeats", type=options.positive, default=3)
        sub.add_argument("--json", type=Path, default=options.in_run("bench.json"), metavar="FILE")
        if mode == "train":
            sub.add_argument("--compare", required=True, help=f"some of {','.join(VARIANTS)}")
            sub.add_argument("--gpus", type=options.positive, default=1, help="ranks of ddp")
        elif mode == "scaling":
            sub.add_argument("--gpus", type=_counts, default=[1, 2, 4], metavar="N,N…")
        else:
            sub.add_argument("--batches", type=options.positive, nargs="+", default=list(BATCHES))
    return parser.parse_args(own), rest


def _counts(text: str) -> list[int]:
    """Read ``1,2,4`` for argparse."""
    return [options.positive(count) for count in text.split(",")]


def plan(arguments: argparse.Namespace) -> list[Variant]:
    """Return the requested variants. Raises InputError for an unknown one."""
    if arguments.mode == "batch":
        return [Variant(str(batch), ["--batch", str(batch)]) for batch in arguments.batches]
    if arguments.mode == "scaling":
        return [Variant(f"{count} rank{'s' * (count > 1)}", [], {}, count, count) for count in arguments.gpus]
    names, gpus = arguments.compare.split(","), arguments.gpus
    if unknown := [name for name in names if name not in VARIANTS]:
        fix = f"--compare takes some of {','.join(VARIANTS)}"
        raise InputError(f"--compare knows no {', '.join(unknown)}", fix=fix)
    return [
        Variant(name, *VARIANTS[name], ranks=gpus if name == "ddp" else 1, gpus=gpus if name in ("dp", "ddp") else 1)
        for name in names
    ]


def run(recipe: str, options: list[str], env: dict[str, str], ranks: int = 1) -> dict[str, float] | str:
    """Run a recipe in a new process; return its last numbers and ``process_s``, or a sentence why it failed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    with tempfile.TemporaryDirectory(prefix="seatrial-bench-") as folder:
        argv = [sys.executable, *launcher, "-m", module_of(recipe), "--models", folder, *options]
        lines = f"{folder}/events.jsonl"
        began = time.perf_counter()
        done = subprocess.run(argv, env={**os.environ, **env, events.EVENTS_VARIABLE: lines}, stderr=subprocess.PIPE)
        seconds, printed = time.perf_counter() - began, done.stderr.decode(errors="replace")
        sys.stderr.write(printed)
        if done.returncode != 0:
            reasons = [line.removeprefix("error: ") for line in printed.splitlines() if line.startswith("error: ")]
            return reasons[0] if reasons else f"failed with exit code {done.returncode}"
        reported = events.read(lines)[0]
        last = [line for line in reported if line.get("phase") == "end"][-1]
        numbers = {name: value for name, value in last.items() if isinstance(value, float) and name != "t"}
        if memory := [line[MEMORY] for line in reported if MEMORY in line]:
            numbers[MEMORY] = float(max(memory))
        return {**numbers, "process_s": seconds}


def faster(variant: Variant, base: Variant, variants: list[Variant]) -> Interval:
    """Return a variant's speed relative to the first, from runs in turn; repeats of all variants show the noise."""
    pairs = zip(base.rates(), variant.rates(), strict=False)  # one that failed has fewer
    repeats = deviation([each.rates() for each in variants])
    return ratio([(Sampled(first), Sampled(second)) for first, second in pairs], repeats)


def table(variants: list[Variant]) -> str:
    """Format medians and each throughput relative to the first with its interval; with several GPUs also per GPU."""
    base = next(variant for variant in variants if variant.runs)
    several = len({variant.gpus for variant in variants}) > 1
    head = f"{'':14} {'loop s':>9} {'process s':>10} {'examples/s':>12} {'accuracy':>9} {'GPU memory':>11} {'times':>7}"
    lines = [head + (f" {'each':>7}" if several else "") + "  between"]
    for variant in variants:
        if not variant.runs:
            lines.append(f"{variant.name:14} {variant.failure}")
            continue
        times = faster(variant, base, variants)
        rate, accuracy, memory = statistics.median(variant.rates()), variant.median("accuracy"), variant.median(MEMORY)
        shown = f"{accuracy:9.2%}" if accuracy is not None else f"{'':9}"
        held = f"{memory / 1e6:8,.0f} MB" if memory is not None else f"{'':11}"
        seconds = f"{variant.median('loop_s'):9.3f} {variant.median('process_s'):10.2f}"
        line = f"{variant.name:14} {seconds} {rate:12,.0f} {shown} {held} {times.middle:7.2f}"
        line += f" {times.middle * base.gpus / variant.gpus:7.1%}" if several else ""
        lines.append(line if variant is base else f"{line}  {times.low:.2f} to {times.high:.2f}")
    return "\n".join(lines)


def summary(numbers: dict[str, float]) -> str:
    """Format one run on one line."""
    times = f"loop {numbers['loop_s']:.3f} s, process {numbers['process_s']:.1f} s"
    return f"{numbers['images_per_s']:,.0f} examples/s, {times}"


def picked(variants: list[Variant]) -> Variant:
    """Return the smallest batch that no larger one is shown to beat by WORTH or more. Failed ones do not count."""
    ran = [variant for variant in variants if variant.runs]

    def beaten(at: int) -> bool:
        found = [faster(larger, ran[at], ran) for larger in ran[at + 1 :]]
        return any(each.low > 1 and each.middle >= WORTH for each in found)

    return next(variant for at, variant in enumerate(ran) if not beaten(at))


if __name__ == "__main__":
    options.run(main)
