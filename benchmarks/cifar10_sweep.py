"""Trains cifar10 from many seeds under several settings, each captured once: accuracy and time of each, side by side.

    python benchmarks/cifar10_sweep.py OUT.json --data DIR --seconds 180 [--part 0/2] [--profile] [--settings FILE.json]

The settings take turns, so that the table is whole whenever the seconds are over. Accuracy is read after the last step
only, and no step of a training depends on it. FILE.json: {"name": {"epochs": 9, "batch": 2000, …}, …}.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from seatrial.recipes import cifar10
from seatrial.train.data.cifar10 import image_sets, read_records
from seatrial.train.data.crops import AlternatingCrops
from seatrial.train.data.images import ImageSet, TestImages
from seatrial.train.distributed import Ranks
from seatrial.train.engine import choose_engine
from seatrial.train.evaluation import evaluate
from seatrial.train.precision import choose_precision
from seatrial.train.saving.examples import Normalisation
from seatrial.train.saving.rng import seed_all
from seatrial.train.step import Step

#: What a setting that says nothing else has.
USUAL = {
    "epochs": 9,
    "batch": 1536,
    "rate": 0.24,
    "precision": "fp16",
    "widths": (64, 256, 256),
    "search": True,
}


class Training:
    """One setting: a step that was captured once and is trained anew from each seed."""

    def __init__(self, data: tuple[ImageSet, ImageSet], setting: dict, engine: str) -> None:
        own = {**USUAL, **setting}
        method = replace(cifar10.METHOD, **{name: value for name, value in own.items() if name not in USUAL})
        self.ranks = Ranks(0, 1, torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))
        self.precision = replace(choose_precision(own["precision"], self.ranks.device), scaled=False)
        self.precision.apply()
        torch.backends.cudnn.benchmark = own["search"]
        self.epochs, self.widths = own["epochs"], tuple(own["widths"])
        train_set, test_set = data
        self.normalise = Normalisation.of(train_set.images_NCHW)
        seed_all(0)
        self.model = cifar10.Network(widths=self.widths).to(self.ranks.device, memory_format=torch.channels_last)
        self.first = self.normalise(train_set.images_NCHW[: cifar10.WHITENING_EXAMPLES].float())
        self.source = AlternatingCrops(
            train_set,
            self.normalise,
            own["batch"],
            self.ranks,
            0,
            dtype=self.precision.dtype,
            sides=method.sides(self.epochs),
        )
        self.fresh()
        self.step = Step(
            self.model,
            partial(cifar10.loss, own["batch"], method.smoothing),
            cifar10.optimizer_of(self.model, own["batch"], own["rate"], method),
            self.source,
            ranks=self.ranks,
            precision=self.precision,
            schedule=cifar10.schedules(self.epochs, method.whitening_epochs),
            epochs=self.epochs,
            frozen_after=method.frozen_after(self.model, self.epochs),
        )
        self.begin(1)
        self.engine = choose_engine(engine, self.step, lambda text: None)
        self.tests = TestImages(test_set, self.normalise, self.ranks, cifar10.TEST_BATCH)

    def fresh(self) -> None:
        """Parameters as before the first step."""
        self.model.load_state_dict(cifar10.Network(widths=self.widths).state_dict())
        self.model.whiten(self.first)

    def begin(self, epoch: int) -> None:
        """Point at the first step of an epoch."""
        self.source.start(epoch, 0)
        self.step.start_epoch((epoch - 1) * len(self.source.spans), 0)

    def run(self, seed: int) -> dict:
        """Train from a seed: accuracy, seconds of the steps, and of the test after them."""
        seed_all(seed)
        self.fresh()
        for slots in self.step.optimizer.state.values():
            for tensor in slots.values():
                tensor.zero_()
        self.source.reseed(seed)
        wait()
        began = time.perf_counter()
        for epoch in range(1, self.epochs + 1):
            self.begin(epoch)
            self.engine.run(self.source.spans[0].shape, len(self.source.spans))
        wait()
        trained = time.perf_counter()
        with torch.no_grad():
            found = evaluate(self.model, self.tests, self.ranks, self.precision, cifar10.views)
        wait()
        return {"accuracy": found["accuracy"], "train_s": trained - began, "test_s": time.perf_counter() - trained}


def wait() -> None:
    """For the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def kernels_of(training: Training, steps: int = 8) -> list[dict]:
    """The kernels of one step in the middle of the training, longest first."""
    from torch.profiler import ProfilerActivity, profile

    epoch = training.epochs // 2 + 1
    training.begin(epoch)
    shape = training.source.spans[0].shape
    training.engine.run(shape, steps)
    wait()
    training.begin(epoch)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        training.engine.run(shape, steps)
        wait()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    return [
        {"name": row.key[:160], "per_step": row.count / steps, "us_per_step": row.self_device_time_total / steps}
        for row in rows
        if row.self_device_time_total
    ]


def blobs(count: int) -> ImageSet:
    """Images with a square in the colour of their class: for a try without data."""
    generator = torch.Generator().manual_seed(count)
    labels_N = torch.randint(0, 3, (count,), generator=generator)
    images_NCHW = torch.randint(0, 120, (count, 3, 32, 32), generator=generator)
    images_NCHW[torch.arange(count), labels_N, 8:24, 8:24] += 100
    return ImageSet(images_NCHW.to(torch.uint8), labels_N, 10)


def summary(runs: list[dict]) -> dict:
    """Of one setting's runs."""
    accuracies = [run["accuracy"] for run in runs]
    return {
        "n": len(runs),
        "mean": round(statistics.fmean(accuracies) * 100, 3),
        "deviation": round(statistics.stdev(accuracies) * 100, 3) if len(runs) > 1 else None,
        "train_s": round(statistics.median(run["train_s"] for run in runs), 4),
        "test_s": round(statistics.median(run["test_s"] for run in runs), 4),
    }


def main() -> None:
    """See the file's head."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--part", default="0/1", help="K/N: every N-th setting from the K-th")
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    torch.backends.cudnn.benchmark = True
    data = image_sets(read_records(arguments.data)) if arguments.data else (blobs(400), blobs(50))
    settings = json.loads(arguments.settings.read_text()) if arguments.settings else {"usual": {}}
    number, parts = map(int, arguments.part.split("/"))
    chosen = dict(list(settings.items())[number::parts])
    trainings, runs, result = {}, {name: [] for name in chosen}, {"settings": chosen, "table": {}, "kernels": {}}
    for name, setting in chosen.items():
        trainings[name] = Training(data, setting, arguments.engine)
        trainings[name].run(0)  # the first replay and the first test choose algorithms
        print(f"{time.perf_counter() - began:.1f} s: {name} prepared", flush=True)
        if arguments.profile:
            result["kernels"][name] = kernels_of(trainings[name])
        arguments.out.write_text(json.dumps(result, indent=1))
    seed = arguments.seed
    while time.perf_counter() - began < arguments.seconds:
        for name, training in trainings.items():
            if time.perf_counter() - began < arguments.seconds:
                runs[name].append(training.run(seed))
        seed += 1
        result["table"] = {name: summary(of) for name, of in runs.items() if of}
        result["runs"] = runs
        arguments.out.write_text(json.dumps(result, indent=1))
    for name, row in sorted(result["table"].items(), key=lambda item: -item[1]["mean"]):
        print(f"{name:28s} {row}", flush=True)


if __name__ == "__main__":
    main()
