"""What a receipt keeps of `seatrial tune`, and of changes that a run made as ``[tune]`` asks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seatrial.receipt.record import Record


class TriedChange(Record):
    """One change that a tune tried, or the script as it is, or what is kept together.

    Attributes:
        changes: keys of SEATRIAL_TUNE. words: the same as one reads them.
        spread: of steps_per_s over ``trials``, as a share. against: steps a second of what it is compared with.
        loss_difference: the largest between its loss curve, smoothed, and the baseline's under the same seed.
        places: of the script, by key: ``train.py:31``.
    """

    name: str
    words: str = ""
    changes: dict[str, bool | int | str] = Field(default_factory=dict)
    steps_per_s: float | None = None
    spread: float | None = None
    trials: int = 0
    against: float | None = None
    examples_per_s: float | None = None
    peak_bytes: int | None = None
    loss_difference: float | None = None
    verdict: Literal["kept", "no-faster", "slower", "different", "failed", "refused", "removed", ""] = ""
    why: str = ""
    places: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class TuneFiles(Record):
    """What became of files in trials: checkpoints not written, files put back, new ones removed, new and left."""

    skipped: int = 0
    restored: int = 0
    removed: int = 0
    new: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class TuneRecord(Record):
    """What `seatrial tune` measured; of the target's own word.

    Attributes:
        done: it came to its end. rows: in the order in which they were tried, each on top of what was kept by then.
        kept: what is faster and trains the same; {} where nothing is. loss_band: how much two seeds differ, and
            loss_level: losses of this size.
        not_tried: name → why. refusal: why the script cannot be tuned.
    """

    done: bool = False
    trials: int = 0
    seconds: float = 0.0
    baseline: TriedChange | None = None
    rows: tuple[TriedChange, ...] = ()
    combination: TriedChange | None = None
    kept: dict[str, bool | int | str] = Field(default_factory=dict)
    places: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    loss_band: float | None = None
    loss_level: float | None = None
    not_tried: dict[str, str] = Field(default_factory=dict)
    refusal: str | None = None
    refusal_fix: str | None = None
    files: TuneFiles = TuneFiles()


class ChangesRecord(Record):
    """Changes that a run made to the script from outside, as ``[tune]`` asks: asked, applied, and refused with why."""

    asked: dict[str, bool | int | str] = Field(default_factory=dict)
    applied: dict[str, bool | int | str] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
    places: dict[str, tuple[str, ...]] = Field(default_factory=dict)
