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
    from seatrial.train.loop import Outcome
    from seatrial.train.step import Step

#: Between two lines. An epoch that is over sooner has its own line alone.
EVERY_S = 2.0


@dataclass(frozen=True)
class Epoch:
    """An epoch that is done.

    Attributes:
        steps: of a whole epoch. losses: of the steps done now, fewer after a resume within it.
        metrics: of the test after it; {} without one.
        examples: of all ranks, in ``seconds``.
        parts: means of the other numbers of the first rank's loss.
    """

    number: int
    steps: int
    losses: Tensor
    metrics: dict[str, float]
    examples: int
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)


class EpochProgress:
    """Reports an epoch under way, on the first rank alone; it reads its own numbers, and no rank waits for it.

    Args:
        epochs: of the training.
        log_steps: how many of an epoch's step losses the trackers get.
        together: examples of all ranks for one of this rank's.

    Attributes:
        logged: losses of this epoch that the trackers were offered already; those of several ranks are averaged, and
            so reported at the epoch's end alone.
    """

    def __init__(
        self, step: Step, trackers: Trackers, note: Callable[[str], None], *, epochs: int, log_steps: int, together: int
    ) -> None:
        self._step, self._trackers, self._note = step, trackers, note
        self._epochs, self._log_steps, self._together = epochs, log_steps, together
        self.logged = 0
        self._epoch = self._first_step = self._reported_to = 0
        self._began_s = self._reported_s = time.perf_counter()

    def start(self, epoch: int, first_step: int) -> None:
        """Begin an epoch, at ``first_step`` of it."""
        self.logged = 0
        self._epoch, self._first_step, self._reported_to = epoch, first_step, first_step
        self._began_s = self._reported_s = time.perf_counter()

    def look(self, done: int) -> None:
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
        self._note(line(self._epoch, done, len(spans), losses.mean().item(), examples / taken_s, left))
        self._reported_to = done
        if self._step.ranks.world == 1:
            self.logged = log_losses(
                self._trackers, self._step.losses[self._first_step : done].tolist(), self._epoch, len(spans),
                self._first_step, self._log_steps, self.logged,
            )  # fmt: skip

    def report(self, epoch: Epoch) -> None:
        """Print one line for the epoch, and give its numbers to the trackers."""
        losses, first_step = epoch.losses, epoch.steps - len(epoch.losses)
        log_losses(self._trackers, losses.tolist(), epoch.number, epoch.steps, first_step, self._log_steps, self.logged)
        rate, used, mean = epoch.examples / epoch.seconds, peak(self._step.device), losses.mean().item()
        common: dict[str, Any] = {"step": epoch.number * epoch.steps, "epoch": epoch.number}
        numbers = {"loss": mean, **epoch.parts, "images": epoch.examples, "images_per_s": rate, **used}
        self._trackers.log({**common, "phase": "train", **numbers})
        line = f"epoch {epoch.number}: loss {mean:.4f}"
        line += "".join(f", {name} {value:.4f}" for name, value in epoch.parts.items())
        if epoch.metrics:
            self._trackers.log({**common, "phase": "test", **epoch.metrics})
            line += "".join(f", {_metric(name, value)}" for name, value in epoch.metrics.items())
        line += f", {rate:,.0f} examples/s, {epoch.seconds:.3f} s"
        if used:
            allocated, reserved = (number / 1e6 for number in used.values())
            line += f", GPU memory {allocated:.0f} MB allocated, {reserved:.0f} MB reserved"
        self._note(line)


def line(epoch: int, done: int, steps: int, loss: float, examples_per_s: float, left_s: float) -> str:
    """Return ``epoch 1: step 400 of 938, loss 0.3120, 12,345 examples/s, about 25 s left``."""
    rate = f"{examples_per_s:,.0f} examples/s"
    return f"epoch {epoch}: step {done} of {steps}, loss {loss:.4f}, {rate}, about {_time(left_s)} left"


# Seven plain numbers, which both callers have at hand.
def log_losses(
    trackers: Trackers, losses: list[float], epoch: int, steps: int, first_step: int, log_steps: int, logged: int
) -> int:
    """Give the losses of an epoch's steps to the trackers, as many as they get, without the first ``logged``.

    They are not named as the epoch's mean is: as one curve they would jump at every epoch's end.

    Args:
        losses: from ``first_step`` on. steps: of a whole epoch.

    Returns:
        How many they have been offered now.
    """
    stride = max(1, (steps - first_step) // max(1, log_steps))
    first = (epoch - 1) * steps + first_step
    for index in range(stride - 1, len(losses), stride):
        if index >= logged:
            trackers.log({"step": first + index + 1, "epoch": epoch, "step_loss": losses[index], "phase": "train"})
    return len(losses)


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
    """Return the epoch's losses so far, [steps] on the CPU, averaged over the ranks. Waits for the device.

    Raises:
        DivergedError: one is not finite; names the first.
    """
    shares = torch.tensor([span.shape.share for span in step.source.spans], device=step.device)
    losses = (step.ranks.sum(step.losses * shares) / step.ranks.world).cpu()[:done]
    broken = (~losses.isfinite()).nonzero()
    if len(broken):
        number = int(broken[0])
        raise DivergedError(
            f"the loss became {losses[number].item()} in epoch {epoch} at step {number + 1}; "
            "the checkpoints from before it are kept",
            fix="a lower learning rate"
            + (", or bf16 instead of fp16" if step.precision.name == "fp16" else "")
            + "; --resume, or resume=True, continues from the last checkpoint",
        )
    return losses


def _metric(name: str, value: float) -> str:
    return f"{name} {value:.2%}" if name == "accuracy" else f"{name.replace('_', ' ')} {value:.4f}"


def report_end(outcome: Outcome, steps: int, trackers: Trackers) -> None:
    """Give the whole training's numbers to the trackers."""
    trackers.log(
        {
            "step": outcome.epochs * steps,
            "epoch": outcome.epochs,
            "phase": "end",
            "loop_s": outcome.loop_s,
            "train_s": outcome.train_s,
            "images_per_s": outcome.examples / outcome.train_s,
            **outcome.metrics,
        }
    )
