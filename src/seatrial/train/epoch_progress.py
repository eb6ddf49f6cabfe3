"""Within an epoch: every two seconds a line for people, and the losses so far for the trackers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from seatrial.train.trackers import Trackers

if TYPE_CHECKING:
    from seatrial.train.step import Step

#: Between two lines. An epoch that is over sooner has its own line alone.
EVERY_S = 2.0


class EpochProgress:
    """Tells of an epoch that goes on. Only the first rank does; what it reads is its own, and no other waits for it.

    Args:
        epochs: of the training.
        log_steps: how many of an epoch's step losses the trackers get.
        together: examples of all ranks for one of this rank's.

    Attributes:
        logged: losses of this epoch that the trackers were offered already; those of several ranks are averaged, and
            so told at the epoch's end alone.
    """

    def __init__(
        self, step: Step, trackers: Trackers, note: Callable[[str], None], *, epochs: int, log_steps: int, together: int
    ) -> None:
        self._step, self._trackers, self._note = step, trackers, note
        self._epochs, self._log_steps, self._together = epochs, log_steps, together
        self.logged = 0
        self._epoch = self._first_step = self._told_to = 0
        self._began_s = self._told_s = time.perf_counter()

    def start(self, epoch: int, first_step: int) -> None:
        """An epoch begins, at ``first_step`` of it."""
        self.logged = 0
        self._epoch, self._first_step, self._told_to = epoch, first_step, first_step
        self._began_s = self._told_s = time.perf_counter()

    def look(self, done: int) -> None:
        """So many steps of the epoch are queued or done: tell of it, if it is time. Then waits for the device."""
        spans = self._step.source.spans
        if time.perf_counter() - self._told_s < EVERY_S or done >= len(spans) or not self._step.ranks.first:
            return
        losses = self._step.losses[self._told_to : done].cpu()
        self._told_s = time.perf_counter()
        if not losses.isfinite().all():  # the epoch's end says which, and ends the training
            return
        taken_s, steps = self._told_s - self._began_s, done - self._first_step
        examples = sum(span.shape.rows for span in spans[self._first_step : done]) * self._together
        left = ((self._epochs - self._epoch) * len(spans) + len(spans) - done) * taken_s / steps
        self._note(line(self._epoch, done, len(spans), losses.mean().item(), examples / taken_s, left))
        self._told_to = done
        if self._step.ranks.world == 1:
            self.logged = log_losses(
                self._trackers, self._step.losses[self._first_step : done].tolist(), self._epoch, len(spans),
                self._first_step, self._log_steps, self.logged,
            )  # fmt: skip


def line(epoch: int, done: int, steps: int, loss: float, examples_per_s: float, left_s: float) -> str:
    """``epoch 1: step 400 of 938, loss 0.3120, 12,345 examples/s, about 25 s left``."""
    rate = f"{examples_per_s:,.0f} examples/s"
    return f"epoch {epoch}: step {done} of {steps}, loss {loss:.4f}, {rate}, about {_time(left_s)} left"


# Seven plain numbers, which both callers have at hand.
def log_losses(
    trackers: Trackers, losses: list[float], epoch: int, steps: int, first_step: int, log_steps: int, logged: int
) -> int:
    """The losses of an epoch's steps for the trackers, as many as they get, without the first ``logged``.

    Their name is not that of the epoch's mean: as one curve they would jump at every epoch's end.

    Args:
        losses: from ``first_step`` on. steps: of a whole epoch.

    Returns how many they have been offered now.
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
