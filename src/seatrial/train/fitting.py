"""``fit`` for a script of one's own: the loop with its folders, its trackers and its exit code settled.

Inside of a run checkpoints go into the run's folder, ``seatrial run --resume`` is followed, and the receipt gets the
numbers; outside of one it takes what it is given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any

from seatrial.train import loop
from seatrial.train.distributed import Ranks
from seatrial.train.errors import EXIT_TERMINATED, InputError
from seatrial.train.evaluation import Test, modes_kept
from seatrial.train.options import RESUME_DIR_VARIABLE, in_run
from seatrial.train.progress import TrainingOutcome
from seatrial.train.saving.checkpoint import checkpoints as found_in
from seatrial.train.step import Step
from seatrial.train.trackers import open_trackers

#: Settings that count something.
_COUNTS = {"keep", "every_steps", "patience", "test_every", "save_every"}


def fit(
    step: Step,
    *,
    test: Test | Callable[[], Mapping[str, Any] | None] | None = None,
    checkpoints: str | Path | None = None,
    resume: str | Path | bool = False,
    track: Sequence[str] = (),
    **settings: Any,
) -> TrainingOutcome:
    """Train ``step`` for its epochs. A SIGTERM saves a checkpoint and ends the process with 143.

    Args:
        test: after each epoch; a function of one's own gives its numbers.
        checkpoints: a folder; ignored inside of a run, which has its own; None: none outside of a run.
        resume: True: from the newest checkpoint of the run, else in ``checkpoints``, where there is one; or a folder or
            file.
        track: trackers besides the receipt: tensorboard, mlflow.
        settings: ``epochs`` (else those of the step), ``seed``, ``engine`` (auto, eager, graph, compile,
            compile+graph), ``keep`` so many checkpoints (3), save ``every_steps`` also within epochs, ``save_every``
            and ``test_every`` so many epochs (1), ``patience`` tests without a better test loss, ``log_steps`` losses
            an epoch for the receipt and the trackers (100), ``hang_s`` seconds after which a rank that stands still
            ends all (300).

    Raises:
        TrainError: what ended the training, in one sentence.
    """
    own = in_run("checkpoints")
    folder = own or (Path(checkpoints) if checkpoints else None)
    if own and checkpoints and step.ranks.first:
        print(f"checkpoints: in the run's folder, not in {checkpoints}; seatrial run --resume continues from them")
    place = _resume_place(resume, [folder, Path(checkpoints) if checkpoints else None])
    if settings.get("patience") and test is None:
        raise InputError("patience needs a test that gives test_loss", fix="fit(step, test=Test(...), patience=...)")
    if unknown := sorted(settings.keys() - {field.name for field in fields(loop.Settings)}):
        fix = f"help({__package__}.loop.Settings) lists them"
        raise InputError(f"fit() has no setting {', '.join(unknown)}", fix=fix)
    for name in _COUNTS & settings.keys():
        value = settings[name]
        if value is not None and (not isinstance(value, Integral) or value < 1):
            raise InputError(f"{name}={value!r} is not a whole number of 1 or more")
    chosen = loop.Settings(**{"epochs": step.epochs, "hang_s": 300.0, **settings}, checkpoints=folder, resume=place)
    if step.scheduled and chosen.epochs > step.epochs:
        problem = f"the schedule ends after the Step's {step.epochs} epochs, and fit() has epochs={chosen.epochs}"
        raise InputError(problem, fix=f"Step(..., epochs={chosen.epochs})")
    if not step.model.training:
        step.model.train()
        if step.ranks.first:
            print("the model was in evaluation mode, as a loaded one is: model.train() sets all of it to training")

    def tested() -> dict[str, float]:
        if isinstance(test, Test):
            return test(step.average.model if step.average else step.model, step.ranks, step.precision)
        with modes_kept(step.model):  # most such functions call model.eval() and leave the rest to the next epoch
            return _numbers(test() if test else None, step.ranks)

    outside = folder.parent if folder else Path()
    track = [track] if isinstance(track, str) else track
    with closing(open_trackers(track, outside, first=step.ranks.first)) as trackers:
        outcome = loop.fit(step, tested, trackers, chosen)
    if outcome.terminated:
        sys.exit(EXIT_TERMINATED)
    return outcome


def _numbers(given: Any, ranks: Ranks) -> dict[str, float]:
    """Return the numbers of a test function; {} for one that prints them itself.

    Of several ranks the mean: with numbers of its own, one might save or end while the others wait for it.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        problem = f"the test gives a {type(given).__name__}, not a dictionary of names and numbers"
        raise InputError(problem, fix='return {"test_loss": ...}')
    found: dict[str, list[float]] = {}
    for numbers in ranks.gather({str(name): float(value) for name, value in given.items()}):
        for name, value in numbers.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _resume_place(resume: str | Path | bool, folders: Sequence[Path | None]) -> Path | None:
    """Return where to resume: seatrial's folder, else the first with a checkpoint, or the named place."""
    named = os.environ.get(RESUME_DIR_VARIABLE)
    if named and found_in(Path(named)):
        return Path(named)
    if resume is True:
        return next((folder for folder in folders if folder and found_in(folder)), None)
    return Path(resume) if resume else None
