"""Run the training loop: epochs of steps, a test after each, checkpoints, early stopping and SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from seatrial.train.distributed import Ranks, ranks
from seatrial.train.engine import choose_engine
from seatrial.train.errors import CheckpointError, InputError
from seatrial.train.memory import cap
from seatrial.train.options import RUN_DIR_VARIABLE, in_run
from seatrial.train.precision import Precision, choose_precision
from seatrial.train.progress import EpochProgress, TrainingOutcome, print_first, read_losses, report_end
from seatrial.train.saving import rng
from seatrial.train.saving.checkpoint import CheckpointWriter, checkpoints, load_model, load_newest, written_by
from seatrial.train.step import Step
from seatrial.train.trackers import Trackers, open_trackers
from seatrial.train.watchdog import Watchdog


@dataclass
class EarlyStopping:
    """Remembers the best validation loss. ``patience``: tests without improvement that end it; None: never."""

    patience: int | None = None
    best: float = float("inf")
    waited: int = 0

    def better(self, loss: float) -> bool:
        """Record an epoch's validation loss; return True if it is the best so far."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return True
        self.waited += 1
        return False

    @property
    def stop(self) -> bool:
        """Return True if patience is at its end."""
        return self.patience is not None and self.waited >= self.patience


class StopRequest:
    """Remembers a SIGTERM, so that the loop ends at a step's end and saves. Use as a context manager.

    Within a run also the first SIGINT, which ``seatrial run`` sends on Ctrl-C; elsewhere that is a notebook's.
    Only the main thread of a process gets signals: in another one nothing is remembered.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGTERM, *([signal.SIGINT] if RUN_DIR_VARIABLE in os.environ else [])]
            self._previous = {number: signal.signal(number, self._remember) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested:
            raise KeyboardInterrupt
        self.requested = True


#: Steps queued between two checks for SIGTERM. The ranks agree on stopping there, 0.2 ms over Gloo on one host. On
#: a CPU a step may take a second, and the sender of the signal waits 30.
STEPS_PER_CHECK = {"cuda": 64, "cpu": 1}


@dataclass(frozen=True)
class Settings:
    """Settings of a training: its length, and what to keep.

    Attributes:
        seed: of everything random; data order is a function of it and the epoch.
        checkpoints: folder for them; None writes none. keep: how many. every_steps: also within epochs.
        resume: folder or file to go on from.
        log_steps: how many of an epoch's step losses the trackers get.
        test_every: test after so many epochs; always after the last.
        save_every: a checkpoint after so many epochs; always after the last, and where SIGTERM ends the training.
        hang_s: when no rank makes a step, tests or saves for so long, the slowest is named and ends the run; so does a
            rank that does not answer. None: no watch.
    """

    epochs: int
    seed: int = 0
    engine: str = "auto"
    checkpoints: Path | None = None
    keep: int = 3
    every_steps: int | None = None
    resume: Path | None = None
    patience: int | None = None
    log_steps: int = 100
    test_every: int = 1
    save_every: int = 1
    hang_s: float | None = None

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Settings:
        """Make the settings from a recipe's command line."""
        names = {field.name for field in fields(cls)}
        given = {name: value for name, value in vars(arguments).items() if name in names}
        if arguments.data_parallel:
            given["engine"] = "eager"  # its replicas cannot be captured
        return cls(**given, hang_s=arguments.hang)


@contextmanager
def session(arguments: argparse.Namespace, preferred: str = "bf16") -> Iterator[tuple[Ranks, Precision, Trackers]]:
    """Open what a recipe's command line names: ranks, number format and trackers, within its memory, and seeded."""
    with ranks() as group, closing(open_trackers(arguments.track, arguments.models, first=group.first)) as trackers:
        precision = choose_precision(arguments.precision, group.device, preferred=preferred)
        precision.apply()
        if arguments.memory_fraction:
            cap(arguments.memory_fraction, group.device)
        rng.seed_all(arguments.seed)
        yield group, precision, trackers


def step_options(arguments: argparse.Namespace, group: Ranks, precision: Precision) -> dict[str, Any]:
    """Return the options of a Step that every recipe takes from its command line."""
    named = {name: getattr(arguments, name) for name in ("epochs", "accumulation", "data_parallel")}
    return {"ranks": group, "precision": precision, **named}


class Start(NamedTuple):
    """Where a training begins.

    Attributes:
        epoch: from 1 on. step: steps of it that are done.
        ahead: added to the numbers of checkpoints, which fewer steps in an epoch would make older than those there.
        training: ID of the training that is resumed; None: a new one.
    """

    epoch: int = 1
    step: int = 0
    ahead: int = 0
    training: str | None = None


def fit(step: Step, test: Callable[[], dict[str, float]], trackers: Trackers, settings: Settings) -> TrainingOutcome:
    """Train ``step`` for the epochs of ``settings``, calling ``test`` after each.

    Raises DivergedError for a loss that is not finite (the checkpoints before it are intact), CheckpointError for one
    to resume from that cannot be read, does not fit or differs between ranks, TrainError for any other reason.
    """
    training = _Training(step, trackers, settings)
    outcome, stopping, steps, note = training.outcome, training.stopping, len(step.source.spans), training.note
    # Saved checkpoints are on the disk when closing returns, however the training ends.
    with closing(training), StopRequest() as stop, Watchdog(step.ranks, settings.hang_s) as watchdog:
        began = _now(step.device)
        while training.epoch <= settings.epochs and not stopping.stop:
            epoch, first_step = training.epoch, training.first_step
            done, epoch_began = training.run_steps(stop, watchdog)
            step.reducer.settle()
            losses = read_losses(step, epoch, done)[first_step:]
            watchdog.pause()
            seconds = time.perf_counter() - epoch_began
            outcome.losses += losses.tolist()
            outcome.train_s += seconds
            outcome.loop_s = time.perf_counter() - began
            if outcome.terminated and done < steps:
                training.save(epoch, done)
                note(f"terminated in epoch {epoch} after step {done}: {training.kept}")
                break
            examples = training.examples()
            outcome.examples += examples
            tested = epoch % settings.test_every == 0 or epoch == settings.epochs
            metrics = test() if tested else {}
            if tested:
                _require_test_loss(metrics, settings)
            outcome.metrics = metrics or outcome.metrics
            outcome.best_accuracy = max(outcome.best_accuracy, metrics.get("accuracy", 0.0))
            outcome.epochs, outcome.loop_s = epoch, _now(step.device) - began
            parts = {name: values[first_step:].mean().item() for name, values in step.parts.items()}
            training.progress.report(losses, metrics, examples, seconds, parts)
            training.epoch, training.first_step = epoch + 1, 0
            best = "test_loss" in metrics and stopping.better(metrics["test_loss"])
            last = epoch == settings.epochs or stopping.stop or outcome.terminated
            if last or best or epoch % settings.save_every == 0:
                training.save(epoch + 1, 0, best=best)
            if outcome.terminated:
                note(f"terminated after epoch {epoch}: {training.kept}")
                break
        if not outcome.epochs and not outcome.terminated:  # nothing was left to train
            outcome.metrics = test()
            outcome.best_accuracy = outcome.metrics.get("accuracy", 0.0)
        if stopping.stop:
            note(f"stopped early: no better test loss than {stopping.best:.4f} in {stopping.waited} tests")
    if outcome.epochs:
        report_end(outcome, steps, trackers)
    return outcome


class _Training:
    """A training that has begun: where it is, how its steps run, and where its checkpoints go."""

    def __init__(self, step: Step, trackers: Trackers, settings: Settings) -> None:
        self._step, self._settings = step, settings
        self.note = print_first(step.ranks.first)
        self.outcome, self.stopping = TrainingOutcome(), EarlyStopping(settings.patience)
        self.epoch, self.first_step, self._ahead, training = _begin(step, self.stopping, settings, self.note)
        step.source.start(self.epoch, self.first_step)
        self._engine = choose_engine(settings.engine, step, self.note, settings.epochs)
        folder = settings.checkpoints
        inside = folder == in_run("checkpoints")  # a path that only the container has
        kept = "saved; seatrial run --resume last continues" if inside else f"saved in {folder}"
        self.kept = kept if folder else "nothing is saved, no folder was named"
        self._writer: CheckpointWriter | None = None
        if folder and step.ranks.first:
            self._writer = CheckpointWriter(folder, settings.keep, training=training)
            if others := [path.name for path in self._writer.others]:
                names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
                kept = "kept, and not resumed; resume=FILE continues from one of another training"
                self.note(f"files in {folder} that are not from this training ({names}) are {kept}")
        self._copies = step.ranks.world * getattr(step.source, "copies", 1)
        self.progress = EpochProgress(
            step, trackers, self.note, epochs=settings.epochs, log_steps=settings.log_steps, together=self._copies
        )
        # No loss: only the time when training began, where the receipt's window starts, however short it is.
        begun = (self.epoch - 1) * len(step.source.spans) + self.first_step
        trackers.log({"step": begun, "epoch": self.epoch, "phase": "train"})

    def run_steps(self, stop: StopRequest, watchdog: Watchdog) -> tuple[int, float]:
        """Run the rest of the epoch, or up to a SIGTERM; return the steps done, and when they began."""
        step, epoch, every_steps = self._step, self.epoch, self._settings.every_steps
        steps, look = len(step.source.spans), STEPS_PER_CHECK[step.device.type]
        before = (epoch - 1) * steps
        step.source.start(epoch, self.first_step)
        step.start_epoch(before, self.first_step)
        began, done = time.perf_counter(), self.first_step
        self.progress.start(epoch, self.first_step)
        watchdog.beat(before + self.first_step)
        shapes = [span.shape for span in step.source.spans[done:]]
        for shape, count in _runs(shapes, look, every_steps, done):
            self._engine.run(shape, count)
            done += count
            watchdog.beat(before + done)
            if done % look == 0 or done == steps:  # a run of one shape may be short
                self.outcome.terminated = step.ranks.any(stop.requested)
            if self.outcome.terminated:
                break
            self.progress.update(done)
            if every_steps and done % every_steps == 0 and done < steps:
                read_losses(step, epoch, done)
                watchdog.pause()
                self.save(epoch, done)
                watchdog.beat(before + done)
        return done, began

    def examples(self) -> int:
        """Return the examples of all ranks in the part of the epoch that was run."""
        return sum(span.shape.rows for span in self._step.source.spans[self.first_step :]) * self._copies

    def save(self, epoch: int, done: int, *, best: bool = False) -> None:
        """Save a checkpoint to resume from after ``done`` steps of ``epoch``; every rank calls it."""
        if not self._settings.checkpoints:
            return
        generators = self._step.ranks.gather(rng.rng_state())
        if self._writer is not None:
            steps = len(self._step.source.spans)
            number = (epoch - 1) * steps + done + self._ahead
            where = {"epoch": epoch, "step": done, "steps": steps, "number": number, "rng": generators}
            stopped = {"best": self.stopping.best, "waited": self.stopping.waited}
            self._writer.save(number, {**self._step.state(), **where, **stopped}, best=best)

    def close(self) -> None:
        """Wait until every checkpoint is on the disk."""
        if self._writer is not None:
            self._writer.close()


def _require_test_loss(metrics: dict[str, float], settings: Settings) -> None:
    """Raise InputError if ``patience`` has no test loss to follow."""
    if settings.patience is not None and "test_loss" not in metrics:
        given = f"{', '.join(metrics)} alone" if metrics else "nothing"
        fix = '"test_loss" among what the test returns'
        raise InputError(f"patience follows test_loss, and the test gives {given}", fix=fix)


def _begin(step: Step, stopping: EarlyStopping, settings: Settings, note: Callable[[str], None]) -> Start:
    """Resume at the same place on every rank, or begin with fresh seeds. Raises CheckpointError."""
    group = step.ranks
    step.reducer.settle()  # of a training before this one that was interrupted
    group.same_start(step.model)
    step.reducer.refresh()
    place = _resume_place(settings, group)
    begin = resume(step, stopping, place, note) if place else Start()
    if len(places := set(group.gather(begin))) > 1:
        found = ", ".join(f"epoch {each.epoch}, step {each.step}" for each in sorted(places, key=lambda each: each[:3]))
        raise CheckpointError(
            f"ranks would resume from different checkpoints ({found}): {settings.checkpoints} is not the same folder "
            "on every machine",
            fix="use a folder shared by all machines, or --resume with one checkpoint file",
        )
    if begin.epoch > settings.epochs:
        note(f"nothing is left to train: all {settings.epochs} epochs are done; more epochs continue from there")
    if not place:
        rng.seed_all(settings.seed + group.rank)  # dropout and augmentation differ between ranks
    return begin


def resume(step: Step, stopping: EarlyStopping, place: Path, note: Callable[[str], None]) -> Start:
    """Put a checkpoint's state into the step; return where to continue. Raises CheckpointError."""
    state = load_newest(place, note)
    if "model" not in state:
        problem = f"{place} is not a checkpoint: it contains model weights but no training state"
        raise CheckpointError(problem, fix="--resume with a folder of checkpoints")
    try:
        load_model(step.model, state["model"], str(place))
        step.load(state)
        stopping.best, stopping.waited = float(state["best"]), int(state["waited"])
        rng.set_rng_state(state["rng"][step.ranks.rank % len(state["rng"])])
        epoch, done = int(state["epoch"]), int(state["step"])
        if epoch < 1 or done < 0:
            raise ValueError(f"epoch {epoch}, step {done}")
        steps, before = len(step.source.spans), int(state.get("steps", len(step.source.spans)))
        number = int(state.get("number", (epoch - 1) * before + done))
    except torch.OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        problem = f"{place} is not a checkpoint of this training: {type(error).__name__}: {error}"
        raise CheckpointError(problem, fix="no --resume (or resume=): start from scratch") from error
    note(f"resumed from {place}: epoch {epoch}, step {done}")
    if done and steps != before:  # another batch, or another number of ranks
        done = done * steps // before
        note(f"an epoch had {before} steps and has {steps} now: going on after step {done} of epoch {epoch}")
    return Start(epoch, done, max(0, number - (epoch - 1) * steps - done), written_by(state) or None)


def _runs(shapes: list[Any], look: int, every_steps: int | None, done: int) -> list[tuple[Any, int]]:
    """Group consecutive steps of one shape, cut where the loop checks for SIGTERM or saves."""
    numbered = enumerate(shapes, start=done)
    cut = every_steps or len(shapes) + done
    groups = groupby(numbered, key=lambda item: (item[1], item[0] // look, item[0] // cut))
    return [(shape, len(list(members))) for (shape, _, _), members in groups]


def _resume_place(settings: Settings, group: Ranks) -> Path | None:
    """Return the place to resume from: this run's own folder after a restart, by torchrun or of a pod, of any rank."""
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" or "SEATRIAL_GO_ON" in os.environ
    if group.any(restarted) and settings.checkpoints and checkpoints(settings.checkpoints):
        return settings.checkpoints
    return settings.resume


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
