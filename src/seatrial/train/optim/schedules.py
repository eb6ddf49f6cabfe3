"""Learning-rate schedules: what the base rate is multiplied by at each step. Pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from seatrial.train.errors import InputError

#: Step (from 0) and number of steps → factor.
Schedule = Callable[[int, int], float]


def cosine(warmup: float = 0.0, floor: float = 0.0) -> Schedule:
    """Warm up linearly over the share ``warmup`` of the steps, then follow half a cosine down to ``floor``."""

    def factor(step: int, steps: int) -> float:
        begin = warmup * steps
        progress = (step - begin) / max(1.0, steps - begin)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    return _warmed_up(warmup, factor)


def triangle(warmup: float = 0.2, floor: float = 0.0) -> Schedule:
    """Warm up linearly over the share ``warmup`` of the steps, then go linearly down to ``floor``."""

    def factor(step: int, steps: int) -> float:
        begin = warmup * steps
        return max(floor, 1 - (1 - floor) * (step - begin) / max(1.0, steps - begin))

    return _warmed_up(warmup, factor)


def staircase(every: float, gamma: float = 0.1, warmup: float = 0.0) -> Schedule:
    """Warm up linearly, then multiply by ``gamma`` after each share ``every`` of the steps."""
    return _warmed_up(warmup, lambda step, steps: float(gamma ** math.floor(step / (every * steps))))


def _warmed_up(warmup: float, then: Schedule) -> Schedule:
    def factor(step: int, steps: int) -> float:
        begin = warmup * steps
        return (step + 1) / begin if step < begin else then(step, steps)

    return factor


def by_group(given: Any, groups: int, steps: int, every: int) -> list[Schedule]:
    """Return each parameter group's schedule of the step; ``given`` counts ``every`` steps. Raises InputError."""
    listed = given if isinstance(given, (list, tuple)) else [given] * groups
    if len(listed) != groups:
        raise InputError(f"{len(listed)} schedules for {groups} parameter groups", fix="one, or one for each group")
    for one in listed:
        try:
            float(one(0, max(1, steps // every)))
        except TypeError as error:
            message = f"a schedule is a function of step and steps that gives a factor of the learning rate: {error}"
            raise InputError(message, fix="cosine(), with its parentheses, or a scheduler of torch") from error
    return [partial(_counted, one, every) for one in listed]


def _counted(schedule: Schedule, every: int, step: int, steps: int) -> float:
    return schedule(step // every, steps // every)


def table(schedules: list[Schedule], steps: int, device: torch.device) -> torch.Tensor:
    """Return every step's factor, [schedules, steps] fp32, so that a captured step reads its own."""
    return torch.tensor([[schedule(step, steps) for step in range(steps)] for schedule in schedules], device=device)
