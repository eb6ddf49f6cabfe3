"""What a recipe gives a fused training: its network, data and schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from seatrial.train.data.images import Augment, ImageSet
from seatrial.train.optim.schedules import Schedule


@dataclass(frozen=True)
class Task:
    """What a recipe trains.

    Attributes:
        name: of the recipe. saved: its model's file, without the ending.
        build: the lone network, its weights drawn from torch's default generator.
        test_batch: images of a batch of the lone run's test. labels: of the classes.
    """

    name: str
    saved: str
    build: Callable[[], nn.Sequential]
    train_set: ImageSet
    test_set: ImageSet
    test_batch: int
    labels: Sequence[str]
    schedule: Schedule | None = None
    augment: Augment | None = None
