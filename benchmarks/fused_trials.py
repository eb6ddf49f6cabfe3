"""Trials trained as one model against lone runs: times, equality, and where a step's time goes.

    python benchmarks/fused_trials.py OUT --data DIR_OF_MNIST [--budget 115] [--only case,case] [--trials 1,8,64]

Each case is a process with a limit of its own; one that fails does not end the others. OUT/fused.json has the numbers,
OUT/CASE.txt what each case printed, OUT/summary.txt the table. On a CPU: --small (300 images, one epoch).
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

#: Settings whose lone runs are compared one by one.
COMPARED = [{"lr": rate, "seed": seed} for rate in (0.0005, 0.001, 0.002, 0.004) for seed in (0, 1)]


def settings(trials):
    """So many settings: learning rates over two magnitudes, eight seeds, with and without decay."""
    rates = [1e-4 * 10 ** (2 * (number % 8) / 7) for number in range(trials)]
    return [{"lr": rate, "seed": n // 8, "wd": 0.01 * (n % 2)} for n, rate in enumerate(rates)]


def small_mnist(folder):
    """300 images of three classes, for a try on a CPU."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    for part, count in (("train", 300), ("t10k", 90)):
        labels = numbers.integers(0, 3, count).astype(np.uint8)
        images = numbers.integers(0, 100, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 4 + label * 8 : 8 + label * 8] += 120
        header = struct.pack(">HBBIII", 0, 8, 3, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, count) + labels.tobytes())
    return folder


def cases(options):
    """Name → (limit in s, command), the most telling first."""
    me, out = [sys.executable, __file__, str(options.out)], options.out
    epochs = ["--epochs", str(options.epochs)]
    one = ["--epochs", "1"]

    def recipe(name, *more):
        module = name.replace("-", "_")
        data = [] if name == "digits" else ["--data", str(options.data)]
        return [sys.executable, "-m", f"seatrial.recipes.{module}", *data, *more]

    def fused(name, trials, *more):
        models = out / "models" / f"{name}-{trials}-{'-'.join(more).strip('-')}"
        path = out / f"settings-{trials}.json"
        path.write_text(json.dumps(settings(trials)))
        return recipe(name, "--models", str(models), "--fused-settings", str(path), *more)

    most = max(options.trials)
    made = {
        "check": (30, [*me, "--case", "check"]),
        "mnist-lone": (30, [*me, "--case", "lone", "--data", str(options.data), *epochs]),
        "mnist-compared": (30, [*me, "--case", "compared", "--data", str(options.data), *epochs]),
    }
    for trials in sorted(options.trials, reverse=True):
        made[f"mnist-{trials}"] = (40, fused("mnist", trials, *epochs))
    made["mnist-profile"] = (40, [*me, "--case", "profile", "--data", str(options.data), "--trials", str(most)])
    made["mnist-deep-lone"] = (30, recipe("mnist-deep", "--models", str(out / "models" / "deep"), *one))
    for trials in sorted(options.trials, reverse=True):
        made[f"mnist-deep-{trials}"] = (60, fused("mnist-deep", trials, *one))
    made["digits-lone"] = (30, recipe("digits", "--models", str(out / "models" / "digits"), *epochs))
    made[f"digits-{most}"] = (30, fused("digits", most, *epochs))
    made[f"mnist-{most}-grouped"] = (40, fused("mnist", most, *one, "--fused-way", "grouped"))
    made[f"mnist-{most}-looped"] = (40, fused("mnist", most, *one, "--fused-way", "looped"))
    return made


def run_cases(options):
    """Run them in turn, within the budget; returns name → facts."""
    facts, began = {}, time.monotonic()
    for name, (limit, command) in cases(options).items():
        if options.only and name not in options.only:
            continue
        left = options.budget - (time.monotonic() - began)
        if left < 5:
            facts[name] = {"skipped": "the budget was used up"}
            continue
        case_began = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=min(limit, left))
            text, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            text = "".join(
                each.decode() if isinstance(each, bytes) else each or "" for each in (error.stdout, error.stderr)
            )
            code = "timeout"
        (options.out / f"{name}.txt").write_text(text)
        facts[name] = {"code": code, "process_s": round(time.monotonic() - case_began, 2), **read(text)}
        (options.out / "fused.json").write_text(json.dumps(facts, indent=1))
        print(name, {key: value for key, value in facts[name].items() if key != "result"}, flush=True)
    return facts


def read(text):
    """What a recipe printed, and the line of JSON that a case of this script printed."""
    found = {}
    for name, pattern in (
        ("loop_s", r"images(?: each)? in ([\d.]+) s"),
        ("way", r"^trials: (.*)$"),
        ("best", r"^best: (.*)$"),
        ("memory", r"^GPU memory: (.*)$"),
        ("prepared_s", r"prepared in ([\d.]+) s"),
    ):
        if match := re.findall(pattern, text, re.M):
            found[name] = float(match[-1]) if name.endswith("_s") else match[-1]
    if match := re.findall(r"^epoch \d+: .*$", text, re.M):
        found["epochs"] = match
    if match := re.findall(r"^RESULT (.*)$", text, re.M):
        found["result"] = json.loads(match[-1])
    return found


def check(options):
    """Losses and gradients of our kernels and of grouped convolutions, against double precision, trial by trial."""
    from functools import partial

    import torch
    from torch.nn import functional as F

    from seatrial.recipes import mnist
    from seatrial.train.precision import Precision
    from seatrial.train.trials import stacked
    from seatrial.train.trials.losses import GROUPED
    from seatrial.train.trials.network import TrialNetworks
    from seatrial.train.trials.settings import Trial

    device = torch.device("cuda", 0)
    precision = Precision("bf16", device)
    trials = [Trial(0.001, 0.0, seed) for seed in range(4)]
    networks = TrialNetworks(partial(mnist.network, 28, 28, 10), trials, device)
    torch.manual_seed(0)
    found = {"unfit": stacked.unfit(networks, (64, 1, 28, 28), precision)}
    for rows in (64, 31):
        images = torch.randn(len(trials), rows, 1, 28, 28, device=device)
        labels = torch.randint(0, 10, (len(trials), rows), device=device)
        expected = []
        for trial in range(len(trials)):
            lone = mnist.network(28, 28, 10).double().to(device)
            lone.load_state_dict(networks.of(trial))
            loss = F.cross_entropy(lone(images[trial].double()), labels[trial])
            expected.append((loss.item(), torch.autograd.grad(loss, list(lone.parameters()))))
        for way in (stacked.KERNELS, GROUPED):
            with precision.autocast():
                losses = way.losses(networks, images, labels)
            gradients = torch.autograd.grad(losses.sum(), list(networks.parameters()))
            off = [
                max(
                    ((mine[t] - expected[t][1][n]).norm() / expected[t][1][n].norm()).item() for t in range(len(trials))
                )
                for n, mine in enumerate(gradients)
            ]
            wrong = max(abs(losses[t].item() - expected[t][0]) for t in range(len(trials)))
            names = [name for name, _ in networks.layers.named_parameters()]
            told = {name: round(each, 4) for name, each in zip(names, off, strict=True)}
            found[f"{way.name}, {rows} rows"] = {"loss off by": wrong, "gradients off by, share of their norm": told}
    networks.eval()
    images = torch.randn(100, 1, 28, 28, device=device)
    with torch.no_grad(), precision.autocast():
        own, other = stacked.logits(networks, images).float(), GROUPED.logits(networks, images).float()
    found["logits off by, share of their norm"] = ((own - other).norm() / other.norm()).item()
    return found


def lone(options):
    """The settings to compare, each as its lone run, in one process."""
    import contextlib
    import io
    import os

    from seatrial.recipes import mnist

    found = []
    for number, each in enumerate(COMPARED[: options.compared]):
        events = options.out / f"lone-{number}.jsonl"
        events.unlink(missing_ok=True)
        os.environ["SEATRIAL_EVENTS"] = str(events)
        text = io.StringIO()
        argv = ["--data", str(options.data), "--models", str(options.out / "models" / "lone")]
        argv += ["--epochs", str(options.epochs), "--learning-rate", str(each["lr"]), "--seed", str(each["seed"])]
        with contextlib.redirect_stdout(text):
            mnist.main(argv)
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        per_epoch = [line["loss"] for line in lines if line["phase"] == "train" and "images" in line]
        tests = [line for line in lines if line["phase"] == "test"]
        facts = {"losses": per_epoch, "test_losses": [line["test_loss"] for line in tests]}
        facts["accuracies"] = [line["accuracy"] for line in tests]
        found.append({**each, **facts, "loop_s": lines[-1]["loop_s"]})
        events.unlink()
    print(f"trained images in {sorted(each['loop_s'] for each in found)[len(found) // 2]:.3f} s")
    return found


def compared(options):
    """The same settings fused."""
    from seatrial.recipes import mnist

    models = options.out / "models" / "compared"
    told = json.dumps(COMPARED[: options.compared])
    argv = ["--data", str(options.data), "--models", str(models), "--epochs", str(options.epochs)]
    mnist.main([*argv, "--fused-settings", told])
    return json.loads((models / "trials.json").read_text())["trials"]


def profile(options):
    """Where the time of a step of the most trials goes: microseconds a step by kernel."""
    import torch
    from torch.profiler import ProfilerActivity

    from seatrial.recipes import mnist

    steps = 0
    argv = ["--data", str(options.data), "--models", str(options.out / "models" / "profile"), "--epochs", "1"]
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiled:
        mnist.main([*argv, "--fused-settings", json.dumps(settings(max(options.trials)))])
    rows = []
    for event in profiled.key_averages():
        total = getattr(event, "device_time_total", 0) or getattr(event, "cuda_time_total", 0)
        rows.append((total, event.count, event.key[:110]))
        steps = max(steps, event.count if "trial_adam" in event.key else 0)
    rows.sort(reverse=True)
    for total, count, key in rows[:45]:
        each, many = total / max(1, count), count / max(1, steps)
        print(f"{total / max(1, steps):9.2f} us/step  {many:7.2f} a step  {each:9.2f} us each  {key}")
    return {
        "steps": steps,
        "kernels": [[round(total / max(1, steps), 3), count, key] for total, count, key in rows[:45]],
    }


def summary(facts):
    """Times beside the lone run's, and how far fused trials are from theirs."""
    lines = []
    for name in ("mnist", "mnist-deep", "digits"):
        one = facts.get(f"{name}-lone", {}).get("loop_s")
        for case, told in facts.items():
            if case.startswith(f"{name}-") and "loop_s" in told and "deep" in case.replace(name, ""):
                continue
            if not re.fullmatch(rf"{name}-(lone|\d+(-\w+)?)", case) or "loop_s" not in told:
                continue
            times = f"{told['loop_s'] / one:6.2f} x lone" if one else ""
            lines.append(f"{case:24} loop {told['loop_s']:8.3f} s  {times}  process {told['process_s']:.1f} s")
    alone, together = (facts.get(f"mnist-{name}", {}).get("result") for name in ("lone", "compared"))
    for own, other in zip(alone or [], together or [], strict=False):
        losses = " ".join(f"{a:.4f}/{b:.4f}" for a, b in zip(own["losses"], other["losses"], strict=True))
        accuracy = f"{own['accuracies'][-1]:.4f}/{other['accuracies'][-1]:.4f}"
        lines.append(f"lr {own['lr']:g} seed {own['seed']}: accuracy lone/fused {accuracy}, losses {losses}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--budget", type=float, default=115.0, help="seconds")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--trials", type=lambda text: [int(each) for each in text.split(",")], default=[1, 8, 64])
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--compared", type=int, default=len(COMPARED))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--case")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.case:
        found = {"check": check, "lone": lone, "compared": compared, "profile": profile}[options.case](options)
        print("RESULT " + json.dumps(found), flush=True)
        return
    if options.small:
        options.data = small_mnist(options.out / "small")
        options.epochs = 1
    facts = run_cases(options)
    text = summary(facts)
    (options.out / "summary.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
