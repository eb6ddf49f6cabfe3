"""What differs between the trials that train as one model: learning rate, weight decay and seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.train.errors import InputError

#: Other names of a setting, as sweeps have them.
NAMES = {"lr": "learning_rate", "learning-rate": "learning_rate", "wd": "weight_decay", "weight-decay": "weight_decay"}
SETTINGS = ("learning_rate", "weight_decay", "seed")
#: More would train one after the other faster than they could be looked at; the launch grid takes 65,535.
MOST_TRIALS = 1024
_FIX = '--fused-settings \'[{"learning_rate": 0.001, "seed": 0}, {"learning_rate": 0.003, "seed": 1}]\''


@dataclass(frozen=True)
class Trial:
    """The settings of one trial."""

    learning_rate: float
    weight_decay: float
    seed: int


def read_trials(text: str, defaults: Trial) -> list[Trial]:
    """The trials of a JSON list of settings, or of a file with one; what is not named is the recipe's own.

    Raises:
        InputError: no such list; a setting that trials cannot differ in; a number that cannot be meant.
    """
    listed = _loaded(text)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise InputError("--fused-settings is no list of settings", fix=_FIX)
    if not 1 <= len(listed) <= MOST_TRIALS:
        raise InputError(f"{len(listed)} trials cannot be fused: 1 to {MOST_TRIALS} can", fix=_FIX)
    return [_trial(number, each, defaults) for number, each in enumerate(listed)]


def _loaded(text: str) -> Any:
    content, place = text, "--fused-settings"
    if not text.lstrip().startswith(("[", "{")):
        place = text
        try:
            content = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot read {text}: {error.strerror}", fix=_FIX) from error
    try:
        if place.endswith(".jsonl"):
            return [json.loads(line) for line in content.splitlines() if line.strip()]
        return json.loads(content)
    except ValueError as error:
        raise InputError(f"{place} is no JSON: {error}", fix=_FIX) from error


def _trial(number: int, told: Mapping[str, Any], defaults: Trial) -> Trial:
    chosen = {NAMES.get(name, name): value for name, value in told.items()}
    if other := sorted(set(chosen) - set(SETTINGS)):
        raise InputError(
            f"trials that train as one model cannot differ in {', '.join(other)}: only in {', '.join(SETTINGS)}",
            fix="run without --fused",
        )
    rate = _number(number, "learning_rate", chosen.get("learning_rate", defaults.learning_rate))
    decay = _number(number, "weight_decay", chosen.get("weight_decay", defaults.weight_decay))
    seed = _number(number, "seed", chosen.get("seed", defaults.seed))
    if rate <= 0 or decay < 0 or seed != int(seed):
        raise InputError(
            f"trial {number}: a learning rate above 0, a weight decay of 0 or more and a whole seed are needed, "
            f"not {rate:g}, {decay:g} and {seed:g}",
            fix=_FIX,
        )
    return Trial(rate, decay, int(seed))


def _number(trial: int, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"trial {trial}: {name} is {value!r}, no number", fix=_FIX)
    return value
