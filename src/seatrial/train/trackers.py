"""Where the numbers of a training go: the console, seatrial's events, TensorBoard, MLflow; several at once.

A tracker gets one flat dictionary a time: ``step`` (global), ``epoch``, ``phase`` and any numbers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from seatrial.events import EVENTS_VARIABLE, StepLog
from seatrial.train.errors import InputError

Values = Mapping[str, float | int | str]


class Tracker(Protocol):
    """Something that keeps numbers, as events.StepLog does: its lines in $SEATRIAL_EVENTS are plotted by receipts."""

    def write(self, values: Values) -> None:
        """Record one set of numbers."""

    def close(self) -> None:
        """Write out what is still held."""


class Trackers:
    """Several trackers as one."""

    def __init__(self, trackers: list[Tracker]) -> None:
        self._trackers = trackers

    def log(self, values: Values) -> None:
        for tracker in self._trackers:
            tracker.write(values)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


class TensorBoardTracker:
    """Write scalars for TensorBoard into $TENSORBOARD_LOGGING_DIR, or into a folder next to the models."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(os.environ.get("TENSORBOARD_LOGGING_DIR") or str(folder), flush_secs=2)

    def write(self, values: Values) -> None:
        for name, number in _numbers(values).items():
            self._writer.add_scalar(f"{values['phase']}/{name}", number, int(values["step"]))

    def close(self) -> None:
        self._writer.close()


class MlflowTracker:
    """Writes metrics into an MLflow run: to $MLFLOW_TRACKING_URI, or an SQLite file next to the models.

    ``mlflow ui --backend-store-uri sqlite:///…/mlflow/mlflow.db`` shows it. The run fails when the training does.
    """

    def __init__(self, folder: Path) -> None:
        import mlflow

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            folder.mkdir(parents=True, exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{folder.resolve() / 'mlflow.db'}")
        self._mlflow = mlflow
        mlflow.start_run(run_name=os.environ.get("SEATRIAL_RUN_ID"))

    def write(self, values: Values) -> None:
        metrics = {f"{values['phase']}_{name}": number for name, number in _numbers(values).items()}
        if metrics:  # not the line that marks the beginning of the training
            self._mlflow.log_metrics(metrics, step=int(values["step"]))

    def close(self) -> None:
        self._mlflow.end_run("FINISHED" if sys.exc_info()[0] is None else "FAILED")


#: Name on the command line → how it is opened, and the packages it needs (images/recipes.py: the same). mlflow-skinny
#: is MLflow without its server and its data science packages; SQLite is reached through the other two.
TRACKERS: dict[str, tuple[Callable[[Path], Tracker], str]] = {
    "tensorboard": (TensorBoardTracker, "tensorboard"),
    "mlflow": (MlflowTracker, "mlflow-skinny sqlalchemy alembic"),
}


def open_trackers(names: Sequence[str], folder: Path, *, first: bool = True) -> Trackers:
    """Open trackers, and the file of $SEATRIAL_EVENTS, on the first rank. Raises InputError: unknown, not installed."""
    trackers: list[Tracker] = []
    path = os.environ.get(EVENTS_VARIABLE)
    if first and path:
        trackers.append(StepLog(path))
    for name in names if first else ():
        if name not in TRACKERS:
            raise InputError(f"no tracker {name!r}: choose from {', '.join(TRACKERS)}")
        build, packages = TRACKERS[name]
        try:
            trackers.append(build(folder / name))
        except ImportError as error:
            raise InputError(f"the tracker {name} cannot start: {error}", fix=f"pip install {packages}") from error
    return Trackers(trackers)


def _numbers(values: Values) -> dict[str, float]:
    """Return the numbers to plot, named without their phase, which both trackers put in front."""
    plotted = {name: value for name, value in values.items() if name not in ("step", "epoch", "phase")}
    return {name.removeprefix(f"{values['phase']}_"): float(value) for name, value in plotted.items()}
