"""Several trials of an image recipe trained as one model: the recipe's loop with stacked parameters.

Each trial has the first weights, the order of the data, the learning rate and the decay of its lone run.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from seatrial.train import script
from seatrial.train.data.images import Normalisation, TestImages
from seatrial.train.distributed import Ranks, ranks
from seatrial.train.errors import EXIT_TERMINATED, InputError, TrainError
from seatrial.train.loop import Outcome, fit
from seatrial.train.memory import cap, summary
from seatrial.train.precision import Precision, choose_precision
from seatrial.train.saving.examples import image_examples, save_examples
from seatrial.train.saving.model_files import save_model
from seatrial.train.step import Step
from seatrial.train.trackers import Trackers, open_trackers
from seatrial.train.trials.choose import NAMES as WAYS
from seatrial.train.trials.choose import choose_way
from seatrial.train.trials.data import TrialImages
from seatrial.train.trials.evaluate import ROWS_TOGETHER, evaluate
from seatrial.train.trials.losses import TrialLosses
from seatrial.train.trials.network import TrialNetworks
from seatrial.train.trials.optimizer import TrialAdam
from seatrial.train.trials.records import FILE, METRICS, Records, cost
from seatrial.train.trials.settings import Trial, read_trials
from seatrial.train.trials.task import Task


def add_options(parser: argparse.ArgumentParser) -> None:
    """--fused-settings, and what goes with it."""
    parser.add_argument(
        "--fused-settings", metavar="JSON|FILE", help="train several trials as one model: a list of settings"
    )
    parser.add_argument(
        "--fused-models", type=script.positive, default=1, metavar="N", help="keep the models of the N best trials"
    )
    parser.add_argument("--fused-metric", choices=METRICS, default=METRICS[0], help="what the best trial is best in")
    parser.add_argument(
        "--fused-unless", type=float, metavar="VALUE", help="keep the saved model unless this value is beaten"
    )
    parser.add_argument("--fused-way", choices=WAYS, default="auto", help="how the layers of fused trials run")


def train_trials(task: Task, arguments: argparse.Namespace) -> int:
    """Train the trials of ``--fused-settings``, save the best one as the recipe's model; the exit code.

    Raises:
        InputError: the settings cannot be fused. TrainError: every trial has diverged.
    """
    defaults = Trial(arguments.learning_rate, arguments.weight_decay, arguments.seed)
    trials = read_trials(arguments.fused_settings, defaults)
    _refuse(arguments)
    records = Records(task.name, trials, arguments.fused_metric)
    normalise = Normalisation.of(task.train_set.images_NCHW)
    with ranks() as group, closing(open_trackers(arguments.track, arguments.models)) as trackers:
        if group.world > 1:
            raise InputError("trials that train as one model use one GPU", fix="--gpus 1, or run without --fused")
        precision = choose_precision(arguments.precision, group.device, preferred="bf16")
        precision.apply()
        if arguments.memory_fraction:
            cap(arguments.memory_fraction, group.device)
        networks = TrialNetworks(task.build, trials, group.device)
        outcome = _fit(task, arguments, trials, networks, normalise, group, precision, trackers, records)
        if outcome.terminated:
            return EXIT_TERMINATED
        print(records.table(), flush=True)
        best = records.best
        if best is None:
            raise TrainError("every trial has diverged", fix="lower learning rates")
        print(f"best: trial {best.trial}, accuracy {best.accuracies[-1]:.2%}", flush=True)
        images = outcome.examples // len(trials)
        print(f"trained {len(trials)} trials of {images:,} images each in {outcome.loop_s:.3f} s", flush=True)
        print(summary(group.device), flush=True)
        _save(task, networks, normalise, records, arguments)
        records.write(_file(arguments), outcome.loop_s)
    return 0


def _refuse(arguments: argparse.Namespace) -> None:
    """Raise InputError for options that mean a single network."""
    single = {
        "--data-parallel": arguments.data_parallel,
        "--patience": arguments.patience is not None,
        "--precision fp16": arguments.precision == "fp16",
        f"--engine {arguments.engine}": "compile" in arguments.engine,
    }
    for option, given in single.items():
        if given:
            raise InputError(f"{option} is not for trials that train as one model", fix="run without --fused")


def _fit(
    task: Task,
    arguments: argparse.Namespace,
    trials: list[Trial],
    networks: TrialNetworks,
    normalise: Normalisation,
    group: Ranks,
    precision: Precision,
    trackers: Trackers,
    records: Records,
) -> Outcome:
    device = group.device
    source = TrialImages(task.train_set, normalise, arguments.batch, networks, trials, device, task.augment)
    way, why = choose_way(networks, task, arguments.batch, precision, arguments.fused_way)
    records.way = way.name
    steps = len(source.spans)
    losses = TrialLosses(way, len(trials), steps, device)
    step = Step(
        networks,
        losses,
        TrialAdam(networks, trials, device),
        source,
        ranks=group,
        precision=precision,
        schedule=task.schedule,
        epochs=arguments.epochs,
        accumulation=arguments.accumulation,
    )
    parameters = sum(parameter.numel() for parameter in networks.parameters())
    print(
        f"{task.name}: {len(trials)} trials fused, batch {arguments.batch} each, {parameters:,} parameters\n{why}",
        flush=True,
    )
    batch = task.test_batch if way.name == "looped" else max(1, min(task.test_batch, ROWS_TOGETHER // len(trials)))
    tests = TestImages(task.test_set, normalise, group, batch, channels_last=True)

    def test() -> dict[str, float]:
        test_losses, accuracies = evaluate(networks, tests, way, precision)
        records.epoch(losses.kept_ST, test_losses, accuracies, len(records.trials[0].losses) * steps)
        records.write(_file(arguments), 0.0)
        best = records.ranked()[0]
        mean = sum(accuracies) / len(accuracies)
        return {"test_loss": best.test_losses[-1], "accuracy": best.accuracies[-1], "accuracy_mean": mean}

    outcome = fit(step, test, trackers, replace(script.settings(arguments), seed=trials[0].seed))
    if not outcome.epochs and not outcome.terminated:
        test()  # resumed after the last epoch
    if outcome.epochs:
        trackers.log({"step": outcome.epochs * steps, "epoch": outcome.epochs, "phase": "end", "trials": len(trials)})
    return outcome


def _save(
    task: Task, networks: TrialNetworks, normalise: Normalisation, records: Records, arguments: argparse.Namespace
) -> None:
    """The best trial's model as its lone run saves it, and the N best in folders of their numbers."""
    lone = task.build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    chosen = [record for record in records.ranked() if record.diverged is None][: arguments.fused_models]
    beaten = arguments.fused_unless
    if beaten is not None and cost(chosen[0], records.metric) >= (-beaten if records.metric == "accuracy" else beaten):
        print(f"the saved model stays: no trial is better than {beaten:g}", flush=True)
        return
    for place, record in enumerate(chosen):
        lone.load_state_dict({name: tensor.cpu() for name, tensor in networks.of(record.trial).items()})
        folders = [arguments.models / "trials" / f"{record.trial:03d}"] if arguments.fused_models > 1 else []
        for folder in ([arguments.models] if place == 0 else []) + folders:
            saved = save_model(lone, folder, task.saved)
            examples = image_examples(task.name, lone, task.test_set.images_NCHW, normalise, task.labels)
            saved.append(save_examples(examples, saved[-1]))
            record.model = str(saved[-2].relative_to(arguments.models))
            if place == 0:
                print("\n".join(f"saved {path}" for path in saved), flush=True)


def _file(arguments: argparse.Namespace) -> Path:
    """trials.json of the run's folder, or beside the models."""
    return script.result_file(FILE) or Path(arguments.models) / FILE
