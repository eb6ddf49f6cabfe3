"""What became of each trial: a line for people, trials.json for the sweep.

trials.json: ``recipe``, ``way``, ``best`` (a trial's number or null), ``loop_s`` and ``trials``. Each of these has its
number in ``trial``, its settings, one value an epoch in ``losses``, ``test_losses`` and ``accuracies``, in ``diverged``
the first step whose loss was no number, from 1, or null, and in ``model`` a file below the models folder, or null.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from seatrial.train.saving.atomic import write_text
from seatrial.train.trials.settings import Trial

FILE = "trials.json"
#: Lines of the table on the console; the file has all.
SHOWN = 12
#: What the best trial can be chosen by: much accuracy, or little of a loss.
METRICS = ("accuracy", "test_loss", "loss")


@dataclass
class Record:
    """One trial."""

    trial: int
    settings: Trial
    losses: list[float] = field(default_factory=list)
    test_losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    diverged: int | None = None
    model: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As trials.json has it: numbers that JSON lacks are null."""
        told = asdict(self)
        told.update(told.pop("settings"))
        for name in ("losses", "test_losses", "accuracies"):
            told[name] = [number if math.isfinite(number) else None for number in told[name]]
        return told


def cost(record: Record, metric: str) -> float:
    """What is smaller for a better trial, after its last epoch."""
    if metric == "accuracy":
        return -record.accuracies[-1]
    return record.test_losses[-1] if metric == "test_loss" else record.losses[-1]


class Records:
    """All trials, in the order of their settings.

    Args:
        metric: of METRICS, which makes the best trial: after the last epoch.
    """

    def __init__(self, recipe: str, trials: list[Trial], metric: str = "accuracy") -> None:
        self.recipe, self.way, self.metric = recipe, "", metric
        self.trials = [Record(number, trial) for number, trial in enumerate(trials)]

    def epoch(self, losses_ST: Tensor, test_losses: list[float], accuracies: list[float], steps_before: int) -> None:
        """Take an epoch's losses of every step, [S, T], and the test after it."""
        losses_TS = losses_ST.t().cpu()
        for record, losses_S, test_loss, accuracy in zip(self.trials, losses_TS, test_losses, accuracies, strict=True):
            broken = (~losses_S.isfinite()).nonzero()
            if len(broken) and record.diverged is None:
                record.diverged = steps_before + int(broken[0]) + 1
            record.losses.append(losses_S.mean().item())
            record.test_losses.append(test_loss)
            record.accuracies.append(accuracy)

    def ranked(self) -> list[Record]:
        """Best first, of equal ones the one that was named first, as a study has it; who diverged comes last."""

        def key(record: Record) -> tuple[bool, float]:
            lost = record.diverged is not None or not record.accuracies
            return lost, 0.0 if lost else cost(record, self.metric)

        return sorted(self.trials, key=key)

    @property
    def best(self) -> Record | None:
        """The best trial; None where all have diverged or no epoch is done."""
        first = self.ranked()[0]
        return first if first.diverged is None and first.accuracies else None

    def table(self) -> str:
        """The best trials, a line each."""
        lines = ["trial  learning rate  weight decay   seed  test loss  accuracy"]
        for record in self.ranked()[:SHOWN]:
            each = record.settings
            line = f"{record.trial:5d}  {each.learning_rate:13.4g}  {each.weight_decay:12.4g}  {each.seed:5d}"
            if record.test_losses:
                line += f"  {record.test_losses[-1]:9.4f}  {record.accuracies[-1]:8.2%}"
            lines.append(line + (f"  diverged at step {record.diverged}" if record.diverged else ""))
        if len(self.trials) > SHOWN:
            lines.append(f"… and {len(self.trials) - SHOWN} more")
        return "\n".join(lines)

    def write(self, path: Path, loop_s: float) -> None:
        """Write trials.json, whole or not at all. Raises DiskFullError."""
        best = self.best
        told = {
            "recipe": self.recipe,
            "way": self.way,
            "best": None if best is None else best.trial,
            "loop_s": loop_s,
            "trials": [record.as_dict() for record in self.trials],
        }
        write_text(path, json.dumps(told) + "\n")
