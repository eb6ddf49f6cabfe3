"""Report a training: a line every two seconds, a line for each epoch, and numbers for the trackers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seatrial.train.errors import DivergedError
from seatrial.train.memory import peak
from seatrial.train.trackers import Trackers

if TYPE_CHECKING:
    from seatrial.train.step import Step

#: Between two lines. An epoch that is over sooner has its own line alone.
EVERY_S = 2.0


@dataclass
class TrainingOutcome:
    """The result of a training.

    Attributes:
        terminated: SIGTERM ended it; a checkpoint was saved.
        loop_s: from before the first step to after the last, tests included, device synchronised.
        train_s: the same without the tests and what else is between the epochs.
        losses: of every step, of the epochs trained here.
        metrics: of the last test.
    """

    terminated: bool = False
    epochs: int = 0
    loop_s: float = 0.0
    train_s: float = 0.0
    examples: int = 0
    losses: list[float] = field(default_factory=list, repr=False)  # a notebook shows what fit() gives
    metrics: dict[str, float] = field(default_factory=dict)
    best_accuracy: float = 0.0


class EpochProgress:
    """Report an epoch in progress, on the first rank alone; it reads its own numbers, and no rank waits for it.

    Losses of several ranks are averaged, and so given to the trackers at the epoch's end alone.

    Args:
        epochs: of the training. log_steps: how many of an epoch's step losses the trackers get.
        together: examples of all ranks for one of this rank's.
    """

    def __init__(
        self, step: Step, trackers: Trackers, note: Callable[[str], None], *, epochs: int, log_steps: int, together: int
    ) -> None:
        self._step, self._trackers, self._note = step, trackers, note
        self._epochs, self._log_steps, self._together = epochs, log_steps, together
        self.start(1, 0)

    def start(self, epoch: int, first_step: int) -> None:
        """Begin an epoch, at ``first_step`` of it."""
        self._logged, self._epoch, self._first_step, self._reported_to = 0, epoch, first_step, first_step
        self._began_s = self._reported_s = time.perf_counter()

    def update(self, done: int) -> None:
        """Report ``done`` steps, queued or done, if it is time; this waits for the device."""
        spans = self._step.source.spans
        if time.perf_counter() - self._reported_s < EVERY_S or done >= len(spans) or not self._step.ranks.first:
            return
        losses = self._step.losses[self._reported_to : done].cpu()
        self._reported_s = time.perf_counter()
        if not losses.isfinite().all():  # the epoch's end names it, and ends the training
            return
        taken_s, steps = self._reported_s - self._began_s, done - self._first_step
        examples = sum(span.shape.rows for span in spans[self._first_step : done]) * self._together
        left = ((self._epochs - self._epoch) * len(spans) + len(spans) - done) * taken_s / steps
        rate = f"{examples / taken_s:,.0f} examples/s"
        at = f"epoch {self._epoch}/{self._epochs}: step {done} of {len(spans)}"
        self._note(f"{at}, loss {losses.mean().item():.4f}, {rate}, about {_time(left)} left")
        self._reported_to = done
        if self._step.ranks.world == 1:
            self._log_losses(self._step.losses[self._first_step : done].tolist())

    def report(
        self, losses: Tensor, metrics: dict[str, float], examples: int, seconds: float, parts: dict[str, float]
    ) -> None:
        """Print one line for the epoch, and give its numbers to the trackers.

        Args:
            losses: of the steps done now, fewer after a resume within the epoch. metrics: of the test; {} without one.
            examples: of all ranks, in ``seconds``. parts: means of the other numbers of the first rank's loss.
        """
        self._log_losses(losses.tolist())
        rate, used, mean = examples / seconds, peak(self._step.device), losses.mean().item()
        steps, epoch = len(self._step.source.spans), self._epoch
        common: dict[str, Any] = {"step": epoch * steps, "epoch": epoch}
        numbers = {"loss": mean, **parts, "images": examples, "images_per_s": rate, **used}
        self._trackers.log({**common, "phase": "train", **numbers})
        line = f"epoch {epoch}: loss {mean:.4f}"
        line += "".join(f", {name} {value:.4f}" for name, value in parts.items())
        if metrics:
            self._trackers.log({**common, "phase": "test", **metrics})
            line += "".join(f", {_metric(name, value)}" for name, value in metrics.items())
        line += f", {rate:,.0f} examples/s, {seconds:.3f} s"
        if used:
            allocated, reserved = (number / 1e6 for number in used.values())
            line += f", GPU memory {allocated:.0f} MB allocated, {reserved:.0f} MB reserved"
        self._note(line)

    def _log_losses(self, losses: list[float]) -> None:
        """Pass losses from the first step on to trackers, as many as they get, under another name than the mean."""
        steps = len(self._step.source.spans)
        stride = max(1, (steps - self._first_step) // max(1, self._log_steps))
        first, epoch = (self._epoch - 1) * steps + self._first_step, self._epoch
        for index in range(stride - 1, len(losses), stride):
            if index >= self._logged:
                step = first + index + 1
                self._trackers.log({"step": step, "epoch": epoch, "step_loss": losses[index], "phase": "train"})
        self._logged = len(losses)


def _time(seconds: float) -> str:
    minutes, rest = divmod(max(1, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def print_first(first: bool) -> Callable[[str], None]:
    """Return a function that prints on the first rank and does nothing on the others."""
    return (lambda text: print(text, flush=True)) if first else (lambda text: None)


def read_losses(step: Step, epoch: int, done: int) -> Tensor:
    """Wait for the device and return the losses so far, [steps] on the CPU, over all ranks. Raises DivergedError."""
    shares = torch.tensor([span.shape.share for span in step.source.spans], device=step.device)
    losses = (step.ranks.sum(step.losses * shares) / step.ranks.world).cpu()[:done]
    broken = (~losses.isfinite()).nonzero()
    if len(broken):
        number = int(broken[0])
        became = f"the loss became {losses[number].item()} in epoch {epoch} at step {number + 1}"
        change = "a lower learning rate" + ", or bf16 instead of fp16" * (step.precision.name == "fp16")
        fix = f"{change}; --resume, or resume=True, continues from the last checkpoint"
        raise DivergedError(f"{became}; the checkpoints from before it are kept", fix=fix)
    return losses


def _metric(name: str, value: float) -> str:
    return f"{name} {value:.2%}" if name == "accuracy" else f"{name.replace('_', ' ')} {value:.4f}"


def report_end(outcome: TrainingOutcome, steps: int, trackers: Trackers) -> None:
    """Pass the whole training's numbers to the trackers."""
    at: dict[str, Any] = {"step": outcome.epochs * steps, "epoch": outcome.epochs, "phase": "end"}
    rates = {"loop_s": outcome.loop_s, "train_s": outcome.train_s, "images_per_s": outcome.examples / outcome.train_s}
    trackers.log({**at, **rates, **outcome.metrics})
